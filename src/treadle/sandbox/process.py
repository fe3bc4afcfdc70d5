"""One started command, followed to its end: output, wall clock, memory, processes and disk; then all of it is gone.

How it was started and how its tree is killed is each back-end's own.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from treadle.sandbox.base import Bounds, CommandResult, EndReason, OnOutput
from treadle.sandbox.resource_usage import DiskWatch, measure_tree

_LOOK_EVERY = 0.1
_MEGABYTE = 1024 * 1024
_CHUNK = 65536

Result = TypeVar("Result")


class ProcessTree(Struct, frozen=True):
    """The processes of a command: all are below `root`, `kill` ends them, and all `handles` are readable then."""

    root: int
    kill: Callable[[], None]
    handles: tuple[int, ...]


class CommandOutput:
    """The merged output of a process, read as it comes. Until `open`, it is kept for a message of our own."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.total = 0
        self.head = b""
        self.failure: Exception | None = None
        self.is_cut = False
        self._ended = False
        self._news = asyncio.Event()
        self._descriptor = descriptor
        self._limit = limit
        self._on_output: OnOutput | None = None
        self._on_excess: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    async def wait_for_mark(self, mark: bytes) -> bool:
        """Wait for the mark that comes last before the command's own output; False when the output ends without."""
        while not self.head.endswith(mark):
            if self._ended:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def forward_to(self, on_output: OnOutput, on_excess: Callable[[], None]) -> None:
        """From now on output is the command's own."""
        self._on_output, self._on_excess = on_output, on_excess

    def drain(self) -> None:
        """Take what is left, once nobody can write any more."""
        while self._read():
            pass

    def stop(self) -> None:
        """Read no more; the descriptor may be closed then."""
        self._loop.remove_reader(self._descriptor)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self._news.set()
        if not data:
            self._ended = True
            self._loop.remove_reader(self._descriptor)
            return False
        if self._on_output is None or self._on_excess is None:
            self.head += data
        else:
            self._pass_on(data[: self._limit - self.total], self._on_output)
            self.is_cut = self.is_cut or len(data) > self._limit - self.total
            self.total += len(data[: self._limit - self.total])
            if self.is_cut or self.failure is not None:
                self._on_excess()
        return True

    def _pass_on(self, data: bytes, on_output: OnOutput) -> None:
        """What a listener raises ends the command, and is raised where it was started."""
        try:
            if data and self.failure is None:
                on_output(data)
        except Exception as error:
            self.failure = error


class ProcessFollower:
    """Follow a process until it ends or goes over a bound, and leave nothing of it behind."""

    def __init__(
        self, process: subprocess.Popen[bytes], tree: ProcessTree, bounds: Bounds, folders: tuple[Path, ...]
    ) -> None:
        self._process = process
        self._tree = tree
        self._bounds = bounds
        self._disk = DiskWatch(folders, bounds.disk_mb * _MEGABYTE)
        self._over: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()

    async def follow(self, output: CommandOutput, on_output: OnOutput, let_go: Callable[[], None]) -> CommandResult:
        """Let the command go, and follow it. When this is cancelled, everything is killed first."""
        loop = asyncio.get_running_loop()
        output.forward_to(on_output, lambda: self._stop("output"))
        clock = loop.call_later(self._bounds.wall_s, self._stop, "wall")
        handle = self._tree.handles[0]
        loop.add_reader(handle, self._stop, "exited")
        looking = asyncio.ensure_future(self._look())
        try:
            let_go()
            reason = await self._over
        finally:
            clock.cancel()
            looking.cancel()
            loop.remove_reader(handle)
            await finish_despite_cancel(self._end(looking))
            output.drain()
        if output.failure is not None:
            raise output.failure
        return self._ended("output" if output.is_cut and reason == "exited" else reason, output.total)

    def _ended(self, reason: EndReason, output_bytes: int) -> CommandResult:
        seconds = time.perf_counter() - self._began
        if reason != "exited":
            return CommandResult(None, reason, None, seconds, output_bytes)
        code = self._process.returncode
        # A shell and bubblewrap say the same of a child that a signal ended: 128 and its number.
        code = 128 - code if code < 0 else code
        if 128 < code <= 192:
            return CommandResult(code, "signalled", code - 128, seconds, output_bytes)
        return CommandResult(code, "exited", None, seconds, output_bytes)

    def _stop(self, reason: EndReason) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    async def _look(self) -> None:
        """Looking through a large workspace takes long, and nothing may grow unseen meanwhile."""
        await asyncio.gather(self._look_at_processes(), self._look_at_disk())

    async def _look_at_processes(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            use = measure_tree(self._tree.root)
            if use.memory > self._bounds.memory_mb * _MEGABYTE:
                self._stop("memory")
            if use.processes > self._bounds.processes:
                self._stop("processes")

    async def _look_at_disk(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._disk.is_suspicious() and await asyncio.to_thread(self._disk.is_over_limit, self._tree.root):
                self._stop("disk")

    async def _end(self, looking: asyncio.Task[None]) -> None:
        self._tree.kill()
        await asyncio.wait([looking])
        if not looking.cancelled():
            looking.result()
        for handle in self._tree.handles:
            await wait_until_readable(handle)
        self._process.wait()
        _bury(self._tree.root)


def _bury(pid: int) -> None:
    """Where nobody else buries orphans, as in many containers, they have come to us."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def wait_until_readable(descriptor: int) -> None:
    """Wait until there is something to read, or, for a handle of a process, until it has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def finish_despite_cancel(work: Coroutine[Any, Any, Result]) -> Result:
    """Finish something even when cancelled meanwhile; the cancelling comes after it."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return task.result()


def spawn_process(argv: Sequence[str], stdin: int, output: int, descriptors: Iterable[int]) -> subprocess.Popen[bytes]:
    """Start a program of ours: without variables, outside every workspace, in a session of its own."""
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=output,
        stderr=output,
        env={},
        cwd="/",
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )


def build_limits(bounds: Bounds, *, per_namespace: bool) -> dict[int, int]:
    """What the kernel itself holds each process to. Not its address space: node, Go and Java reserve far more."""
    limits = {
        resource.RLIMIT_DATA: bounds.memory_mb * _MEGABYTE,
        resource.RLIMIT_FSIZE: bounds.file_mb * _MEGABYTE,
        resource.RLIMIT_NOFILE: bounds.open_files,
        resource.RLIMIT_CORE: 0,
    }
    if per_namespace and _counts_apart():
        limits[resource.RLIMIT_NPROC] = bounds.processes * 4  # the kernel counts threads
    return limits


def _counts_apart() -> bool:
    """Since 5.14 a user namespace counts its own processes; before, all of the user's would count."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


def set_limits(pid: int, limits: dict[int, int]) -> None:
    """Set limits on a process that waits to be let go; none is raised."""
    for kind, value in limits.items():
        _, hard = resource.prlimit(pid, kind)
        top = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (top, top))


def open_pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    """A pipe with an end for each side."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, reading)
    theirs.callback(os.close, writing)
    return reading, writing


def create_memory_file(name: str, data: bytes, held: ExitStack) -> int:
    """A descriptor to read `data` from, whatever its size."""
    descriptor = os.memfd_create(name)
    held.callback(os.close, descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
