"""The sandbox port: a command to run, its limits, its result, and which sandbox works on this machine.

It holds no policy: others have decided that the command may run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct, field

from treadle.errors import TreadleError

SandboxLevel = Literal["bubblewrap", "landlock", "none"]
"""Which sandbox works: the full one, the reduced one of the kernel, or none. `call_started` records it."""

EndReason = Literal["exited", "signalled", "wall", "memory", "processes", "output", "disk"]
"""Why a command ended: by itself, by a signal, or killed because it went over a limit."""

OnOutput = Callable[[bytes], None]
"""Receives standard output and error, merged, as they come. A piece may end inside a character."""

AskHost = Callable[[str, int], Awaitable[str]]
"""Asks whether the command may reach a host at a port, while the command waits. Returns why not, or nothing if it may.
"""

INSTALL_HINT = (
    "Install bubblewrap: `apt-get install bubblewrap`, `dnf install bubblewrap` or `apk add bubblewrap`. It must be at "
    "/usr/bin/bwrap, and the kernel must allow user namespaces."
)


class SandboxUnavailable(TreadleError):
    """There is no sandbox, so nothing was run. The message says why, and what to install."""


class ProbeResult(Struct, frozen=True):
    """Which sandbox works here, why no better one does, and what to install. `network`: can it be granted?"""

    level: SandboxLevel
    why: str
    hint: str = ""
    network: bool = False


class Bounds(Struct, frozen=True):
    """The limits of a command. Memory and processes count for all its processes together.

    `wall_s` is the time in seconds, `file_mb` the size of one file, `disk_mb` the growth of the workspace, and `tmp_mb`
    the size of the private /tmp.
    """

    wall_s: float = 120.0
    memory_mb: int = 2048
    processes: int = 256
    open_files: int = 1024
    file_mb: int = 512
    tmp_mb: int = 512
    disk_mb: int = 2048
    output_bytes: int = 10 * 1024 * 1024


class Mount(Struct, frozen=True):
    """A folder or file that a command sees, at the same path as outside, and the reason in a few words."""

    path: Path
    why: str


class HeldMount(Struct, frozen=True):
    """What is mounted at `target`: an open descriptor, or `source` where bubblewrap takes no descriptors."""

    target: str
    source: str
    descriptor: int
    is_writable: bool


class RefChange(Struct, frozen=True):
    """A branch, a tag, the stash or `HEAD` that a command changed. An empty value: it did not exist.

    A value is the id of an object. That of `HEAD` may also be `ref: refs/heads/NAME`.
    """

    ref: str
    before: str
    after: str


class GitReport(Struct, frozen=True):
    """What a command did to a repository: what was taken over from its private copy, and what was rejected.

    `repository` is the folder of the work tree in the workspace, empty for the workspace itself. `commits` are new ones
    as `ID SUBJECT`, newest first. `rejected` are sentences for the model. `index_before` is the index file before the
    command, if the command changed it.
    """

    repository: str = ""
    changes: tuple[RefChange, ...] = ()
    commits: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    index_before: bytes | None = None


class Job(Struct, frozen=True):
    """A command, and what it may touch.

    `cwd` is relative to the workspace. `network` reaches public hosts only: those in `allow_hosts` (`example.org`,
    `*.example.org`, `example.org:8443`), or all when that is empty. `env` is added to the few variables that are
    passed on. `read_only` names programs and folders besides those of the system and of toolchains. `shown_folders` and
    `writable_folders` are folders of the user by their real paths: what is secret or protected in a workspace is so in
    them too.
    `own_registries` are hosts of the user's own network: if the command may reach one, its address may be private.
    `show_env_files` shows the content of `.env` files. `writable` lets the command change the workspace. `ask_host` is
    called for a host that is not allowed; without it such a host is refused.
    """

    argv: tuple[str, ...]
    workspace: Path
    cwd: str = ""
    network: bool = False
    allow_hosts: tuple[str, ...] = ()
    bounds: Bounds = Bounds()
    env: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    read_only: tuple[Path, ...] = ()
    show_env_files: bool = False
    writable: bool = True
    shown_folders: tuple[Path, ...] = ()
    writable_folders: tuple[Path, ...] = ()
    ask_host: AskHost | None = None
    own_registries: tuple[str, ...] = ()


class CommandResult(Struct, frozen=True):
    """How a command ended. `code` is None when a limit ended it, and 128 + n when signal n did.

    `refused_hosts` are the hosts that it wanted and did not reach, as `HOST:PORT`, and why. `git` has a report for each
    repository that it tried to change.
    """

    code: int | None
    reason: EndReason
    signal: int | None
    seconds: float
    output_bytes: int
    refused_hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    git: tuple[GitReport, ...] = ()


class Sandbox(Protocol):
    """Runs commands. The module `treadle.sandbox.backend` is the real one."""

    def probe(self) -> ProbeResult:
        """Find out which sandbox works on this machine, once in a process."""
        ...

    async def run_in_sandbox(self, job: Job, on_output: OnOutput) -> CommandResult:
        """Run a command in the sandbox to its end. Cancelling kills all its processes and then returns."""
        ...

    async def run_on_host(self, job: Job, on_output: OnOutput) -> CommandResult:
        """Run a command without a sandbox, but with its limits and a clean environment. No process outlives it."""
        ...
