"""The full sandbox: bubblewrap with an empty root. A command sees only what is mounted by name."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import platform
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from treadle.errors import BadInput
from treadle.permissions.paths import OPENED_WITH_FOLDER, PROTECTED
from treadle.sandbox import process
from treadle.sandbox.base import CommandResult, Job, Mount, OnOutput, SandboxUnavailable
from treadle.sandbox.caches import TRIM_SECONDS, hold_cache, trim_caches
from treadle.sandbox.environment import build_sandbox_environment
from treadle.sandbox.guarded_paths import (
    GuardedPaths,
    find_guarded_paths,
    hold_protected_paths,
    resolve_sandbox_workspace,
    resolve_working_folder,
)
from treadle.sandbox.network import build_proxy_environment
from treadle.sandbox.resource_usage import find_descendants
from treadle.sandbox.runtime_folder import make_empty_file, make_file, prepare_etc
from treadle.sandbox.seccomp import Machine, build_program
from treadle.sandbox.shown_paths import is_below, read_identity
from treadle.sandbox.toolchains import Toolchains, find_interpreter_folders, find_toolchains

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
_TWO_WORDS = ("bind", "ro-bind", "bind-fd", "ro-bind-fd", "symlink", "setenv")
_ONE_WORD = ("tmpfs", "proc", "dev", "dir")
_NO_PATH = ("uid", "gid", "hostname", "cap-drop", "perms", "size", "remount-ro", "chdir")
_TIMEOUT = 20.0
_MAX_MOUNTS = 2000
"""Mounts for files found in a workspace: bubblewrap takes 9000 words, and each mount takes time."""

_READY = b"\x06"
# The command waits in the sandbox until its limits are set and its network is open. If we die before that, it reads the
# end of its input and never runs. Bubblewrap's own way to wait would release it then.
_WAIT_SCRIPT = """printf '\\006'; read -r go || exit 125; exec "$@" </dev/null"""

OpenNetwork = Callable[[int, Job], AbstractAsyncContextManager[None]]
"""Opens the network of a sandbox, given its first process, while its command runs."""


class BubblewrapPlan(Struct, frozen=True):
    """Everything that the arguments of bubblewrap depend on.

    `descriptors` are of paths in the workspace that are mounted read-only, except `parent_folders`: these stay writable
    and cannot be moved. `tools` are the user's own tools, `cache` is the folder behind the command's ~/.cache, and
    `reasons` say why something is mounted, for people who ask.
    """

    job: Job
    workspace: Path
    cwd: Path
    descriptors: Mapping[str, int]
    parent_folders: frozenset[str]
    masked: tuple[Path, ...]
    environment: Mapping[str, str]
    tools: Toolchains = Toolchains()
    cache: Path | None = None
    reasons: tuple[Mount, ...] = ()

    def build_var_tmp(self) -> tuple[str, ...]:
        """Build /var/tmp. It is the private /tmp, unless something in it is mounted, which needs its own path."""
        tools = (mount.path for mount in self.tools.mounts)
        folders = (self.workspace, *self.job.read_only, *self.job.writable_folders, *tools)
        if any(folder.is_relative_to("/var/tmp") for folder in folders):
            return ("--perms", "1777", "--size", str(self.job.bounds.tmp_mb * 1024 * 1024), "--tmpfs", "/var/tmp")
        return ("--symlink", "../tmp", "/var/tmp")

    def build_links(self, arguments: Sequence[str]) -> Iterator[str]:
        """Build the links that lead to tools. Where something is mounted at one, or on the way, it takes its place."""
        points = [(option, Path(target)) for option, _, target in list_mount_points(arguments)]
        closed = [path for option, path in points if "bind" in option or path in self.tools.masked]
        for location, text in self.tools.links:
            if not is_below(location, closed) and not any(path.is_relative_to(location) for _, path in points):
                yield from ("--symlink", text, str(location))


async def run_in_bubblewrap(job: Job, on_output: OnOutput, open_network: OpenNetwork) -> CommandResult:
    """Run a command to its end in the full sandbox. `open_network` opens a network when the job grants one."""
    with ExitStack() as stack:
        plan = await build_plan(job, stack, has_cache=True)
        box = _Box(plan, stack)
        try:
            pid = await box.set_up()
            async with open_network(pid, job):
                return await box.follow(pid, on_output)
        finally:
            box.abandon()


async def build_plan(
    job: Job, stack: ExitStack, *, is_private: bool = False, has_cache: bool = False
) -> BubblewrapPlan:
    """Find what the sandbox of a job shows, and what it must protect in its workspace. `stack` holds it.

    A private workspace holds nothing to protect. The cache of a workspace is for commands only: a program with rights
    and variables of its own must not run what a command has put there.
    """
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
    tools = await asyncio.to_thread(find_toolchains, workspace)
    environment = build_sandbox_environment(job, workspace, HOME, tools)
    if job.network:
        environment = {**build_proxy_environment(), **environment}
    cache: Path | None = None
    with suppress(OSError):  # where we cannot write, nothing is kept
        if has_cache:
            await asyncio.to_thread(trim_caches, every=TRIM_SECONDS)
            cache = stack.enter_context(hold_cache(workspace))
    held = frozenset(map(str, parents))
    return BubblewrapPlan(job, workspace, cwd, descriptors, held, masked, environment, tools, cache)


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
            mounted = plan.descriptors.values() if _can_bind_descriptors() else ()
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

    async def follow(self, pid: int, on_output: OnOutput) -> CommandResult:
        """Release the command, and follow it to its end."""
        assert self._first is not None
        outer = os.pidfd_open(self._process.pid)
        self._stack.callback(os.close, outer)
        tree = process.ProcessTree(pid, self._kill, (outer, self._first))
        folders = (self._plan.workspace, *([self._plan.cache] if self._plan.cache else []))
        follower = process.ProcessFollower(self._process, tree, self._plan.job.bounds, folders)
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
    """Check mounts that were made by path: another command may have replaced a folder by a link before."""
    wanted = {
        str(plan.workspace / name): read_identity(os.fstat(descriptor))
        for name, descriptor in plan.descriptors.items()
        if name not in PROTECTED and not _can_bind_descriptors()
    }
    pairs = zip(plan.tools.mounts, plan.tools.identities, strict=True)
    wanted |= {str(mount.path): identity for mount, identity in pairs}
    for path, expected in wanted.items():
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
        *("--dir", "/run", "--dir", "/var", *plan.build_var_tmp()),
    )
    for mount in plan.tools.mounts:
        arguments += ("--ro-bind", str(mount.path), str(mount.path))
    for name, data in plan.tools.home_files.items():
        copy = make_file(f"home-{hashlib.blake2b(data, digest_size=16).hexdigest()}", data)
        arguments += ("--ro-bind", str(copy), f"{HOME}/{name}")
    if plan.cache is not None:
        arguments += ("--bind", str(plan.cache), f"{HOME}/.cache")
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
    for masked in (*plan.tools.masked, *plan.masked):
        if masked.is_dir():
            arguments += ("--tmpfs", str(masked), "--remount-ro", str(masked))
        else:
            arguments += ("--ro-bind", str(make_empty_file(masked.suffix)), str(masked))
    # On top of the workspace: the code that runs us stays unchanged even when it is inside of it.
    tools = [mount.path for mount in plan.tools.mounts]
    for folder in find_interpreter_folders():
        if is_below(folder, tools) and not folder.is_relative_to(plan.workspace):
            continue  # it is read-only already
        arguments += ("--ro-bind", str(folder), str(folder))
    return [*arguments, *plan.build_links(arguments), "--remount-ro", "/", "--chdir", str(plan.cwd)]


def list_mount_points(arguments: Sequence[str]) -> list[tuple[str, str, str]]:
    """List what arguments of bubblewrap put into its root: the option, the source or nothing, and the target."""
    found, words = list[tuple[str, str, str]](), iter(arguments)
    for option in words:
        name = option.removeprefix("--")
        if name in _TWO_WORDS:
            source, target = next(words), next(words)
            if name != "setenv":
                found.append((name, source, target))
        elif name in _ONE_WORD:
            found.append((name, "", next(words)))
        elif name in _NO_PATH:
            next(words)
    return found


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
