"""The full sandbox: bubblewrap from an empty root. What a command may see is mounted by name; the rest is not there."""

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
from treadle.permissions.paths import PROTECTED
from treadle.sandbox.base import CommandResult, Job, OnOutput, SandboxUnavailable
from treadle.sandbox.environment import build_sandbox_environment, find_interpreter_folders
from treadle.sandbox.guarded_paths import (
    find_guarded_paths,
    hold_protected_paths,
    resolve_sandbox_workspace,
    resolve_working_folder,
)
from treadle.sandbox.network import build_proxy_environment
from treadle.sandbox.process import (
    CommandOutput,
    ProcessFollower,
    ProcessTree,
    build_limits,
    create_memory_file,
    open_pipe,
    set_limits,
    spawn_process,
    wait_until_readable,
)
from treadle.sandbox.resource_usage import find_descendants
from treadle.sandbox.runtime_folder import make_empty_file, prepare_etc
from treadle.sandbox.seccomp import Machine, build_program

BWRAP = "/usr/bin/bwrap"
"""That exact path: distributions give it, and no other, the right to make user namespaces."""

HOME = "/tmp/home"

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup-try")
# The host's root keeps some rights over these files even in a namespace of its own.
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
_PATIENCE = 20.0
_MOST_MOUNTS = 2000
"""Of what is found in a workspace: bubblewrap takes 9000 words, and the time a mount takes grows with their number."""

_READY = b"\x06"
# The command waits behind the walls until its limits are set and its way out is open. Should we die before, it reads
# the end of its input and is never run: bubblewrap's own way to wait would let it go then.
_GATE = """printf '\\006'; read -r go || exit 125; exec "$@" </dev/null"""

OpenNetwork = Callable[[int, Job], AbstractAsyncContextManager[None]]
"""Opens the network of a sandbox, known by its first process, for as long as its command runs."""


class BubblewrapPlan(Struct, frozen=True):
    """All that stands in a sandbox's arguments. What is `opened` is read-only, but for `ways`, which only stay."""

    job: Job
    workspace: Path
    cwd: Path
    descriptors: Mapping[str, int]
    parent_folders: frozenset[str]
    masked: tuple[Path, ...]
    environment: Mapping[str, str]


async def run_in_bubblewrap(job: Job, on_output: OnOutput, open_network: OpenNetwork) -> CommandResult:
    """Run a command to its end behind all walls; `open_way` is how a granted network is reached."""
    workspace = resolve_sandbox_workspace(job)
    cwd = resolve_working_folder(job, workspace)
    found = await asyncio.to_thread(find_guarded_paths, workspace)
    masked = (*found.own_files, *(() if job.show_env_files else found.env_files))
    if len(masked) + len(found.repositories) > _MOST_MOUNTS:
        raise BadInput(
            f"{workspace} holds {len(masked)} env files and logs and {len(found.repositories)} repositories, and no "
            f"more than {_MOST_MOUNTS} can be protected from a command. Nothing was run. Choose a folder with fewer."
        )
    with ExitStack() as held:
        ways = found.find_parent_folders(workspace) if job.writable else ()
        opened = held.enter_context(
            hold_protected_paths(workspace, (*ways, *(found.repositories if job.writable else ())))
        )
        if not opened.keys() >= set(PROTECTED):
            # We may not make it, but a command might later, by giving itself the right: it may change nothing then.
            job = msgspec.structs.replace(job, writable=False)
        seen = (Path("/usr"), workspace, *job.read_only, *find_interpreter_folders())
        environment = {
            **(build_proxy_environment() if job.network else {}),
            **build_sandbox_environment(job, HOME, seen),
        }
        box = _Box(BubblewrapPlan(job, workspace, cwd, opened, frozenset(map(str, ways)), masked, environment), held)
        try:
            pid = await box.set_up()
            async with open_network(pid, job):
                return await box.follow(pid, on_output)
        finally:
            box.abandon()


