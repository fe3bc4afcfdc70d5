"""Plain functions off the event loop, in daemon threads: one that never returns cannot keep the process alive.

Not a general executor: no call waits long for another. A few threads serve many short calls; a call that finds all
of them busy for more than a moment gets one of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from treadle.errors import describe_error

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class _Job:
    """One call, and who waits for it."""

    __slots__ = ("context", "function", "future", "loop")

    def __init__(self, function: Callable[[], object]) -> None:
        self.function, self.context = function, contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


_AT_ONCE = 8
_KEPT = 64
_MOMENT = 0.02
_idle: deque[_Worker] = deque()
_waiting: deque[_Job] = deque()
_threads: set[_Worker] = set()


class _Worker(Thread):
    """A thread that takes one job after another, and is idle when none waits."""

    def __init__(self) -> None:
        super().__init__(name="treadle-tool", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        _threads.add(self)
        self.start()

    def run(self) -> None:
        while job := self.jobs.get():
            while job is not None:
                job = self._work(job)  # and nothing of it is held while there is none
        _threads.discard(self)

    def _work(self, job: _Job) -> _Job | None:
        """Do a job and tell its loop; the next one, when one waits."""
        result, error = None, None
        try:
            result = job.context.run(job.function)
        except BaseException as raised:
            error = raised
        following = _next()
        if following is None:  # here and not in the loop, which may end before it hears of this
            _idle.append(self)
            if len(_idle) > _KEPT:
                with suppress(IndexError):
                    _idle.popleft().jobs.put(None)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.loop.call_soon_threadsafe(_deliver, job.future, result, error)
        return following


def _next() -> _Job | None:
    """The job that waits longest, if any does."""
    try:
        return _waiting.popleft() if _waiting else None
    except IndexError:  # another thread was faster
        return None


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if _waiting and _idle and (job := _next()):  # it came when the last thread had just looked for one
        _start(job)
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:  # means something of its own to an event loop
        future.set_exception(RuntimeError(f"the tool raised {describe_error(error)}"))


async def run_in_thread(
    function: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
) -> Result:
    """Call the function in a thread and wait for it; cancelling stops the waiting, not a thread that is at it."""
    job = _Job(partial(function, *arguments, **named))
    if _idle or len(_threads) < _AT_ONCE:
        _start(job)
    else:
        _waiting.append(job)
        job.loop.call_later(_MOMENT, _hurry, job)
    try:
        return await job.future
    except asyncio.CancelledError:
        with suppress(ValueError):
            _waiting.remove(job)
        raise


def _hurry(job: _Job) -> None:
    """Nobody took the job in a moment: those at work may be at it for long."""
    with suppress(ValueError):
        _waiting.remove(job)
        _start(job)


def _start(job: _Job) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.jobs.put(job)
