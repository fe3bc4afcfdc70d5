"""A command on the host itself, for `--access full`: no walls, but bounds, a clean environment, and an end for all."""

from __future__ import annotations

from treadle.sandbox import supervised
from treadle.sandbox.base import CommandResult, Job, OnOutput
from treadle.sandbox.environment import build_host_environment
from treadle.sandbox.guarded_paths import resolve_working_folder, resolve_workspace


async def run_on_host(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command to its end without walls."""
    workspace = resolve_workspace(job)
    launch = supervised.SupervisorConfig(
        argv=job.argv, cwd=str(resolve_working_folder(job, workspace)), env=build_host_environment(job)
    )
    return await supervised.run_supervised(launch, job, (workspace,), on_output)
