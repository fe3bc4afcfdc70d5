"""The sandbox of this machine: the best one that works here. It never runs a command unprotected without saying so."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from treadle.errors import BadInput
from treadle.sandbox.base import INSTALL_HINT, CommandResult, Job, OnOutput, ProbeResult, SandboxUnavailable

if TYPE_CHECKING:
    from treadle.sandbox.long_running import WaitingProgram

_MAX_ARGUMENT_BYTES = 128 * 1024
_MAX_BOUND = 1 << 40
_NOT_LINUX = (
    "Commands can be run on Linux only, so none is run here. Use a Linux machine, container or virtual machine."
)


@lru_cache(maxsize=1)
def probe() -> ProbeResult:
    """Find out which sandbox works on this machine, and why no better one does."""
    if sys.platform != "linux":
        return ProbeResult("none", _NOT_LINUX)
    from treadle.sandbox import bubblewrap, landlock

    missing = bubblewrap.explain_unavailable()
    if not missing:
        return ProbeResult("bubblewrap", "bubblewrap, seccomp and limits hold", network=True)
    if landlock.read_landlock_version() >= landlock.OLDEST_VERSION:
        why = (
            f"Only Landlock and seccomp hold: {missing} Commands can see other processes, and cannot be given a "
            "network."
        )
        return ProbeResult("landlock", why, INSTALL_HINT)
    return ProbeResult("none", f"No sandbox: {missing} The kernel has no Landlock to use instead.", INSTALL_HINT)


async def run_in_sandbox(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command in the best sandbox; raises `SandboxUnavailable` when there is none."""
    _check_job(job)
    found = probe()
    if found.level == "bubblewrap":
        from treadle.sandbox import bubblewrap, network

        return await bubblewrap.run_in_bubblewrap(job, on_output, network.open_network)
    if found.level == "landlock":
        from treadle.sandbox import landlock

        return await landlock.run_in_landlock(job, on_output)
    raise SandboxUnavailable(f"The command was not run. {found.why} {found.hint}")


def prepare_program(job: Job, *, is_private: bool) -> AbstractAsyncContextManager[WaitingProgram]:
    """Prepare a program that runs for long in the full sandbox; raises `SandboxUnavailable` when there is none.

    `is_private` says that nobody else uses its workspace, so nothing in it is protected.
    """
    _check_job(job)
    found = probe()
    if found.level != "bubblewrap":
        raise SandboxUnavailable(f"The program was not run. {found.why} {found.hint}")
    from treadle.sandbox import long_running

    return long_running.prepare_program(job, is_private=is_private)


async def run_on_host(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command without a sandbox, for users who chose that. Its limits hold, and no process outlives it."""
    from treadle.sandbox import host

    _check_job(job)
    return await host.run_on_host(job, on_output)


def _check_job(job: Job) -> None:
    if sys.platform != "linux":
        raise SandboxUnavailable(_NOT_LINUX)
    for name, value in msgspec.structs.asdict(job.bounds).items():
        if not value > 0 or (value > _MAX_BOUND and name != "wall_s"):
            most = "" if name == "wall_s" else f" and at most {_MAX_BOUND}"
            raise BadInput(f"The bound {name} is {value}, but must be above 0{most}. Nothing was run.")
    if any(not name or "=" in name for name in job.env):
        raise BadInput("The name of a variable is empty or holds an equals sign. Nothing was run.")
    if any(len(os.fsencode(word)) >= _MAX_ARGUMENT_BYTES for word in job.argv):
        raise BadInput("The command is too long for the system. Nothing was run. Write it to a file, and run that.")
    texts = (*job.argv, job.cwd, *job.env, *job.env.values())
    if not job.argv or any("\0" in text for text in texts):
        raise BadInput("A command needs at least its program, and no text in it may hold a NUL. Nothing was run.")
