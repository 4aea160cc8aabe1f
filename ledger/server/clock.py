"""The clock that a ledger's process goes by: the system's, as long as it goes on like time does.

Rules kept here:

- Between two readings the wall clock may not gain more than five minutes on the time since boot, which counts
  sleep too and which nobody sets: a jump ahead would be recorded, and could never be taken back (law 18).
- A jump is refused until the clock is right again, and then all goes on. A clock that is right after a jump
  (it was wrong before, or the machine was paused from outside) needs a restart, by an operator who looked.
- At the start there is nothing to compare with: a long pause and a wrong clock look the same. What the clock
  says is taken, and the log of the process says how long the pause was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ledger.errors import OverloadedError

__all__ = ["SteadyClock", "system_clock"]

_MAX_GAIN: Final = 300_000_000  # microseconds
_RETRY_AFTER: Final = 5.0  # seconds


class SteadyClock:
    """Microseconds since 1970, by `wall`, checked against `elapsed`. Owned by one event loop."""

    def __init__(self, wall: Callable[[], int], elapsed: Callable[[], int]) -> None:
        """Both in microseconds; `elapsed` counts from anywhere and never jumps."""
        self._wall = wall
        self._elapsed = elapsed
        self._last = (wall(), elapsed())

    def __call__(self) -> int:
        """Now. Raises OverloadedError(CLOCK_JUMPED)."""
        wall, elapsed = self._wall(), self._elapsed()
        expected = self._last[0] + elapsed - self._last[1]
        if wall - expected > _MAX_GAIN:
            raise OverloadedError(
                "CLOCK_JUMPED",
                f"expected the system's clock to stand at about {expected}, got {wall}; the ledger goes on "
                "when it is right; if it is right now, restart the ledger",
                _RETRY_AFTER,
            )
        self._last = wall, elapsed
        return wall


def system_clock() -> SteadyClock:
    """The machine's clock."""
    return SteadyClock(
        lambda: time.time_ns() // 1000, lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    )
