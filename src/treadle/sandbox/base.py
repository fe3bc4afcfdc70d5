"""The sandbox port: a command to run, its bounds, how it ended, and which walls hold on this machine.

No policy here: whether a command may run is decided before anybody is asked to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from treadle.errors import TreadleError

SandboxLevel = Literal["bubblewrap", "landlock", "none"]
"""Which walls hold: all of them, the reduced ones of the kernel alone, or none. As it stands in `call_started`."""

EndReason = Literal["exited", "signalled", "wall", "memory", "processes", "output", "disk"]
"""Why a command ended: by itself, by a signal, or because it went over a bound and was killed."""

OnOutput = Callable[[bytes], None]
"""Gets standard output and error as they come, merged, in pieces that need not end at a character."""

INSTALL_HINT = (
    "Install bubblewrap: `apt-get install bubblewrap`, `dnf install bubblewrap` or `apk add bubblewrap`. It must be at "
    "/usr/bin/bwrap, and the kernel must allow user namespaces."
)


class SandboxUnavailable(TreadleError):
    """No wall could be put up, so nothing was run; the message says why and what to install."""


class Bounds(Struct, frozen=True):
    """What a command may use at most. Memory and processes count for all its processes together.

    `file_mb` is the size of one file, `disk_mb` how much the workspace may grow, `tmp_mb` the size of the private /tmp.
    """

    wall_s: float = 120.0
    memory_mb: int = 2048
    processes: int = 256
    open_files: int = 1024
    file_mb: int = 512
    tmp_mb: int = 512
    disk_mb: int = 2048
    output_bytes: int = 10 * 1024 * 1024


class Job(Struct, frozen=True):
    """A command, and what it may touch.

    `cwd` is relative to the workspace. `network` reaches public hosts only: those in `allow_hosts` (`example.org`,
    `*.example.org`, `example.org:8443`), or all when that is empty. `env` is added to the few variables that are
    passed on. `read_only` names folders to show besides the system's own. `env_files` shows `.env` files as they are.
    `writable` is whether walls let it change the workspace.
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


class CommandResult(Struct, frozen=True):
    """How a command ended. `code` is None when it was killed for a bound; 128 + n when signal n ended it."""

    code: int | None
    reason: EndReason
    signal: int | None
    seconds: float
    output_bytes: int


class ProbeResult(Struct, frozen=True):
    """Which walls hold here, why not more, and what to do about it; `network` is whether it can be granted."""

    level: SandboxLevel
    why: str
    hint: str = ""
    network: bool = False


class Sandbox(Protocol):
    """Where commands run. The module `treadle.sandbox.backend` is one."""

    def probe(self) -> ProbeResult:
        """Which walls hold on this machine; found out once a process."""
        ...

    async def run_in_sandbox(self, job: Job, on_output: OnOutput) -> CommandResult:
        """Run a command behind the walls to its end. Cancelling kills all of it, and returns when it is gone."""
        ...

    async def run_on_host(self, job: Job, on_output: OnOutput) -> CommandResult:
        """Run a command without walls, but with its bounds, a clean environment, and nothing left behind."""
        ...
