"""Signals for as long as a command is at work. What the parent told us to ignore, as nohup does, stays ignored."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager


@contextmanager
def acting(acts: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None]:
    """Do something when a signal comes, for as long as the block."""
    loop = asyncio.get_running_loop()
    heeded = [number for number in acts if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, acts[number])
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
