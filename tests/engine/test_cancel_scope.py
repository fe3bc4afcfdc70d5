"""Scopes: work that is broken off by somebody or by its time, and nothing else."""

import asyncio

import pytest

from treadle.engine.cancel_scope import Scope


async def forever() -> None:
    await asyncio.Event().wait()


async def test_what_is_stopped_raises_and_the_task_goes_on() -> None:
    scope = Scope()
    asyncio.get_running_loop().call_soon(scope.stop)
    with pytest.raises(TimeoutError), scope.lasting(None):
        await forever()
    task = asyncio.current_task()
    assert scope.stopped and not scope.entered
    assert task is not None and not task.cancelling()


async def test_time_that_is_over_stops_it() -> None:
    scope = Scope()
    with pytest.raises(TimeoutError), scope.lasting(0.01):
        await forever()
    assert scope.stopped


async def test_it_can_be_entered_again_for_a_shorter_time() -> None:
    scope = Scope()
    with scope.lasting(3600):
        pass
    with pytest.raises(TimeoutError), scope.lasting(0.01):
        await forever()
    scope.close()


async def test_the_timer_of_an_earlier_time_stops_nothing_later() -> None:
    scope, later = Scope(), asyncio.Event()
    with scope.lasting(0.01):
        pass
    asyncio.get_running_loop().call_later(0.05, later.set)
    with scope.lasting(3600):
        await later.wait()
    assert not scope.stopped
    scope.close()


async def test_a_closed_one_keeps_time_again() -> None:
    scope = Scope()
    with scope.lasting(3600):
        pass
    scope.close()
    with pytest.raises(TimeoutError), scope.lasting(0.01):
        await forever()


async def test_a_stop_that_finds_nothing_under_way_is_none() -> None:
    scope = Scope()
    scope.stop()
    with scope.lasting(None):
        await asyncio.sleep(0)
    assert not scope.stopped


async def test_somebody_elses_cancellation_is_passed_on_also_when_it_was_stopped() -> None:
    scope, ended = Scope(), list[str]()

    async def work() -> None:
        try:
            with scope.lasting(None):
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
    outer, inner = Scope(), Scope()
    asyncio.get_running_loop().call_soon(outer.stop)
    with pytest.raises(TimeoutError), outer.lasting(None), inner.lasting(3600):
        await forever()
    assert outer.stopped and not inner.stopped
    inner.close()
