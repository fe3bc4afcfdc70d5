"""Commands behind the walls that the shell tool uses, for those who run one themselves."""

from __future__ import annotations

from treadle.sandbox.base import Ended, Job, OnOutput, Probe


def probe() -> Probe:
    """Which walls hold on this machine, and what to do when they are not the best."""
    from treadle.sandbox.run import probe

    return probe()


async def run_in_sandbox(job: Job, on_output: OnOutput) -> Ended:
    """Run a command to its end; raises `SandboxUnavailable`, with what to install, when nothing can hold it."""
    from treadle.sandbox.run import run_in_sandbox

    return await run_in_sandbox(job, on_output)
