"""Scopes: work that is broken off by somebody or by its time, and nothing else."""

import asyncio

import pytest

from treadle.engine.cancel_scope import CancelScope


async def forever() -> None:
    await asyncio.Event().wait()


async def test_what_is_stopped_raises_and_the_task_goes_on() -> None:
    scope = CancelScope()
    asyncio.get_running_loop().call_soon(scope.stop)
    with pytest.raises(TimeoutError), scope.limit_to(None):
        await forever()
    task = asyncio.current_task()
    assert scope.was_stopped and not scope.is_active
    assert task is not None and not task.cancelling()


async def test_time_that_is_over_stops_it() -> None:
    scope = CancelScope()
    with pytest.raises(TimeoutError), scope.limit_to(0.01):
        await forever()
    assert scope.was_stopped


async def test_it_can_be_entered_again_for_a_shorter_time() -> None:
    scope = CancelScope()
    with scope.limit_to(3600):
        pass
    with pytest.raises(TimeoutError), scope.limit_to(0.01):
        await forever()
    scope.close()


async def test_the_timer_of_an_earlier_time_stops_nothing_later() -> None:
    scope, later = CancelScope(), asyncio.Event()
    with scope.limit_to(0.01):
        pass
    asyncio.get_running_loop().call_later(0.05, later.set)
    with scope.limit_to(3600):
        await later.wait()
    assert not scope.was_stopped
    scope.close()


async def test_a_closed_one_keeps_time_again() -> None:
    scope = CancelScope()
    with scope.limit_to(3600):
        pass
    scope.close()
    with pytest.raises(TimeoutError), scope.limit_to(0.01):
        await forever()


async def test_a_stop_that_finds_nothing_under_way_is_none() -> None:
    scope = CancelScope()
    scope.stop()
    with scope.limit_to(None):
        await asyncio.sleep(0)
    assert not scope.was_stopped


async def test_somebody_elses_cancellation_is_passed_on_also_when_it_was_stopped() -> None:
    scope, ended = CancelScope(), list[str]()

    async def work() -> None:
        try:
            with scope.limit_to(None):
                await forever()
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


async def test_of_two_in_each_other_the_one_that_was_stopped_raises() -> None:
    outer, inner = CancelScope(), CancelScope()
    asyncio.get_running_loop().call_soon(outer.stop)
    with pytest.raises(TimeoutError), outer.limit_to(None), inner.limit_to(3600):
        await forever()
    assert outer.was_stopped and not inner.was_stopped
    inner.close()
