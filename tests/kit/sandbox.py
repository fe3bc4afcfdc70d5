"""A workspace with files and a process outside of it, and ways to run a command in it."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import asdict

from treadle.sandbox import landlock
from treadle.sandbox.backend import probe, run_in_sandbox, run_on_host
from treadle.sandbox.base import Bounds, CommandResult, Job, OnOutput

PYTHON = "/usr/bin/python3"
PATIENCE = 60.0

needs_bubblewrap = pytest.mark.skipif(
    probe().level != "bubblewrap", reason=f"NOT TESTED, the full sandbox does not work here: {probe().why}"
)
needs_landlock = pytest.mark.skipif(
    landlock.read_landlock_version() < landlock.OLDEST_VERSION,
    reason="NOT TESTED, this kernel has no Landlock that is new enough",
)

Run = Callable[[Job, OnOutput], Awaitable[CommandResult]]
EVERYWHERE = [
    pytest.param(run_in_sandbox, id="bubblewrap", marks=needs_bubblewrap),
    pytest.param(landlock.run_in_landlock, id="landlock", marks=needs_landlock),
    pytest.param(run_on_host, id="host"),
]

SECRET = "the-secret-of-somebody-else"


class Ran(Struct):
    """How a command ended and what it wrote."""

    ended: CommandResult
    output: str


class Neighbour(Struct):
    """Another program of the same user, and where it can be reached."""

    pid: int
    tcp: int
    six: int
    udp: int
    abstract: str
    unix: str
    temporary: str
    shared: str


class Place:
    """A workspace, a folder beside it with a key and a file to be spoiled, and a neighbour."""

    def __init__(self, folder: Path, neighbour: Neighbour) -> None:
        self.neighbour = neighbour
        self.workspace = folder / "workspace"
        self.outside = folder / "outside"
        self.tools = folder / "tools"
        for made in (self.workspace, self.outside, self.tools):
            made.mkdir()
        self.key = self.outside / "key"
        self.key.write_text(SECRET)
        self.victim = self.outside / "victim"
        self.victim.write_text("whole")

    def job(self, *argv: str, bounds: Bounds | None = None, network: bool = False) -> Job:
        folders = {"WORKSPACE": self.workspace, "OUTSIDE": self.outside, "TOOLS": self.tools, "WHERE": SECRET}
        env = {name: str(value) for name, value in folders.items()}
        env |= {name.upper(): str(value) for name, value in asdict(self.neighbour).items()}
        return Job(argv, self.workspace, env=env, bounds=bounds or Bounds(), network=network, read_only=(self.tools,))

    def python(self, code: str, bounds: Bounds | None = None) -> Job:
        return self.job(PYTHON, "-I", "-S", "-c", code, bounds=bounds)

    def shell(self, code: str, bounds: Bounds | None = None) -> Job:
        return self.job("/bin/sh", "-c", code, bounds=bounds)


async def collect(run: Run, job: Job) -> Ran:
    """Run a job in one of the backends."""
    output: list[bytes] = []
    async with asyncio.timeout(PATIENCE + job.bounds.wall_s):
        ended = await run(job, output.append)
    return Ran(ended, b"".join(output).decode(errors="replace"))


inside = partial(collect, run_in_sandbox)
behind_landlock = partial(collect, landlock.run_in_landlock)
on_host = partial(collect, run_on_host)


async def plainly(job: Job) -> str:
    """Run it as a plain process without any bounds; what it wrote."""
    process = await asyncio.create_subprocess_exec(
        *job.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=job.workspace,
        env={**os.environ, **job.env},
    )
    async with asyncio.timeout(PATIENCE):
        return (await process.communicate())[0].decode(errors="replace")


def family_exists(family: int, kind: int, protocol: int) -> bool:
    try:
        socket.socket(family, kind, protocol).close()
    except OSError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


def make_deep_folder(top: Path, depth: int, with_git: tuple[int, ...] = ()) -> None:
    """Make folders `d/d/d/…` below a folder, deeper than a path can be long, some of them with a `.git`."""
    here = os.open(top, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
        if number in with_git:
            os.mkdir(".git", dir_fd=here)
    os.close(here)
