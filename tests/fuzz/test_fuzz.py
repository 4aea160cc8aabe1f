"""Every parser on changed samples: a value or one of our errors, in bounded time."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.errors import AssayError
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS, run_one


@pytest.mark.parametrize("name", TARGETS)
def test_the_samples_are_accepted(name: str) -> None:
    """What is changed is valid before; two formats have a best answer that is an error, and say which."""
    target = TARGETS[name]
    samples = target.samples()
    assert samples
    best = {"bundle": "COMPLETENESS_NOT_PROVEN", "encrypted-key": "KEY_LOCKED"}
    for sample in samples:
        if name in best:
            with pytest.raises(AssayError) as caught:
                target.parse(sample)
            assert best[name] == caught.value.reason
        else:
            target.parse(sample)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=timedelta(seconds=5), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64 - 1))
def test_changed_samples(name: str, seed: int) -> None:
    """1 to 8 changes of a valid sample."""
    run_one(TARGETS[name], mutated(Random(seed), TARGETS[name].samples()))


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=timedelta(seconds=5), suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=2000))
def test_any_bytes(name: str, data: bytes) -> None:
    """Bytes out of nothing."""
    run_one(TARGETS[name], data)
