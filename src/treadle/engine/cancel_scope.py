"""A part of a task that can be cancelled: by a call of `stop`, or when its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


class CancelScope:
    """Use it as `with scope.limit_to(seconds):`. A cancelled block raises `TimeoutError`, and `was_stopped` is true.

    It does what `asyncio.timeout` does, but can be entered many times, and keeps its timer in between. A step enters
    three scopes, and hardly any of them runs out.
    """

    __slots__ = (
        "_deadline",
        "_earlier_cancels",
        "_loop",
        "_paused_at",
        "_pauses",
        "_task",
        "_timer",
        "_timer_at",
        "was_stopped",
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # uvloop's timers of no time do not know it
        self._deadline: float | None = None
        self._earlier_cancels = 0
        self._pauses, self._paused_at = 0, 0.0
        self.was_stopped = False

    @property
    def is_active(self) -> bool:
        """Whether a task is inside the block."""
        return self._task is not None

    def limit_to(self, seconds: float | None) -> CancelScope:
        """Set how long the next block may take. None sets no limit."""
        self._deadline = None if seconds is None else self._loop.time() + seconds
        return self

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task(self._loop)
        assert task is not None
        self._earlier_cancels, self.was_stopped = task.cancelling(), False
        if self._deadline is not None and (self._timer is None or self._timer_at > self._deadline):
            self._set_timer(self._deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        # A further cancellation was requested by somebody else, and is passed on.
        if (
            self.was_stopped
            and task is not None
            and task.uncancel() <= self._earlier_cancels
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def stop(self) -> None:
        """Cancel the task that is inside the block, if there is one."""
        if self._task is not None and not self.was_stopped:
            self.was_stopped = True
            self._task.cancel()

    @contextmanager
    def pause(self) -> Generator[None]:
        """Stop the time during a block inside of this one, such as one that waits for a person."""
        if not self._pauses:
            self._paused_at = self._loop.time()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses and self._task is not None and self._deadline is not None:
                self._deadline += self._loop.time() - self._paused_at
                self._set_timer(self._deadline)

    def close(self) -> None:
        """Release the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        self.close()
        self._timer, self._timer_at = self._loop.call_at(when, self._check_deadline), when

    def _check_deadline(self) -> None:
        self._timer = None
        if self._task is None or self._deadline is None or self._pauses:
            return
        if self._loop.time() >= self._deadline:
            self.stop()
        else:
            self._set_timer(self._deadline)