class _Box:
    """A bubblewrap that was started and waits with its command until it is let go."""

    def __init__(self, plan: BubblewrapPlan, held: ExitStack) -> None:
        self._plan = plan
        self._held = held
        self._said = b""
        self._first: int | None = None
        with ExitStack() as given:
            self._status, status = open_pipe(held, given)
            written, output = open_pipe(held, given)
            waiting, self._go = open_pipe(given, held)
            filtering = create_memory_file("seccomp", build_program(detect_machine()), given)
            options = [*build_arguments(plan), "--json-status-fd", str(status), "--seccomp", str(filtering)]
            listed = create_memory_file("arguments", b"\0".join(map(os.fsencode, options)), given)
            command = [BWRAP, "--args", str(listed), "--", "/bin/sh", "-c", _GATE, "sh", *plan.job.argv]
            # One that bubblewrap does not take would stay open in the command, and lead around the mount.
            mounted = plan.descriptors.values() if _binds_descriptors() else ()
            self._process = spawn_process(command, waiting, output, (status, filtering, listed, *mounted))
        os.set_blocking(self._status, False)
        self._output = CommandOutput(written, plan.job.bounds.output_bytes)
        held.callback(self._output.stop)

    async def set_up(self) -> int:
        """Wait until all walls stand; the first process in the sandbox's namespace, as we see it."""
        try:
            async with asyncio.timeout(_PATIENCE):
                ready = await self._output.wait_for_mark(_READY)
                while ready and b"\n" not in self._said:
                    await wait_until_readable(self._status)
                    ready = self._hear()
        except TimeoutError:
            raise self._failed(f"it was not ready within {_PATIENCE:g} s") from None
        if not ready:
            raise self._failed(self._output.head.decode(errors="replace").strip() or "it ended at once")
        pid = cast("dict[str, int]", json.loads(self._said.partition(b"\n")[0]))["child-pid"]
        self._first = os.pidfd_open(pid)
        self._held.callback(os.close, self._first)
        for waiting in find_descendants(pid):
            set_limits(waiting, build_limits(self._plan.job.bounds, per_namespace=True))
            self._check_protected(waiting)
        return pid

    def _check_protected(self, pid: int) -> None:
        """Another command may have put a link in the way of a repository further down, between looking and mounting."""
        for name, opened in self._plan.descriptors.items():
            if name in PROTECTED or _binds_descriptors():
                continue
            try:
                seen = os.stat(f"/proc/{pid}/root{self._plan.workspace / name}", follow_symlinks=False)
            except OSError as error:
                raise self._failed(f"it cannot be seen what is mounted at {name} ({error.strerror})") from None
            if not os.path.samestat(seen, os.fstat(opened)):
                raise self._failed(f"{name} was exchanged meanwhile. Run it again.")

    async def follow(self, pid: int, on_output: OnOutput) -> CommandResult:
        """Let the command go, and follow it to its end."""
        assert self._first is not None
        outer = os.pidfd_open(self._process.pid)
        self._held.callback(os.close, outer)
        tree = ProcessTree(pid, self._kill, (outer, self._first))
        following = ProcessFollower(self._process, tree, self._plan.job.bounds, (self._plan.workspace,))
        return await following.follow(self._output, on_output, self._let_go)

    def _let_go(self) -> None:
        os.write(self._go, b"go\n")

    def abandon(self) -> None:
        """Nothing stays behind. A command that was not let go never runs: it waits for a word that cannot come."""
        self._kill()
        if self._process.poll() is None:
            self._end_setting_up()

    def _end_setting_up(self) -> None:
        """End bubblewrap with its child, which for a moment waits for a word of it and would wait for ever without."""
        pid = self._process.pid
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # from here on it makes no other child
        for child in find_descendants(pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def _kill(self) -> None:
        """Killing the first process of a namespace ends all of it."""
        if self._first is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, signal.SIGKILL)

    def _hear(self) -> bool:
        """Read what bubblewrap says of itself; False at the end."""
        try:
            data = os.read(self._status, 4096)
        except BlockingIOError:
            return True
        self._said += data
        return bool(data)

    def _failed(self, why: str) -> SandboxUnavailable:
        return SandboxUnavailable(f"The sandbox could not be set up, so the command was not run: {why}")


