"""The event loop of the programs: uvloop's where the extra `fast` is installed, else asyncio's.

A program that uses the library chooses its own loop. Commands that only read the store do not need a faster one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run_in_fast_loop(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, like `asyncio.run`, in the fastest loop that is installed."""
    with asyncio.Runner(loop_factory=_find_loop_factory()) as runner:
        return runner.run(main)


def _find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Find uvloop, which takes 4 ms to import. None stands for asyncio's own loop."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
