"""The full sandbox: bubblewrap with an empty root. A command sees only what is mounted by name."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from treadle.errors import BadInput
from treadle.permissions.paths import OPENED_WITH_FOLDER, PROTECTED
from treadle.sandbox import process
from treadle.sandbox.base import CommandResult, Job, OnOutput, SandboxUnavailable
from treadle.sandbox.environment import build_sandbox_environment, find_interpreter_folders
from treadle.sandbox.extra_folders import ExtraFolder, check_extra_folders, hold_extra_folders
from treadle.sandbox.guarded_paths import (
    GuardedPaths,
    find_guarded_paths,
    hold_protected_paths,
    resolve_sandbox_workspace,
    resolve_working_folder,
)
from treadle.sandbox.network import build_proxy_environment
from treadle.sandbox.proxy import HostAccess
from treadle.sandbox.resource_usage import find_descendants
from treadle.sandbox.runtime_folder import make_empty_file, prepare_etc
from treadle.sandbox.seccomp import Machine, build_program

BWRAP = "/usr/bin/bwrap"
"""Exactly this path: distributions allow only this program to create user namespaces."""

HOME = "/tmp/home"

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup-try")
# The host's root keeps some rights to these files even in its own namespace.
_HIDDEN_FROM_ROOT = (
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "mtrr",
    "slabinfo",
    "sysrq-trigger",
    "vmallocinfo",
)
_TIMEOUT = 20.0
_MAX_MOUNTS = 2000
"""Mounts for files found in a workspace: bubblewrap takes 9000 words, and each mount takes time."""

_READY = b"\x06"
# The command waits in the sandbox until its limits are set and its network is open. If we die before that, it reads the
# end of its input and never runs. Bubblewrap's own way to wait would release it then.
_WAIT_SCRIPT = """printf '\\006'; read -r go || exit 125; exec "$@" </dev/null"""

OpenNetwork = Callable[[int, Job], AbstractAsyncContextManager[HostAccess]]
"""Opens the network of a sandbox, given its first process, while its command runs."""


class BubblewrapPlan(Struct, frozen=True):
    """Everything that the arguments of bubblewrap depend on.

    `descriptors` are of paths in the workspace that are mounted read-only, except `parent_folders`: these stay writable
    and cannot be moved. `extra_folders` are those of the job, with what is protected in them.
    """

    job: Job
    workspace: Path
    cwd: Path
    descriptors: Mapping[str, int]
    parent_folders: frozenset[str]
    masked: tuple[Path, ...]
    environment: Mapping[str, str]
    extra_folders: tuple[ExtraFolder, ...] = ()


async def run_in_bubblewrap(job: Job, on_output: OnOutput, open_network: OpenNetwork) -> CommandResult:
    """Run a command to its end in the full sandbox. `open_network` opens a network when the job grants one."""
    timer = process.WallTimer(job.bounds.wall_s)
    if (ask := job.ask_host) is not None:

        async def ask_without_time(host: str, port: int) -> str:
            with timer.pause():
                return await ask(host, port)

        job = msgspec.structs.replace(job, ask_host=ask_without_time)
    with ExitStack() as stack:
        plan = await build_plan(job, stack)
        box = _Box(plan, stack)
        try:
            pid = await box.set_up()
            async with open_network(pid, job) as access:
                result = await box.follow(pid, on_output, timer)
                return msgspec.structs.replace(result, refused_hosts=tuple(access.refused))
        finally:
            box.abandon()


async def build_plan(job: Job, stack: ExitStack, *, is_private: bool = False) -> BubblewrapPlan:
    """Find what the sandbox of a job must protect in its workspace. `stack` holds it. A private one holds nothing."""
    workspace = resolve_sandbox_workspace(job)
    cwd = resolve_working_folder(job, workspace)
    found = GuardedPaths() if is_private else await asyncio.to_thread(find_guarded_paths, workspace)
    masked = (*found.own_files, *(() if job.show_env_files else found.env_files))
    if len(masked) + len(found.read_only) > _MAX_MOUNTS:
        raise BadInput(
            f"{workspace} holds {len(masked)} env files and logs, and {len(found.read_only)} repositories and folders "
            f"of editors, and no more than {_MAX_MOUNTS} can be protected from a command. Nothing was run. "
            "Choose a folder with fewer."
        )
    parents = found.find_parent_folders(workspace) if job.writable else ()
    below = (*parents, *found.read_only) if job.writable else ()
    # A command that may only read needs no more placeholders, and lists none.
    names = (*PROTECTED, *OPENED_WITH_FOLDER) if job.writable else PROTECTED
    descriptors = {} if is_private else stack.enter_context(hold_protected_paths(workspace, below, names=names))
    if not is_private and any(name not in descriptors and not (workspace / name).is_symlink() for name in names):
        # We may not create a protected folder, but a command could gain that right later. So it may write nothing.
        job = msgspec.structs.replace(job, writable=False)
    environment = {**build_proxy_environment(job), **build_sandbox_environment(job, workspace, HOME)}
    held, extra = frozenset(map(str, parents)), tuple[ExtraFolder, ...]()
    if job.shown_folders or job.writable_folders:
        folders = hold_extra_folders(job.shown_folders, job.writable_folders, show_env_files=job.show_env_files)
        extra = await asyncio.to_thread(stack.enter_context, folders)
    return BubblewrapPlan(job, workspace, cwd, descriptors, held, masked, environment, extra)


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
            extra = [mount[1] for folder in plan.extra_folders for mount in folder.list_mounts()]
            mounted = (*plan.descriptors.values(), *extra) if _can_bind_descriptors() else ()
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
            if not _can_bind_descriptors():
                check_mounts(self._plan, waiting)
                check_extra_folders(self._plan.extra_folders, waiting)
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
        bounds, folders = self._plan.job.bounds, (self._plan.workspace, *self._plan.job.writable_folders)
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
    """Check mounts that were made by path: another command may have replaced a repository by a link before."""
    for name, descriptor in plan.descriptors.items():
        if name in PROTECTED:
            continue
        try:
            found = os.stat(f"/proc/{pid}/root{plan.workspace / name}", follow_symlinks=False)
        except OSError as error:
            raise _build_error(f"it cannot be seen what is mounted at {name} ({error.strerror})") from None
        if not os.path.samestat(found, os.fstat(descriptor)):
            raise _build_error(f"{name} was exchanged meanwhile. Run it again.")


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
    trial = [BWRAP, *(f"--unshare-{name}" for name in _NAMESPACES), "--cap-drop", "ALL", "--die-with-parent"]
    trial += ["--ro-bind", "/usr", "/usr", *_list_system_mounts(), "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"]
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


def build_arguments(plan: BubblewrapPlan, *, by_path: bool = False) -> list[str]:
    """Build the arguments of bubblewrap, without its descriptors. Later mounts cover earlier ones.

    `by_path` is for a bubblewrap that does not inherit the descriptors of the plan. Then check the mounts.
    """
    uid, gid = os.getuid() or 1000, os.getgid() or 1000  # the same as ours, but never root
    size = str(plan.job.bounds.tmp_mb * 1024 * 1024)
    arguments = [
        *(f"--unshare-{name}" for name in _NAMESPACES),
        *("--uid", str(uid), "--gid", str(gid), "--hostname", "sandbox"),
        *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
        *(word for item in plan.environment.items() for word in ("--setenv", *item)),
        *("--ro-bind", "/usr", "/usr"),
        *_list_system_mounts(),
        *("--ro-bind", str(prepare_etc(uid, gid)), "/etc"),
        # Without these, a command of root could set core_pattern to a program that the kernel runs outside.
        *("--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"),
    ]
    for name in _HIDDEN_FROM_ROOT if os.getuid() == 0 else ():
        if Path("/proc", name).exists():
            arguments += ("--ro-bind", str(make_empty_file()), f"/proc/{name}")
    arguments += (
        *("--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--perms", "0700", "--dir", HOME),
        *("--dir", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp"),
    )
    for folder in plan.job.read_only:
        if not folder.is_absolute() or not folder.exists() or Path.home().resolve().is_relative_to(folder.resolve()):
            raise BadInput(
                f"{folder} cannot be shown to commands: name an existing folder, and not your home. Nothing was run."
            )
        arguments += ("--ro-bind", str(folder), str(folder))
    arguments += ("--bind" if plan.job.writable else "--ro-bind", str(plan.workspace), str(plan.workspace))
    # The parent folders of our own files come first, because protected paths may be inside of them.
    mounts = [(str(plan.workspace / name), descriptor) for name, descriptor in plan.descriptors.items()]
    for path, descriptor in sorted(mounts, key=lambda mount: mount[0] not in plan.parent_folders):
        option = "--bind" if path in plan.parent_folders else "--ro-bind"
        is_open = _can_bind_descriptors() and not by_path
        arguments += (f"{option}-fd", str(descriptor), path) if is_open else (option, path, path)
    is_open = _can_bind_descriptors() and not by_path
    for path, descriptor, is_writable in (mount for folder in plan.extra_folders for mount in folder.list_mounts()):
        option = "--bind" if is_writable else "--ro-bind"
        arguments += (f"{option}-fd", str(descriptor), path) if is_open else (option, path, path)
    for masked in (*plan.masked, *(path for folder in plan.extra_folders for path in folder.masked)):
        if masked.is_dir():
            arguments += ("--tmpfs", str(masked), "--remount-ro", str(masked))
        else:
            arguments += ("--ro-bind", str(make_empty_file()), str(masked))
    # On top of the workspace: the code that runs us stays unchanged even when it is inside of it.
    for folder in find_interpreter_folders():
        arguments += ("--ro-bind", str(folder), str(folder))
    return [*arguments, "--remount-ro", "/", "--chdir", str(plan.cwd)]


def _list_system_mounts() -> Iterator[str]:
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))


@lru_cache(maxsize=1)
def _can_bind_descriptors() -> bool:
    """Tell whether this bubblewrap can mount an open descriptor, so that nobody can exchange it. 0.10 and later can."""
    done = subprocess.run([BWRAP, "--help"], capture_output=True, text=True, check=False, env={}, cwd="/")
    return "--ro-bind-fd" in done.stdout
