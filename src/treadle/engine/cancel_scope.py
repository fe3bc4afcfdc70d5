"""Work of one task that can be broken off: by whoever calls `stop`, or when its time is over."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class CancelScope:
    """Use it as `with scope.lasting(seconds):`; what is broken off raises `TimeoutError`, and `stopped` says so.

    It does what `asyncio.timeout` does, but can be entered again and again, and keeps its timer from one time to
    the next: a step enters three, and hardly one of them ever runs out.
    """

    __slots__ = ("_before", "_deadline", "_loop", "_task", "_timer", "was_stopped")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._before = 0
        self.was_stopped = False

    @property
    def is_active(self) -> bool:
        """Whether there is anything to stop."""
        return self._task is not None

    def limit_to(self, seconds: float | None) -> CancelScope:
        """For so long at most; None has no end of its own."""
        self._deadline = None if seconds is None else self._loop.time() + seconds
        return self

    def __enter__(self) -> None:
        task = self._task = asyncio.current_task(self._loop)
        assert task is not None
        self._before, self.was_stopped = task.cancelling(), False
        if self._deadline is not None and (self._timer is None or self._timer.when() > self._deadline):
            self._set_timer(self._deadline)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        # One more cancellation than ours is somebody else's, and goes on.
        if self.was_stopped and task is not None and task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def stop(self) -> None:
        """Break off what is under way, if anything is."""
        if self._task is not None and not self.was_stopped:
            self.was_stopped = True
            self._task.cancel()

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, when: float) -> None:
        self.close()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._task is None or self._deadline is None:
            return
        if self._loop.time() >= self._deadline:
            self.stop()
        else:
            self._set_timer(self._deadline)
