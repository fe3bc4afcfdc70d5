"""The full sandbox: bubblewrap with an empty root. A command sees only what is mounted by name."""

from __future__ import annotations

import asyncio
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
from treadle.sandbox.base import CommandResult, GitReport, Job, OnOutput, SandboxUnavailable
from treadle.sandbox.environment import build_sandbox_environment, find_interpreter_folders
from treadle.sandbox.git_copies import USER_CONFIG, GitCopies, GitMount
from treadle.sandbox.guarded_paths import (
    GuardedPaths,
    find_guarded_paths,
    find_parent_folders,
    hold_protected_paths,
    resolve_sandbox_workspace,
    resolve_working_folder,
)
from treadle.sandbox.network import build_proxy_environment
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

OpenNetwork = Callable[[int, Job], AbstractAsyncContextManager[None]]
"""Opens the network of a sandbox, given its first process, while its command runs."""


class BubblewrapPlan(Struct, frozen=True):
    """Everything that the arguments of bubblewrap depend on.

    `descriptors` are of paths in the workspace that are mounted read-only, except `parent_folders`: these stay writable
    and cannot be moved. `git` has the private copies of repositories. `notes` say what the command may not do.
    """

    job: Job
    workspace: Path
    cwd: Path
    descriptors: Mapping[str, int]
    parent_folders: frozenset[str]
    masked: tuple[Path, ...]
    environment: Mapping[str, str]
    git: GitCopies | None = None
    notes: tuple[str, ...] = ()

    @property
    def mounts(self) -> dict[str, int]:
        """The descriptors that are mounted, by their path. Private copies cover the real repositories."""
        covered = self.git.entries if self.git is not None else ()
        own = {str(self.workspace / name): held for name, held in self.descriptors.items() if name not in covered}
        return {**own, **{mount.target: mount.descriptor for mount in self.list_git_mounts()}}

    def list_mount_arguments(self, *, by_descriptor: bool) -> Iterator[str]:
        """List the mounts in the workspace and those of git. Folders come before what is inside of them."""
        git = {mount.target: mount for mount in self.list_git_mounts()}
        found = self.mounts.items()
        for path, held in sorted(found, key=lambda item: (item[0] in git, item[0] not in self.parent_folders)):
            is_writable = git[path].is_writable if path in git else path in self.parent_folders
            option = "--bind" if is_writable else "--ro-bind"
            source = str(git[path].source) if path in git else path
            yield from (f"{option}-fd", str(held), path) if by_descriptor else (option, source, path)

    def list_git_mounts(self) -> Sequence[GitMount]:
        """List the mounts of git. A later one may be inside of an earlier one."""
        return self.git.mounts if self.git is not None else ()


async def run_in_bubblewrap(job: Job, on_output: OnOutput, open_network: OpenNetwork) -> CommandResult:
    """Run a command to its end in the full sandbox. `open_network` opens a network when the job grants one."""
    with ExitStack() as stack:
        plan = await build_plan(job, stack, has_git=True)
        box = _Box(plan, stack)
        try:
            pid = await box.set_up()
            async with open_network(pid, job):
                result = await box.follow(pid, on_output)
        finally:
            box.abandon()
            if plan.git is not None:
                # Also after a cancellation: what was committed before it is kept.
                await process.finish_despite_cancel(asyncio.to_thread(plan.git.settle))
        reports = plan.git.reports if plan.git is not None else ()
        notes = (GitReport(rejected=plan.notes),) if plan.notes else ()
        return msgspec.structs.replace(result, git=(*reports, *notes))


async def build_plan(job: Job, stack: ExitStack, *, is_private: bool = False, has_git: bool = False) -> BubblewrapPlan:
    """Find what the sandbox of a job must protect in its workspace. `stack` holds it. A private one holds nothing.

    `has_git` gives the command private copies of repositories. Otherwise they are read-only.
    """
    plans: list[BubblewrapPlan] = []

    async def prepare() -> None:
        workspace = resolve_sandbox_workspace(job)
        cwd = resolve_working_folder(job, workspace)
        plans.append(await asyncio.to_thread(hold_workspace, job, workspace, cwd, stack, (is_private, has_git)))

    await process.finish_despite_cancel(prepare())
    return plans[0]


