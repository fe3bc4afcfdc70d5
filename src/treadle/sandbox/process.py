"""Follows a started command to its end: output, time, memory, processes and disk. Then no process of it is left.

Each back-end starts the command and kills its process tree in its own way.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from treadle.sandbox.base import Bounds, CommandResult, EndReason, OnOutput
from treadle.sandbox.resource_usage import DiskWatch, measure_tree

_MEASURE_INTERVAL = 0.1
_MEGABYTE = 1024 * 1024
_CHUNK_BYTES = 65536


class ProcessTree(Struct, frozen=True):
    """The processes of a command. All are below `root`, `kill` ends them, and then all `handles` are readable."""

    root: int
    kill: Callable[[], None]
    handles: tuple[int, ...]


class CommandOutput:
    """The merged output of a process. Until `forward_to` is called, it is kept in `head`: it is not the command's."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.total = 0
        self.head = b""
        self.failure: Exception | None = None
        self.is_cut = False
        self._has_ended = False
        self._has_news = asyncio.Event()
        self._descriptor = descriptor
        self._limit = limit
        self._on_output: OnOutput | None = None
        self._on_excess: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    async def wait_for_mark(self, mark: bytes) -> bool:
        """Wait for the mark before the command's own output. Return False when the output ends without it."""
        while not self.head.endswith(mark):
            if self._has_ended:
                return False
            self._has_news.clear()
            await self._has_news.wait()
        return True

    def forward_to(self, on_output: OnOutput, on_excess: Callable[[], None]) -> None:
        """Forward the command's own output from now on."""
        self._on_output, self._on_excess = on_output, on_excess

    def drain(self) -> None:
        """Read the rest, once no process can write any more."""
        while self._read():
            pass

    def stop(self) -> None:
        """Stop reading. Then the descriptor may be closed."""
        self._loop.remove_reader(self._descriptor)

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._has_news.set()
        if not data:
            self._has_ended = True
            self._loop.remove_reader(self._descriptor)
            return False
        if self._on_output is None or self._on_excess is None:
            self.head += data
            return True
        allowed = data[: self._limit - self.total]
        try:
            if allowed and self.failure is None:
                self._on_output(allowed)
        except Exception as error:  # it ends the command, and is raised where that was started
            self.failure = error
        self.is_cut = self.is_cut or len(data) > len(allowed)
        self.total += len(allowed)
        if self.is_cut or self.failure is not None:
            self._on_excess()
        return True


