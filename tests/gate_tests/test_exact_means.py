"""Means and gains are exact: no order of adding and no rounding tells a candidate from its parent."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from gate.score_checks import exact_mean, exact_total

SCORES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9)


@given(SCORES)
@example([5e-324, 1.7976931348623157e308])
@example([0.1] * 3)
def test_a_mean_is_the_sum_of_fractions_by_their_count(scores: list[float]) -> None:
    """However far the scores lie from one another."""
    assert sum(map(Fraction, scores), Fraction(0)) / len(scores) == exact_mean(scores)


@given(st.lists(SCORES, max_size=9))
def test_a_total_is_the_sum_of_fractions(trials: list[list[float]]) -> None:
    """Means of different counts of trials have different denominators; of none it is 0."""
    means = [exact_mean(scores) for scores in trials]
    assert sum(means, Fraction(0)) == exact_total(means)
