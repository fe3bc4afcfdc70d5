"""From start to end: nothing of a command outlives it, however it ends, and nothing is left behind."""

import asyncio
import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.sandbox import (
    EVERYWHERE,
    PATIENCE,
    PYTHON,
    Place,
    Run,
    collect,
    inside,
    needs_bubblewrap,
    plainly,
    until,
)
from tests.kit.sessions import advance_loop_clock
from treadle.errors import BadInput
from treadle.sandbox import bubblewrap, landlock
from treadle.sandbox.backend import run_in_sandbox, run_on_host
from treadle.sandbox.base import Bounds, Job, SandboxUnavailable
from treadle.sandbox.guarded_paths import build_lock_name
from treadle.sandbox.process import wait_until_readable
from treadle.sandbox.resource_usage import find_descendants
from treadle.sandbox.runtime_folder import make_runtime_folder

LONG = f"600.{os.getpid()}"
"""Seconds that nobody else sleeps: other tests run beside these."""

# A daemon as in the book: two forks, a session of its own, nothing open; it holds a lock as its sign of life.
DAEMON = """
import fcntl, os, sys, time
def daemon(path):
    if os.fork(): return
    os.setsid()
    if os.fork(): os._exit(0)
    os.closerange(0, 3)
    lock = open(path, "w"); fcntl.flock(lock, fcntl.LOCK_EX)
    open(path + ".ready", "w").close()
    time.sleep(600)
for name in sys.argv[1:]: daemon(name)
while not all(os.path.exists(name + ".ready") for name in sys.argv[1:]): time.sleep(0.01)
"""


