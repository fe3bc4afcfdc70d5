"""Scopes: a stop or a time limit breaks work off, and nothing else does."""

import asyncio
from typing import Any

import pytest

from treadle.engine.cancel_scope import CancelScope


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def test_a_stopped_scope_raises_and_the_task_goes_on() -> None:
    scope = CancelScope()
    asyncio.get_running_loop().call_soon(scope.stop)
    with pytest.raises(TimeoutError), scope.limit_to(None):
        await wait_forever()
    task = asyncio.current_task()
    assert scope.was_stopped and not scope.is_active
    assert task is not None and not task.cancelling()


async def test_the_timer_of_an_earlier_use_stops_nothing_later() -> None:
    scope, later = CancelScope(), asyncio.Event()
    with scope.limit_to(0.01):
        pass
    asyncio.get_running_loop().call_later(0.05, later.set)
    with scope.limit_to(3600):
        await later.wait()
    assert not scope.was_stopped
    scope.close()


def enter(scope: CancelScope) -> None:
    with scope.limit_to(3600):
        pass


def enter_and_close(scope: CancelScope) -> None:
    enter(scope)
    scope.close()


@pytest.mark.parametrize("prepare", [lambda scope: None, enter, enter_and_close], ids=["new", "used", "closed"])
async def test_the_end_of_its_time_stops_a_scope_also_when_it_is_used_again(prepare: Any) -> None:
    scope = CancelScope()
    prepare(scope)
    with pytest.raises(TimeoutError), scope.limit_to(0.01):
        await wait_forever()
    assert scope.was_stopped
    scope.close()


async def test_a_stop_before_the_scope_is_entered_has_no_effect() -> None:
    scope = CancelScope()
    scope.stop()
    with scope.limit_to(None):
        await asyncio.sleep(0)
    assert not scope.was_stopped


async def test_a_cancellation_of_the_task_is_passed_on_also_when_the_scope_was_stopped() -> None:
    scope, ended = CancelScope(), list[str]()

    async def work() -> None:
        try:
            with scope.limit_to(None):
                await wait_forever()
        except TimeoutError:
            ended.append("stopped")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    scope.stop()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]


async def test_of_two_nested_scopes_the_stopped_one_raises() -> None:
    outer, inner = CancelScope(), CancelScope()
    asyncio.get_running_loop().call_soon(outer.stop)
    with pytest.raises(TimeoutError), outer.limit_to(None), inner.limit_to(3600):
        await wait_forever()
    assert outer.was_stopped and not inner.was_stopped
    inner.close()


async def test_the_time_stands_still_while_a_scope_is_paused() -> None:
    scope, stopped = CancelScope(), list[bool]()

    async def ask_twice() -> None:
        with scope.limit_to(0.02):
            with scope.pause():
                with scope.pause():
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.05)
            stopped.append(scope.was_stopped)
            await wait_forever()

    with pytest.raises(TimeoutError):
        await ask_twice()
    assert stopped == [False]
    scope.close()
