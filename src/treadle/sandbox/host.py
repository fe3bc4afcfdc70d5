"""A command on the host itself, for `--access full`: no walls, but bounds, a clean environment, and an end for all."""

from __future__ import annotations

from treadle.sandbox import supervised
from treadle.sandbox.base import Ended, Job, OnOutput
from treadle.sandbox.environment import host_environment
from treadle.sandbox.guarded_paths import existing_workspace, working_folder


async def run(job: Job, on_output: OnOutput) -> Ended:
    """Run a command to its end without walls."""
    workspace = existing_workspace(job)
    launch = supervised.Launch(argv=job.argv, cwd=str(working_folder(job, workspace)), env=host_environment(job))
    return await supervised.run(launch, job, (workspace,), on_output)