def hold_workspace(job: Job, workspace: Path, cwd: Path, stack: ExitStack, kind: tuple[bool, bool]) -> BubblewrapPlan:
    """Find and hold what is protected in a workspace. `kind`: is it private, and does git work in copies?"""
    is_private, has_git = kind
    found = GuardedPaths() if is_private else find_guarded_paths(workspace)
    notes = found.explain_read_only() if job.writable else ()
    job = msgspec.structs.replace(job, writable=job.writable and not notes)
    git = None
    if has_git and not is_private:
        git = GitCopies(job, workspace, found)
        stack.callback(git.close)
    covered = {workspace / name for name in git.entries} if git is not None else set[Path]()
    read_only = [path for path in found.read_only if path not in covered]
    gitlinks = [*(git.gitlinks if git is not None else ())] if job.writable else []
    masked = (*found.own_files, *found.too_deep, *(() if job.show_env_files else found.env_files))
    if len(masked) + len(read_only) + len(gitlinks) > _MAX_MOUNTS:
        raise BadInput(
            f"{workspace} holds {len(masked)} env files and logs, and {len(read_only) + len(gitlinks)} repositories "
            f"and folders of editors, and no more than {_MAX_MOUNTS} can be protected from a command. Nothing was run. "
            "Choose a folder with fewer."
        )
    held = {*read_only, *found.own_files, *covered, *(workspace / name for name in gitlinks)}
    parents = find_parent_folders(workspace, held) if job.writable else ()
    below = (*parents, *read_only) if job.writable else ()
    # A command that may only read needs no more placeholders, and lists none.
    names = (*PROTECTED, *OPENED_WITH_FOLDER) if job.writable else PROTECTED
    holding = hold_protected_paths(workspace, below, names=names, placeholders=gitlinks)
    descriptors = {} if is_private else stack.enter_context(holding)
    if not is_private and any(name not in descriptors and not (workspace / name).is_symlink() for name in names):
        # We may not create a protected folder, but a command could gain that right later. So it may write nothing.
        job = msgspec.structs.replace(job, writable=False)
    if git is not None and ".git" not in descriptors:
        git.drop_empty()
    environment = build_sandbox_environment(job, workspace, HOME)
    if git is not None:
        environment = {"GIT_CONFIG_SYSTEM": USER_CONFIG, **environment}
    if job.network:
        environment = {**build_proxy_environment(), **environment}
    return BubblewrapPlan(
        job, workspace, cwd, descriptors, frozenset(map(str, parents)), masked, environment, git, notes
    )


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
            mounted = plan.mounts.values() if _can_bind_descriptors() else ()
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
        folders = (self._plan.workspace, *([self._plan.git.folder] if self._plan.git is not None else []))
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
    """Check what is mounted: another command may have replaced a folder on the way by a link before."""
    hidden = set(map(str, plan.masked))
    for path, descriptor in plan.mounts.items():
        if path in hidden:
            continue
        try:
            found = os.stat(f"/proc/{pid}/root{path}", follow_symlinks=False)
        except OSError as error:
            raise _build_error(f"it cannot be seen what is mounted at {path} ({error.strerror})") from None
        if not os.path.samestat(found, os.fstat(descriptor)):
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
        *("--dir", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp"),
    )
    for folder in plan.job.read_only:
        if not folder.is_absolute() or not folder.exists() or Path.home().resolve().is_relative_to(folder.resolve()):
            raise BadInput(
                f"{folder} cannot be shown to commands: name an existing folder, and not your home. Nothing was run."
            )
        arguments += ("--ro-bind", str(folder), str(folder))
    arguments += ("--bind" if plan.job.writable else "--ro-bind", str(plan.workspace), str(plan.workspace))
    arguments += plan.list_mount_arguments(by_descriptor=_can_bind_descriptors() and not by_path)
    for masked in plan.masked:
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