def explain_unavailable() -> str:
    """Why this back-end cannot be used here, as a sentence; empty when it can, which is found out by using it."""
    if not os.access(BWRAP, os.X_OK):
        return f"{BWRAP} is not installed."
    try:
        detect_machine()
    except SandboxUnavailable as error:
        return str(error)
    trial = [BWRAP, *(f"--unshare-{name}" for name in _NAMESPACES), "--cap-drop", "ALL", "--die-with-parent"]
    trial += ["--ro-bind", "/usr", "/usr", *_system_folders(), "--proc", "/proc", "--dev", "/dev", "/usr/bin/true"]
    try:
        done = subprocess.run(trial, capture_output=True, text=True, timeout=_PATIENCE, check=False, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{BWRAP} cannot be run ({error})."
    return "" if done.returncode == 0 else f"{BWRAP} does not work here ({done.stderr.strip() or done.returncode})."


def detect_machine() -> Machine:
    """The architecture whose calls are filtered."""
    name = platform.machine()
    if name in ("x86_64", "aarch64"):
        return name
    raise SandboxUnavailable(f"There is no list of system calls for {name}, so nothing was run. Use x86_64 or aarch64.")


def build_arguments(plan: BubblewrapPlan) -> list[str]:
    """What bubblewrap is told, up to its descriptors. Later mounts lie on top of earlier ones."""
    uid, gid = choose_inner_ids()
    size = str(plan.job.bounds.tmp_mb * 1024 * 1024)
    return [
        *(f"--unshare-{name}" for name in _NAMESPACES),
        *("--uid", str(uid), "--gid", str(gid), "--hostname", "sandbox"),
        *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv"),
        *(word for item in plan.environment.items() for word in ("--setenv", *item)),
        *("--ro-bind", "/usr", "/usr"),
        *_system_folders(),
        *("--ro-bind", str(prepare_etc(uid, gid)), "/etc"),
        *("--proc", "/proc"),
        *_hidden_from_root(),
        *("--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--perms", "0700", "--dir", HOME),
        *("--dir", "/run", "--dir", "/var", "--symlink", "../tmp", "/var/tmp"),
        *(word for folder in plan.job.read_only for word in _read_only(_checked(folder))),
        *("--bind" if plan.job.writable else "--ro-bind", str(plan.workspace), str(plan.workspace)),
        *(word for name, opened in _outer_first(plan) for word in _mounted(plan, plan.workspace / name, opened)),
        *(word for path in plan.masked for word in _hidden(path)),
        # On top of the workspace: the code that runs us stays as it is even when it lies in there.
        *(word for folder in find_interpreter_folders() for word in _read_only(folder)),
        *("--remount-ro", "/", "--chdir", str(plan.cwd)),
    ]


def choose_inner_ids() -> tuple[int, int]:
    """Who the command is, in its own eyes: the same user, but never root."""
    return os.getuid() or 1000, os.getgid() or 1000


def _system_folders() -> Iterator[str]:
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from _read_only(path)


def _hidden_from_root() -> Iterator[str]:
    """Without this, root's command could name a program in core_pattern that the kernel runs outside."""
    yield from ("--ro-bind", "/proc/sys", "/proc/sys")
    if os.getuid() == 0:
        for name in _HIDDEN_FROM_ROOT:
            if Path("/proc", name).exists():
                yield from ("--ro-bind", str(make_empty_file()), f"/proc/{name}")


def _outer_first(plan: BubblewrapPlan) -> list[tuple[str, int]]:
    """What is mounted from descriptors, the folders on the way to our own before what may lie in them."""
    return sorted(plan.descriptors.items(), key=lambda item: str(plan.workspace / item[0]) not in plan.parent_folders)


def _mounted(plan: BubblewrapPlan, path: Path, opened: int) -> tuple[str, ...]:
    how = "--bind" if str(path) in plan.parent_folders else "--ro-bind"
    if _binds_descriptors():
        return (f"{how}-fd", str(opened), str(path))
    return (how, str(path), str(path))


def _hidden(path: Path) -> tuple[str, ...]:
    if path.is_dir():
        return ("--tmpfs", str(path), "--remount-ro", str(path))
    return ("--ro-bind", str(make_empty_file()), str(path))


def _read_only(path: Path) -> tuple[str, ...]:
    return ("--ro-bind", str(path), str(path))


def _checked(folder: Path) -> Path:
    if not folder.is_absolute() or not folder.exists() or Path.home().resolve().is_relative_to(folder.resolve()):
        raise BadInput(
            f"{folder} cannot be shown to commands: name an existing folder, and not your home. Nothing was run."
        )
    return folder


@lru_cache(maxsize=1)
def _binds_descriptors() -> bool:
    """Whether this bubblewrap makes sure that what it mounts is what was opened; those before 0.10 may not."""
    done = subprocess.run([BWRAP, "--help"], capture_output=True, text=True, check=False, env={}, cwd="/")
    return "--ro-bind-fd" in done.stdout
