"""Signals for as long as a command is at work. What the parent told us to ignore, as nohup does, stays ignored."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager


@contextmanager
def handle_signals(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None]:
    """Do something when a signal comes, for as long as the block."""
    loop = asyncio.get_running_loop()
    heeded = [number for number in handlers if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, handlers[number])
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