class WallTimer:
    """The time that a command may take. It stands still while a person is asked."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._pauses = 0
        self._on_end: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = 0.0  # uvloop's timers of no time do not know it

    def start(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` when the time is over."""
        self._on_end = on_end
        if not self._pauses:
            loop = asyncio.get_running_loop()
            self._timer, self._ends_at = loop.call_later(self._left, on_end), loop.time() + self._left

    def cancel(self) -> None:
        """Stop for good."""
        self._on_end = None
        self._stop_timer()

    @contextmanager
    def pause(self) -> Generator[None]:
        """Stop the time during the block."""
        self._pauses += 1
        self._stop_timer()
        try:
            yield
        finally:
            self._pauses -= 1
            if self._on_end is not None:
                self.start(self._on_end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._left = max(0.0, self._ends_at - asyncio.get_running_loop().time())
            self._timer.cancel()
            self._timer = None


class ProcessFollower:
    """Follows a process until it ends or goes over a limit, and leaves no process of it behind."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        tree: ProcessTree,
        bounds: Bounds,
        folders: tuple[Path, ...],
        timer: WallTimer | None = None,
    ) -> None:
        self._timer = timer or WallTimer(bounds.wall_s)
        self._process = process
        self._tree = tree
        self._bounds = bounds
        self._disk = DiskWatch(folders, bounds.disk_mb * _MEGABYTE)
        self._end_reason: asyncio.Future[EndReason] = asyncio.get_running_loop().create_future()
        self._started = time.perf_counter()

    async def follow(self, output: CommandOutput, on_output: OnOutput, release: Callable[[], object]) -> CommandResult:
        """Release the waiting command and follow it. When this is cancelled, everything is killed first."""
        loop = asyncio.get_running_loop()
        output.forward_to(on_output, lambda: self._stop("output"))
        self._timer.start(lambda: self._stop("wall"))
        handle = self._tree.handles[0]
        loop.add_reader(handle, self._stop, "exited")
        measuring = asyncio.ensure_future(self._measure())
        try:
            release()
            reason = await self._end_reason
        finally:
            self._timer.cancel()
            measuring.cancel()
            loop.remove_reader(handle)
            await finish_despite_cancel(self._end_processes(measuring))
            output.drain()
        if output.failure is not None:
            raise output.failure
        return self._build_result("output" if output.is_cut and reason == "exited" else reason, output.total)

    def _build_result(self, reason: EndReason, output_bytes: int) -> CommandResult:
        seconds = time.perf_counter() - self._started
        if reason != "exited":
            return CommandResult(None, reason, None, seconds, output_bytes)
        code = self._process.returncode
        # A shell and bubblewrap report a child that a signal ended in the same way: 128 and its number.
        code = 128 - code if code < 0 else code
        if 128 < code <= 192:
            return CommandResult(code, "signalled", code - 128, seconds, output_bytes)
        return CommandResult(code, "exited", None, seconds, output_bytes)

    def _stop(self, reason: EndReason) -> None:
        if not self._end_reason.done():
            self._end_reason.set_result(reason)

    async def _measure(self) -> None:
        """Measure both at once: reading a large workspace takes long, and processes may not grow unseen meanwhile."""
        await asyncio.gather(self._measure_processes(), self._measure_disk())

    async def _measure_processes(self) -> None:
        while True:
            await asyncio.sleep(_MEASURE_INTERVAL)
            processes, memory = measure_tree(self._tree.root)
            if memory > self._bounds.memory_mb * _MEGABYTE:
                self._stop("memory")
            if processes > self._bounds.processes:
                self._stop("processes")

    async def _measure_disk(self) -> None:
        while True:
            await asyncio.sleep(_MEASURE_INTERVAL)
            if self._disk.is_suspicious() and await asyncio.to_thread(self._disk.is_over_limit, self._tree.root):
                self._stop("disk")

    async def _end_processes(self, measuring: asyncio.Task[None]) -> None:
        self._tree.kill()
        await asyncio.wait([measuring])
        if not measuring.cancelled():
            measuring.result()
        for handle in self._tree.handles:
            await wait_until_readable(handle)
        self._process.wait()
        _reap_process(self._tree.root)


def _reap_process(pid: int) -> None:
    """Reap a process that has ended. In many containers no init does that, and orphans become our children."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def wait_until_readable(descriptor: int) -> None:
    """Wait until there is something to read. A process handle is readable once the process has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def finish_despite_cancel(work: Coroutine[Any, Any, None]) -> None:
    """Finish something even when this is cancelled meanwhile. The cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
    task.result()


def spawn_process(argv: Sequence[str], stdin: int, output: int, descriptors: Iterable[int]) -> subprocess.Popen[bytes]:
    """Start a program without variables, outside every workspace, in its own session."""
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
    """Build the kernel's limits for each process. The address space has none: node, Go and Java reserve far more.

    `per_namespace` says that the command has a user namespace, which since Linux 5.14 counts its own processes. Before,
    all processes of the user would count.
    """
    limits = {
        resource.RLIMIT_DATA: bounds.memory_mb * _MEGABYTE,
        resource.RLIMIT_FSIZE: bounds.file_mb * _MEGABYTE,
        resource.RLIMIT_NOFILE: bounds.open_files,
        resource.RLIMIT_CORE: 0,
    }
    major, minor = os.uname().release.split(".")[:2]
    if per_namespace and (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14):
        limits[resource.RLIMIT_NPROC] = bounds.processes * 4  # the kernel counts threads
    return limits


def set_limits(pid: int, limits: dict[int, int]) -> None:
    """Set limits on a process that waits to be released. None is raised."""
    for kind, value in limits.items():
        _, hard = resource.prlimit(pid, kind)
        top = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, kind, (top, top))


def open_pipe(readers: ExitStack, writers: ExitStack) -> tuple[int, int]:
    """Open a pipe. Each stack closes its end."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    readers.callback(os.close, read_end)
    writers.callback(os.close, write_end)
    return read_end, write_end


def create_memory_file(name: str, data: bytes, owner: ExitStack) -> int:
    """Create a descriptor to read `data` from, whatever its size. `owner` closes it."""
    descriptor = os.memfd_create(name)
    owner.callback(os.close, descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
