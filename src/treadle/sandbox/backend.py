"""The sandbox of this machine: the best back-end that works here, found by trying. It never goes without silently."""

from __future__ import annotations

import os
import sys
from functools import lru_cache

import msgspec

from treadle.errors import BadInput
from treadle.sandbox.base import INSTALL_HINT, CommandResult, Job, OnOutput, ProbeResult, SandboxUnavailable

_LONGEST = 128 * 1024
_MOST = 1 << 40
_ELSEWHERE = (
    "Commands can be run on Linux only, so none is run here. Use a Linux machine, container or virtual machine."
)


@lru_cache(maxsize=1)
def probe() -> ProbeResult:
    """Which walls hold on this machine, and why not more."""
    if sys.platform != "linux":
        return ProbeResult("none", _ELSEWHERE)
    from treadle.sandbox import bubblewrap, landlock

    missing = bubblewrap.explain_unavailable()
    if not missing:
        return ProbeResult("bubblewrap", "bubblewrap, seccomp and limits hold", network=True)
    if landlock.read_landlock_version() >= landlock.OLDEST_VERSION:
        why = (
            f"Only Landlock and seccomp hold: {missing} Other processes can be seen, and there is no network to grant."
        )
        return ProbeResult("landlock", why, INSTALL_HINT)
    return ProbeResult("none", f"No sandbox: {missing} The kernel has no Landlock that could stand in.", INSTALL_HINT)


async def run_in_sandbox(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command behind the best walls there are; raises `SandboxUnavailable` when there are none."""
    _check(job)
    found = probe()
    if found.level == "bubblewrap":
        from treadle.sandbox import bubblewrap, network

        return await bubblewrap.run_in_bubblewrap(job, on_output, network.open_network)
    if found.level == "landlock":
        from treadle.sandbox import landlock

        return await landlock.run_in_landlock(job, on_output)
    raise SandboxUnavailable(f"The command was not run. {found.why} {found.hint}")


async def run_on_host(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command without walls, for users who chose that; its bounds hold, and none of it outlives it."""
    from treadle.sandbox import host

    _check(job)
    return await host.run_on_host(job, on_output)


def _check(job: Job) -> None:
    if sys.platform != "linux":
        raise SandboxUnavailable(_ELSEWHERE)
    for name, value in msgspec.structs.asdict(job.bounds).items():
        if not value > 0 or (value > _MOST and name != "wall_s"):
            most = "" if name == "wall_s" else f" and at most {_MOST}"
            raise BadInput(f"The bound {name} is {value}, but must be above 0{most}. Nothing was run.")
    if any(not name or "=" in name for name in job.env):
        raise BadInput("The name of a variable is empty or holds an equals sign. Nothing was run.")
    if any(len(os.fsencode(word)) >= _LONGEST for word in job.argv):
        raise BadInput("The command is too long for the system. Nothing was run. Write it to a file, and run that.")
    texts = (*job.argv, job.cwd, *job.env, *job.env.values())
    if not job.argv or any("\0" in text for text in texts):
        raise BadInput("A command needs at least its program, and no text in it may hold a NUL. Nothing was run.")
