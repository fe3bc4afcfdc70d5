"""What the sandbox's tests share: a workspace with things outside of it, and ways to run a command in it."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

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

_NEIGHBOUR = """
import os, socket, sys
held = open(sys.argv[1], "w+"); held.write(os.environ["SECRET"]); held.flush(); os.unlink(sys.argv[1])
tcp = socket.create_server(("127.0.0.1", 0))
try: six = socket.create_server(("::1", 0), family=socket.AF_INET6)
except OSError: six = tcp
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0" + sys.argv[2]); abstract.listen()
path = socket.socket(socket.AF_UNIX); path.bind(sys.argv[3]); path.listen()
print(tcp.getsockname()[1], six.getsockname()[1], udp.getsockname()[1], flush=True)
sys.stdin.read()
"""


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
    path: str
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
        other = self.neighbour
        told = {
            "WORKSPACE": str(self.workspace),
            "OUTSIDE": str(self.outside),
            "TOOLS": str(self.tools),
            "WHERE": SECRET,
            "PID": str(other.pid),
            "TCP": str(other.tcp),
            "SIX": str(other.six),
            "UDP": str(other.udp),
            "ABSTRACT": other.abstract,
            "UNIX": other.path,
            "TEMPORARY": other.temporary,
            "SHARED": other.shared,
        }
        return Job(argv, self.workspace, env=told, bounds=bounds or Bounds(), network=network, read_only=(self.tools,))

    def python(self, code: str, bounds: Bounds | None = None) -> Job:
        return self.job(PYTHON, "-I", "-S", "-c", code, bounds=bounds)

    def shell(self, code: str, bounds: Bounds | None = None) -> Job:
        return self.job("/bin/sh", "-c", code, bounds=bounds)


async def collect(run: Run, job: Job) -> Ran:
    """Run it in one of the ways there are."""
    heard: list[bytes] = []
    async with asyncio.timeout(PATIENCE + job.bounds.wall_s):
        ended = await run(job, heard.append)
    return Ran(ended, b"".join(heard).decode(errors="replace"))


async def inside(job: Job) -> Ran:
    """Run it in the sandbox of this machine."""
    return await collect(run_in_sandbox, job)


async def behind_landlock(job: Job) -> Ran:
    """Run it behind the reduced walls."""
    return await collect(landlock.run_in_landlock, job)


async def on_host(job: Job) -> Ran:
    """Run it without walls."""
    return await collect(run_on_host, job)


async def plainly(job: Job) -> str:
    """Run it with nothing of ours around it, not even bounds; what it wrote."""
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


@pytest.fixture(scope="module")
def a_neighbour() -> Iterator[Neighbour]:
    folder = Path(tempfile.mkdtemp(prefix="neighbour-"))
    temporary = folder / "temporary"
    temporary.write_text(SECRET)
    shared = Path("/dev/shm", folder.name)
    shared.write_text(SECRET)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _NEIGHBOUR, folder / "held", folder.name, folder / "socket", SECRET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"SECRET": SECRET},
        cwd=folder,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    tcp, six, udp = map(int, process.stdout.readline().split())
    yield Neighbour(process.pid, tcp, six, udp, folder.name, str(folder / "socket"), str(temporary), str(shared))
    process.stdin.close()
    process.wait(PATIENCE)
    process.stdout.close()
    shared.unlink()
    shutil.rmtree(folder)


@pytest.fixture
def a_place(tmp_path: Path, a_neighbour: Neighbour) -> Place:
    return Place(tmp_path, a_neighbour)


def family_exists(family: int, kind: int, protocol: int) -> bool:
    try:
        socket.socket(family, kind, protocol).close()
    except OSError:
        return False
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody tells us of, looking again and again."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.01)