def is_alive(lock: Path) -> bool:
    """Whether somebody still holds the lock."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def daemons(place: Place, then: str, bounds: Bounds | None = None) -> tuple[Job, list[Path]]:
    folder = place.workspace / "locks"
    folder.mkdir()
    locks = [folder / "a", folder / "b"]
    return place.job(PYTHON, "-I", "-S", "-c", DAEMON + then, *map(str, locks), bounds=bounds), locks


def ready(locks: list[Path]) -> bool:
    return all(Path(f"{lock}.ready").exists() for lock in locks)


async def test_a_daemon_outlives_a_plain_command(place: Place) -> None:
    job, locks = daemons(place, "")
    await plainly(job)
    assert [is_alive(lock) for lock in locks] == [True, True]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if any(holds(int(pid), lock) for lock in locks):
            os.kill(int(pid), signal.SIGKILL)
    await until(lambda: not any(map(is_alive, locks)))


def holds(pid: int, path: Path) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{name}") == str(path) for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_daemons_end_with_their_command(run: Run, place: Place) -> None:
    job, locks = daemons(place, "print('done')")
    assert (await collect(run, job)).output == "done\n"
    assert ready(locks) and [is_alive(lock) for lock in locks] == [False, False]


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_cancelling_kills_daemons_too_and_returns_when_they_are_gone(run: Run, place: Place) -> None:
    job, locks = daemons(place, "time.sleep(600)")
    task = asyncio.ensure_future(collect(run, job))
    await until(lambda: ready(locks))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [is_alive(lock) for lock in locks] == [False, False]


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_the_wall_clock_kills_daemons_too(run: Run, place: Place) -> None:
    job, locks = daemons(place, "time.sleep(600)", Bounds(wall_s=300))
    task = asyncio.ensure_future(collect(run, job))
    await until(lambda: ready(locks))
    advance_loop_clock(300)
    assert (await task).ended.reason == "wall"
    assert [is_alive(lock) for lock in locks] == [False, False]


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_a_command_that_ignores_every_signal_is_killed(run: Run, place: Place) -> None:
    code = (
        "import signal, time\nfor n in range(1, 32):\n    if n not in (9, 19, 17): signal.signal(n, signal.SIG_IGN)\n"
    )
    job = place.python(code + "print('deaf', flush=True); time.sleep(600)", Bounds(wall_s=300))
    heard = asyncio.Event()
    task = asyncio.ensure_future(run(job, lambda data: heard.set()))
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    advance_loop_clock(300)
    assert (await task).reason == "wall"


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_cancelling_at_any_moment_leaves_nothing_behind(run: Run, place: Place) -> None:
    await collect(run, place.shell("true"))
    before = list_leftovers(place)
    for step in range(12):
        task = asyncio.ensure_future(collect(run, place.shell(f"sleep {LONG}")))
        for _ in range(step):
            await asyncio.sleep(0.003)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await check_nothing_more(place, before)


SLOW = """#!/bin/sh
sleep {long} &
echo $! > {told}
wait
"""


@needs_bubblewrap
async def test_cancelling_while_the_sandbox_is_set_up_ends_what_bubblewrap_has_started(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child is not bound to it from the first moment on, and waits for it for ever when it is killed before."""
    await inside(place.shell("true"))  # by which it is known what bubblewrap can do
    slow, told = place.outside / "bwrap", place.outside / "told"
    slow.write_text(SLOW.format(long=LONG, told=told))
    slow.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "BWRAP", str(slow))
    task = asyncio.ensure_future(inside(place.shell("true")))
    await until(lambda: told.exists() and told.read_text().endswith("\n"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not sleeps(int(told.read_text())))


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_many_commands_leave_no_process_descriptor_or_file_behind(run: Run, place: Place) -> None:
    await collect(run, place.shell("true"))
    before = list_leftovers(place)
    for _ in range(10):
        results = await asyncio.gather(
            *(collect(run, place.shell(f"(setsid sleep {LONG} &); echo {n}")) for n in range(2))
        )
        assert [result.output for result in results] == ["0\n", "1\n"]
    await check_nothing_more(place, before)


@pytest.mark.soak
@pytest.mark.parametrize("run", EVERYWHERE)
async def test_a_thousand_commands_leave_nothing_behind(run: Run, place: Place) -> None:
    await collect(run, place.shell("true"))
    before = list_leftovers(place)
    for _ in range(500):
        await asyncio.gather(
            *(collect(run, place.shell(f"(setsid sleep {LONG} &); mkdir -p d; touch d/x")) for _ in range(2))
        )
    (place.workspace / "d/x").unlink(missing_ok=True)
    await check_nothing_more(place, before)


async def check_nothing_more(place: Place, before: dict[str, set[str]]) -> None:
    """Nothing has come to stay; the kernel, and a thread that still looks at the workspace, are given their time."""
    end = time.monotonic() + PATIENCE
    while more := {kind: found - before[kind] for kind, found in list_leftovers(place).items() if found - before[kind]}:
        assert time.monotonic() < end, more
        await asyncio.sleep(0.05)


def list_leftovers(place: Place) -> dict[str, set[str]]:
    """Our children that live, what we hold open, and every file that a command could have left."""
    gc.collect()
    children = subprocess.run(
        ["ps", "--no-headers", "-o", "pid,args", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    return {
        "children": {line for line in children if " ps " not in line and str(place.neighbour.pid) not in line},
        "sleepers": {name for name in os.listdir("/proc") if name.isdigit() and sleeps(int(name))},
        "descriptors": set(os.listdir("/proc/self/fd")),
        "locks": {name for name in os.listdir(make_runtime_folder()) if name == build_lock_name(place.workspace)},
        "workspace": {name for name in os.listdir(place.workspace) if name != "d"},
    }


def sleeps(pid: int) -> bool:
    """Whether it is to sleep so long, or has only that to wait for."""
    try:
        return LONG.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("name", [pytest.param("run_in_sandbox", marks=needs_bubblewrap), "run_on_host"])
async def test_when_we_are_killed_the_command_dies_with_us(name: str, place: Place) -> None:
    job, locks = daemons(place, "time.sleep(600)")
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom treadle.sandbox.base import Job\n"
        f"from treadle.sandbox.backend import {name} as run\n"
        "asyncio.run(run(Job(tuple(sys.argv[2:]), Path(sys.argv[1])), print))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, place.workspace, *job.argv)
    await until(lambda: ready(locks))
    process.kill()
    await process.wait()
    await until(lambda: not any(map(is_alive, locks)))
    if name == "run_in_sandbox":  # the next command in the same workspace takes the placeholders away that were left
        await inside(place.shell("true"))
    assert sorted(os.listdir(place.workspace)) == ["locks"]


WAITING = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in the background may have it ignored
from contextlib import asynccontextmanager
from pathlib import Path
from treadle.sandbox import bubblewrap
from treadle.sandbox.base import Job
@asynccontextmanager
async def never(pid, job):
    Path("waiting").touch()
    await asyncio.Event().wait()
    yield
asyncio.run(bubblewrap.run_in_bubblewrap(Job(("touch", "ran"), Path.cwd()), print, never))
"""


@needs_bubblewrap
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_a_command_that_was_not_let_go_yet_never_runs(number: signal.Signals, place: Place) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WAITING, cwd=place.workspace, stderr=subprocess.DEVNULL
    )
    await until((place.workspace / "waiting").exists)
    (bwrap,) = find_descendants(process.pid)[:1]
    inner = [os.pidfd_open(pid) for pid in find_descendants(bwrap)]
    process.send_signal(number)
    await process.wait()
    for handle in inner:
        async with asyncio.timeout(PATIENCE):
            await wait_until_readable(handle)
        os.close(handle)
    assert len(inner) == 2
    await inside(place.shell("true"))  # takes the placeholders away that a killed process left
    assert os.listdir(place.workspace) == ["waiting"]


@needs_bubblewrap
async def test_a_sandbox_that_cannot_be_set_up_is_an_error_and_nothing_runs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = bubblewrap.build_arguments
    monkeypatch.setattr(bubblewrap, "build_arguments", lambda plan: [*real(plan), "--ro-bind", "/nonexistent", "/x"])
    heard: list[bytes] = []
    with pytest.raises(SandboxUnavailable, match=r"was not run: bwrap: .*/nonexistent"):
        await run_in_sandbox(place.job("touch", "ran"), heard.append)
    assert heard == [] and os.listdir(place.workspace) == []


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_output_comes_while_the_command_runs(run: Run, place: Place) -> None:
    (place.workspace / "d").mkdir()
    pieces: list[bytes] = []

    def take(data: bytes) -> None:
        pieces.append(data)
        (place.workspace / "d/go").touch()

    job = place.shell("echo first; while ! test -e d/go; do sleep 0.01; done; echo last")
    async with asyncio.timeout(PATIENCE):
        ended = await run(job, take)
    assert b"".join(pieces) == b"first\nlast\n" and len(pieces) > 1 and ended.output_bytes == 11


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_a_listener_that_fails_ends_the_command(run: Run, place: Place) -> None:
    def fail(data: bytes) -> None:
        raise ValueError("cannot take it")

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError, match="cannot take it"):
            await run(place.shell("echo first; sleep 600"), fail)


@pytest.mark.parametrize("run", EVERYWHERE)
@pytest.mark.parametrize(("size", "reason"), [(1000, "exited"), (1001, "output")])
async def test_output_is_cut_at_its_bound_and_said(run: Run, size: int, reason: str, place: Place) -> None:
    ran = await collect(run, place.python(f"print('x' * {size}, end='')", Bounds(output_bytes=1000)))
    assert ran.output == "x" * 1000 and (ran.ended.reason, ran.ended.output_bytes) == (reason, 1000), ran


INHERITED = """
import os, sys
print(repr(sys.stdin.read()))
try: os.open('/dev/tty', os.O_RDWR); print('terminal')
except OSError: print('none')
print([n for n in map(int, os.listdir('/proc/self/fd')) if n > 2 and os.path.exists(f'/proc/self/fd/{n}')])
"""


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_a_command_has_no_input_no_terminal_and_no_descriptor_of_ours(run: Run, place: Place) -> None:
    assert (await collect(run, place.python(INHERITED))).output == "''\nnone\n[]\n"


@pytest.mark.parametrize("run", EVERYWHERE)
async def test_no_secret_of_ours_is_in_the_environment(run: Run, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "a-canary")
    ran = await collect(run, Job(("/usr/bin/env",), place.workspace, env={"MINE": "given"}))
    assert "a-canary" not in ran.output and "MINE=given" in ran.output
    assert len(ran.output.splitlines()) < 45


@pytest.mark.parametrize("run", EVERYWHERE)
@pytest.mark.parametrize(
    "job",
    [
        Job((), Path("/work")),
        Job(("a\0b",), Path("/work")),
        Job(("echo", "x" * 200_000), Path("/work")),
        Job(("true",), Path("/work"), env={"": "x"}),
        Job(("true",), Path("/work"), env={"A=B": "x"}),
    ],
)
async def test_a_command_that_cannot_be_told_is_refused(run: Run, job: Job) -> None:
    if run is landlock.run_in_landlock:
        run = run_in_sandbox
    with pytest.raises(BadInput, match="Nothing was run"):
        await collect(run, job)


async def test_a_command_on_the_host_may_remove_its_own_workspace(place: Place) -> None:
    job = place.shell('rm -rf "$WORKSPACE"; sleep 0.4; echo done', Bounds(wall_s=20))
    ran = await collect(run_on_host, job)
    assert ran.output == "done\n" and ran.ended.code == 0 and not place.workspace.exists()


def test_the_module_keeps_to_the_port() -> None:
    import inspect

    from treadle.sandbox import backend as run
    from treadle.sandbox.base import Sandbox

    for name in ("probe", "run_in_sandbox", "run_on_host"):
        wanted = list(inspect.signature(getattr(Sandbox, name)).parameters)[1:]
        assert list(inspect.signature(getattr(run, name)).parameters) == wanted
