"""Plain functions as tools call them: in a thread, or directly when they have proved to be short.

A thread costs more than a short function does. Nothing here stops a function: one that blocks the event loop once
holds up every session, and is called in a thread from then on.
"""

from __future__ import annotations

import asyncio
import resource
from asyncio.events import _set_running_loop as set_running_loop  # pyright: ignore[reportPrivateUsage]
from asyncio.tasks import _enter_task as enter_task  # pyright: ignore[reportPrivateUsage]
from asyncio.tasks import _leave_task as leave_task  # pyright: ignore[reportPrivateUsage]
from collections.abc import Callable
from contextvars import copy_context
from time import perf_counter, thread_time
from typing import TypeVar

from treadle.errors import TreadleError
from treadle.workspace.worker_threads import contain_exception, run_in_thread

R = TypeVar("R")
SHORT_SECONDS = 0.0002
LONG_SECONDS = 0.001
NEEDED_CALLS = 3
PAUSE_SECONDS = 0.01
_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
"""Only Linux says whether a thread has waited. Elsewhere no function can prove that it does not."""


class FunctionPlace:
    """Where the calls of one function run that is not async.

    With `thread=None` that is a thread until three calls in a row took less than 0.2 ms and waited for nothing. Later
    calls run directly. One that takes more than a millisecond, or that raises an unexpected exception, is the last:
    the function gets its thread back for as long as the process lives.
    """

    def __init__(self, thread: bool | None) -> None:
        self._is_measured = thread is None and _THREAD is not None
        self._needs_thread = thread is not False
        self._short_calls = 0
        self._next_pause = 0.0

    async def call(self, function: Callable[[], R]) -> R:
        """Call the function, which has its arguments, and return its result."""
        if not self._needs_thread:
            if perf_counter() > self._next_pause:  # a run whose model never waits either could not be stopped
                await asyncio.sleep(0)
                self._next_pause = perf_counter() + PAUSE_SECONDS
            return self._call_directly(function)
        if not self._is_measured:
            return await run_in_thread(function)
        result, is_short = await run_in_thread(_measure_call, function)
        self._short_calls = self._short_calls + 1 if is_short else 0
        if self._is_measured and self._short_calls >= NEEDED_CALLS:
            self._needs_thread = False
        return result

    def _call_directly(self, function: Callable[[], R]) -> R:
        """Call the function here. As in a thread, no loop runs for it, and the context is a copy."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        before, began = read_usage() if self._is_measured else (0.0, 0), perf_counter()
        assert task is not None
        leave_task(loop, task)
        set_running_loop(None)
        try:
            return copy_context().run(function)
        except (TreadleError, KeyboardInterrupt):  # the latter is the user's: this may be the main thread
            raise
        except BaseException as error:
            self._needs_thread, self._is_measured = self._is_measured, False  # it may need a thread of its own
            if (contained := contain_exception(error)) is error:
                raise
            raise contained from None
        finally:
            set_running_loop(loop)
            enter_task(loop, task)
            if self._is_measured and perf_counter() - began > LONG_SECONDS:
                self._keep_thread_if_slow(*before)

    def _keep_thread_if_slow(self, seconds: float, waits: int) -> None:
        """Call the function in threads again, unless the call was long only because the machine is busy."""
        spent, waited = read_usage()
        if spent - seconds > LONG_SECONDS or waited > waits:
            self._needs_thread, self._is_measured = True, False


def _measure_call(function: Callable[[], R]) -> tuple[R, bool]:
    """Call the function. Return its result, and whether the call was short."""
    waits, began = read_usage()[1], perf_counter()
    result = function()
    return result, perf_counter() - began < SHORT_SECONDS and read_usage()[1] == waits


def read_usage() -> tuple[float, int]:
    """Return the CPU seconds of this thread, and how often it has waited for something."""
    assert _THREAD is not None
    return thread_time(), resource.getrusage(_THREAD).ru_nvcsw  # getrusage has CPU time too, but of some ticks ago
