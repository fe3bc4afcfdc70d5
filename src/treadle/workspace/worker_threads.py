"""Threads for blocking functions. They are daemons, so a function that never returns cannot keep the process alive.

This is not a general executor: no call waits long for another. A few threads serve many short calls. A call that
finds all of them busy for more than a moment gets a thread of its own.
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

P = ParamSpec("P")
R = TypeVar("R")


class _Job:
    """One call, and the future that its caller awaits."""

    __slots__ = ("context", "function", "future", "loop")

    def __init__(self, function: Callable[[], object]) -> None:
        self.function, self.context = function, contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()


_MAX_SHARED = 8
_MAX_IDLE = 64
_PATIENCE = 0.02
_idle: deque[_Worker] = deque()
_waiting: deque[_Job] = deque()
_threads: set[_Worker] = set()


class _Worker(Thread):
    """A thread that runs one job after another, and is idle when no job waits."""

    def __init__(self) -> None:
        super().__init__(name="treadle-tool", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        _threads.add(self)
        self.start()

    def run(self) -> None:
        while job := self.jobs.get():
            while job is not None:
                job = self._run_job(job)  # nothing of a job is held while the thread is idle
        _threads.discard(self)

    def _run_job(self, job: _Job) -> _Job | None:
        """Run a job, deliver its result, and return the next job that waits."""
        result, error = None, None
        try:
            result = job.context.run(job.function)
        except BaseException as raised:
            error = raised
        following = _take_waiting()
        if following is None:  # here and not in the loop, which may end before it gets the result
            _idle.append(self)
            if len(_idle) > _MAX_IDLE:
                with suppress(IndexError):
                    _idle.popleft().jobs.put(None)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            job.loop.call_soon_threadsafe(_deliver, job.future, result, error)
        return following


def _take_waiting() -> _Job | None:
    """Take the job that has waited longest, if any."""
    try:
        return _waiting.popleft() if _waiting else None
    except IndexError:  # another thread was faster
        return None


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if _waiting and _idle and (job := _take_waiting()):  # it arrived just after the last thread had looked for one
        _start(job)
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(contain_exception(error))


def contain_exception(error: BaseException) -> Exception:
    """Return the exception, or an ordinary one in place of one that has a special meaning to an event loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the tool raised {describe_error(error)}")


async def run_in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a thread and await its result. Cancelling stops the waiting, not a thread that has begun."""
    job = _Job(partial(function, *args, **kwargs))
    if _idle or len(_threads) < _MAX_SHARED:
        _start(job)
    else:
        _waiting.append(job)
        job.loop.call_later(_PATIENCE, _start_if_waiting, job)
    try:
        return await job.future
    except asyncio.CancelledError:
        with suppress(ValueError):
            _waiting.remove(job)
        raise


def _start_if_waiting(job: _Job) -> None:
    """Start a job that no thread took in time: the busy ones may take long."""
    with suppress(ValueError):
        _waiting.remove(job)
        _start(job)


def _start(job: _Job) -> None:
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
    worker.jobs.put(job)
