"""Plain functions off the event loop, in daemon threads: one that never returns cannot keep the process alive.

Not a general executor: no queue, no limit but the number of calls under way.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

_Job = tuple[
    Callable[..., Any],
    Mapping[str, object],
    contextvars.Context,
    asyncio.AbstractEventLoop,
    "asyncio.Future[Any]",
]
_idle: deque[_Worker] = deque()
_KEPT = 64


class _Worker(Thread):
    """A thread that takes one job after another, and is idle in between."""

    def __init__(self) -> None:
        super().__init__(name="treadle-tool", daemon=True)
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while job := self.jobs.get():
            function, values, context, loop, future = job
            result, error = None, None
            try:
                result = context.run(function, **values)
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_deliver, self, future, result, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del job, function, values, context, future, result, error


def _deliver(worker: _Worker, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if len(_idle) < _KEPT:
        _idle.append(worker)
    else:
        worker.jobs.put(None)
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:  # means something of its own to an event loop
        future.set_exception(RuntimeError(f"the tool raised {type(error).__name__}: {error}"))


async def run_in_thread(function: Callable[..., Any], values: Mapping[str, object]) -> Any:
    """Call the function in a thread and wait for it; cancelling stops the waiting, not the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    if not _idle:
        await asyncio.sleep(0)  # one may just be ready: many short calls at once need few threads
    worker = _idle.pop() if _idle else _Worker()
    worker.jobs.put((function, values, contextvars.copy_context(), loop, future))
    return await future
