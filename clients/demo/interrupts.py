"""Ending as Ctrl-C ends: what holds private keys and child processes must not be left by another signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["as_interrupts"]


@contextmanager
def as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP within the block are a KeyboardInterrupt, the first of them once.

    A signal that whoever started this wants ignored stays so. Only the main thread can hear signals.
    """
    heard = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal heard
        if not heard:  # a second one must not break off what the first one cleans up
            heard = True
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
