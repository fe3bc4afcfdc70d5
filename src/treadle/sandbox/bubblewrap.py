"""The full sandbox: bubblewrap with an empty root. It runs what `plan.py` planned, and follows it to its end."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import cast

import msgspec

from treadle.sandbox import process
from treadle.sandbox.arguments import BWRAP, NAMESPACES, build_arguments, can_bind_descriptors, list_system_mounts
from treadle.sandbox.base import CommandResult, GitReport, Job, OnOutput, SandboxUnavailable
from treadle.sandbox.plan import BubblewrapPlan, PlanKind, build_plan
from treadle.sandbox.proxy import HostAccess
from treadle.sandbox.resource_usage import find_descendants
from treadle.sandbox.seccomp import Machine, build_program
from treadle.sandbox.shown_paths import read_identity

_TIMEOUT = 20.0
_READY = b"\x06"
# The command waits in the sandbox until its limits are set and its network is open. If we die before that, it reads the
# end of its input and never runs. Bubblewrap's own way to wait would release it then.
_WAIT_SCRIPT = """printf '\\006'; read -r go || exit 125; exec "$@" </dev/null"""

OpenNetwork = Callable[[int, Job], AbstractAsyncContextManager[HostAccess]]
"""Opens the network of a sandbox, given its first process, while its command runs."""


async def run_in_bubblewrap(job: Job, on_output: OnOutput, open_network: OpenNetwork) -> CommandResult:
    """Run a command to its end in the full sandbox. `open_network` opens a network when the job grants one."""
    timer = process.WallTimer(job.bounds.wall_s)
    if (ask := job.ask_host) is not None:

        async def ask_without_time(host: str, port: int) -> str:
            with timer.pause():
                return await ask(host, port)

        job = msgspec.structs.replace(job, ask_host=ask_without_time)
    with ExitStack() as stack:
        plan = await build_plan(job, stack, PlanKind(is_command=True))
        box = _Box(plan, stack)
        try:
            pid = await box.set_up()
            async with open_network(pid, job) as access:
                result = await box.follow(pid, on_output, timer)
        finally:
            box.abandon()
            # Also after a cancellation: what was committed before it is kept.
            reports = await settle_plan(plan)
        return msgspec.structs.replace(result, refused_hosts=access.refused, git=reports)


async def settle_plan(plan: BubblewrapPlan) -> tuple[GitReport, ...]:
    """Take back what a command did to repositories, even when this is cancelled meanwhile."""
    reports: list[GitReport] = []

    async def settle() -> None:
        reports.extend(await asyncio.to_thread(plan.settle))

    await process.finish_despite_cancel(settle())
    return tuple(reports)


class _Box:
    """A started bubblewrap whose command waits until it is released."""

    def __init__(self, plan: BubblewrapPlan, stack: ExitStack) -> None:
        self._plan = plan
        self._stack = stack
        self._status = b""
        self._first: int | None = None
        with ExitStack() as theirs:
            self._status_pipe, status = process.open_pipe(stack, theirs)
            read_end, write_end = process.open_pipe(stack, theirs)
            stdin, self._release_pipe = process.open_pipe(theirs, stack)
            seccomp = process.create_memory_file("seccomp", build_program(detect_machine()), theirs)
            options = [*build_arguments(plan), "--json-status-fd", str(status), "--seccomp", str(seccomp)]
            arguments = process.create_memory_file("arguments", b"\0".join(map(os.fsencode, options)), theirs)
            command = [BWRAP, "--args", str(arguments), "--", "/bin/sh", "-c", _WAIT_SCRIPT, "sh", *plan.job.argv]
            # A descriptor that bubblewrap does not use would stay open in the command, and lead around the mount.
            mounted = [mount.descriptor for mount in plan.list_mounts()] if can_bind_descriptors() else []
            self._process = process.spawn_process(command, stdin, write_end, (status, seccomp, arguments, *mounted))
        os.set_blocking(self._status_pipe, False)
        self._output = process.CommandOutput(read_end, plan.job.bounds.output_bytes)
        stack.callback(self._output.stop)

    async def set_up(self) -> int:
        """Wait until the sandbox is complete. Return the first process of its namespace, by our number for it."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                is_ready = await self._output.wait_for_mark(_READY)
                while is_ready and b"\n" not in self._status:
                    await process.wait_until_readable(self._status_pipe)
                    is_ready = self._read_status()
        except TimeoutError:
            raise _build_error(f"it was not ready within {_TIMEOUT:g} s") from None
        if not is_ready:
            raise _build_error(self._output.head.decode(errors="replace").strip() or "it ended at once")
        pid = cast("dict[str, int]", json.loads(self._status.partition(b"\n")[0]))["child-pid"]
        self._first = os.pidfd_open(pid)
        self._stack.callback(os.close, self._first)
        for waiting in find_descendants(pid):
            process.set_limits(waiting, process.build_limits(self._plan.job.bounds, per_namespace=True))
            check_mounts(self._plan, waiting)
        return pid

    def _read_status(self) -> bool:
        """Read bubblewrap's report. Return False at its end."""
        try:
            data = os.read(self._status_pipe, 4096)
        except BlockingIOError:
            return True
        self._status += data
        return bool(data)

    async def follow(self, pid: int, on_output: OnOutput, timer: process.WallTimer) -> CommandResult:
        """Release the command, and follow it to its end."""
        assert self._first is not None
        outer = os.pidfd_open(self._process.pid)
        self._stack.callback(os.close, outer)
        tree = process.ProcessTree(pid, self._kill, (outer, self._first))
        bounds, folders = self._plan.job.bounds, self._plan.list_growing_folders()
        follower = process.ProcessFollower(self._process, tree, bounds, folders, timer)
        return await follower.follow(self._output, on_output, lambda: os.write(self._release_pipe, b"go\n"))

    def abandon(self) -> None:
        """End every process. A command that was not released never runs: its input ends first.

        While bubblewrap sets up, its child waits for it, and would wait for ever once it is gone. So bubblewrap is
        stopped first, and the child is killed before it.
        """
        self._kill()
        self._process.send_signal(signal.SIGSTOP)  # it polls first, so it also notices an end that came just now
        if self._process.returncode is not None:
            return
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        for child in find_descendants(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def _kill(self) -> None:
        """Kill the first process of the namespace. That ends all of its processes."""
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)


