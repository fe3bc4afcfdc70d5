"""The threads of plain functions: they are shared and kept, and never block a caller or the end of the process."""

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from tests.kit.sessions import PATIENCE
from treadle.workspace import worker_threads as threads
from treadle.workspace.worker_threads import run_in_thread


def list_workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "treadle-tool"}


@pytest.fixture
def settled_threads() -> None:
    """Give the threads of other tests time to become idle."""
    end = time.monotonic() + 10
    while list_workers() - {*threads._idle.copy()} and time.monotonic() < end:
        time.sleep(0.001)


@pytest.fixture
def no_idle_threads(settled_threads: None) -> Iterator[None]:
    kept = [*threads._idle]
    threads._idle.clear()
    yield
    threads._idle.extend(kept)


@pytest.mark.usefixtures("no_idle_threads")
async def test_a_thread_is_used_again() -> None:
    first = await run_in_thread(threading.current_thread)
    assert await run_in_thread(threading.current_thread) is first


async def test_a_thread_sees_the_context_of_its_caller() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    assert await run_in_thread(variable.get) == "set"


@pytest.mark.parametrize("kind", [StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_an_exception_that_would_stop_the_event_loop_is_only_an_error_of_the_tool(
    kind: type[BaseException],
) -> None:
    def fail() -> None:
        raise kind("enough")

    with pytest.raises(RuntimeError, match=f"the tool raised {kind.__name__}: enough"):
        await run_in_thread(fail)


@pytest.mark.usefixtures("no_idle_threads")
async def test_calls_do_not_wait_for_each_other_and_few_threads_are_kept() -> None:
    count = threads._MAX_IDLE + 6
    barrier = threading.Barrier(count, timeout=500)
    before = list_workers()
    await asyncio.gather(*(run_in_thread(barrier.wait) for _ in range(count)))
    assert len(threads._idle) == threads._MAX_IDLE
    spare = list_workers() - before - {*threads._idle}
    for one in spare:
        one.join(timeout=500)
    assert len(spare) <= 6 and not any(one.is_alive() for one in spare)


async def test_cancelling_stops_the_waiting_and_not_the_thread() -> None:
    release, ended = threading.Event(), threading.Event()

    def wait() -> None:
        release.wait()
        ended.set()

    task = asyncio.create_task(run_in_thread(wait))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await run_in_thread(ended.wait, timeout=60)


def test_a_tool_that_never_returns_does_not_keep_the_process_alive() -> None:
    script = """
import asyncio, threading
from treadle.workspace.worker_threads import run_in_thread

async def main():
    began = threading.Event()
    def never():
        began.set()
        threading.Event().wait()
    task = asyncio.create_task(run_in_thread(never))
    await run_in_thread(began.wait)
    task.cancel()

asyncio.run(main())
print("left")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.fixture
def no_threads(settled_threads: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without threads, as a new process does, and wait as long as needed for a busy one."""
    monkeypatch.setattr(threads, "_threads", set())
    monkeypatch.setattr(threads, "_idle", deque())
    monkeypatch.setattr(threads, "_waiting", deque())
    monkeypatch.setattr(threads, "_PATIENCE", 500)
    yield
    for one in [*threads._threads]:
        one.jobs.put(None)
        one.join(PATIENCE)


@pytest.mark.usefixtures("no_threads")
async def test_many_short_calls_at_once_share_a_few_threads() -> None:
    used = await asyncio.gather(*(run_in_thread(threading.current_thread) for _ in range(300)))
    assert len(set(used)) <= threads._MAX_SHARED


@pytest.mark.usefixtures("no_threads")
async def test_a_call_that_is_cancelled_before_a_thread_took_it_never_runs() -> None:
    began, release, ran = threading.Event(), threading.Event(), threading.Event()
    barrier = threading.Barrier(threads._MAX_SHARED, action=began.set, timeout=500)

    def wait() -> None:
        barrier.wait()
        release.wait(500)

    busy = [asyncio.create_task(run_in_thread(wait)) for _ in range(barrier.parties)]
    assert await asyncio.to_thread(began.wait, 500)
    late = asyncio.create_task(run_in_thread(ran.set))
    await asyncio.sleep(0)
    waiting = len(threads._waiting)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    release.set()
    await asyncio.gather(*busy)
    assert waiting == 1 and not threads._waiting and not ran.is_set()


@pytest.mark.usefixtures("no_threads")
def test_a_thread_whose_loop_ended_before_its_result_came_serves_the_next_one() -> None:
    began, release, ran = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        release.wait(500)

    async def leave_thread() -> None:
        task = asyncio.create_task(run_in_thread(wait))
        assert await asyncio.to_thread(began.wait, 500)
        task.cancel()

    asyncio.run(leave_thread())
    release.set()
    (thread,) = threads._threads
    while thread not in threads._idle:
        thread.join(0.01)
    asyncio.run(run_in_thread(ran.set))
    assert ran.is_set() and threads._threads == {thread}