def check_mounts(plan: BubblewrapPlan, pid: int) -> None:
    """Check what is mounted: another command may have replaced a folder on the way by a link before."""
    wanted = {mount.target: read_identity(os.fstat(mount.descriptor)) for mount in plan.list_mounts()}
    pairs = zip(plan.tools.mounts, plan.tools.identities, strict=True)
    wanted |= {str(mount.path): identity for mount, identity in pairs}
    hidden = set(map(str, plan.list_masked()))
    for path, expected in wanted.items():
        if path in hidden:
            continue
        try:
            found = os.stat(f"/proc/{pid}/root{path}", follow_symlinks=False)
        except OSError as error:
            raise _build_error(f"it cannot be seen what is mounted at {path} ({error.strerror})") from None
        if read_identity(found) != expected:
            raise _build_error(f"{path} was exchanged meanwhile. Run it again.")


def _build_error(why: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"The sandbox could not be set up, so the command was not run: {why}")


def explain_unavailable() -> str:
    """Say in a sentence why bubblewrap cannot be used here. Return nothing when a trial of it works."""
    if not os.access(BWRAP, os.X_OK):
        return f"{BWRAP} is not installed."
    try:
        detect_machine()
    except SandboxUnavailable as error:
        return str(error)
    trial = [BWRAP, *(f"--unshare-{name}" for name in NAMESPACES), "--cap-drop", "ALL", "--die-with-parent"]
    trial += ["--ro-bind", "/usr", "/usr", *list_system_mounts(), "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"]
    try:
        done = subprocess.run(trial, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{BWRAP} cannot be run ({error})."
    return "" if done.returncode == 0 else f"{BWRAP} does not work here ({done.stderr.strip() or done.returncode})."


def detect_machine() -> Machine:
    """Return the architecture whose system calls are filtered."""
    name = platform.machine()
    if name in ("x86_64", "aarch64"):
        return name
    raise SandboxUnavailable(f"There is no list of system calls for {name}, so nothing was run. Use x86_64 or aarch64.")
