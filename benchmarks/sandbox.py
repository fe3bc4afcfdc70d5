"""Run a command that does nothing, without a sandbox and in each sandbox, and print a table.

python benchmarks/sandbox.py [--reps 5] [--rounds 40]

The table shows wall time, and CPU time (user and system) of this process and its children.
The least of several rounds counts.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from treadle.sandbox import landlock, network
from treadle.sandbox.backend import probe, run_in_sandbox, run_on_host
from treadle.sandbox.base import CommandResult, Job, OnOutput

Run = Callable[[Job, OnOutput], Awaitable[CommandResult]]


async def run_plainly(job: Job, on_output: OnOutput) -> CommandResult:
    """Run the same command with the standard library, and read its output. This is the floor."""
    process = await asyncio.create_subprocess_exec(
        *job.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=job.workspace
    )
    on_output((await process.communicate())[0])
    return CommandResult(process.returncode, "exited", None, 0.0, 0)


def read_cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + read_helper_cpu()


def read_helper_cpu() -> float:
    """Read the CPU time of the process that opens the networks, which lives as long as this one."""
    if network.helper.pid is None:
        return 0.0
    fields = Path(f"/proc/{network.helper.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


async def allow_host(host: str, port: int) -> str:
    return ""


async def measure(run: Run, job: Job, rounds: int) -> tuple[float, float]:
    """Return the seconds of wall and CPU time for one command."""
    wall, used = time.perf_counter(), read_cpu()
    for _ in range(rounds):
        ended = await run(job, lambda data: None)
        assert ended.code == 0, ended
    return (time.perf_counter() - wall) / rounds, (read_cpu() - used) / rounds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(("/usr/bin/true",), Path(folder))
        ways: dict[str, tuple[Run, Job]] = {
            "plain, by asyncio": (run_plainly, job),
            "on the host, bounds held": (run_on_host, job),
        }
        if landlock.read_landlock_version() >= landlock.OLDEST_VERSION:
            ways["Landlock and seccomp"] = (landlock.run_in_landlock, job)
        if probe().level == "bubblewrap":
            ways["bubblewrap, seccomp and limits"] = (run_in_sandbox, job)
            ways["the same with network"] = (run_in_sandbox, Job(job.argv, job.workspace, network=True))
            ways["the same, asking for hosts"] = (run_in_sandbox, Job(job.argv, job.workspace, ask_host=allow_host))
        print("| `true` | wall | added | CPU | added |\n|---|---|---|---|---|", flush=True)
        floor: tuple[float, float] | None = None
        for name, (run, wanted) in ways.items():
            await measure(run, wanted, 2)
            found = [await measure(run, wanted, options.rounds) for _ in range(options.reps)]
            best = min(wall for wall, _ in found), min(used for _, used in found)
            floor = floor or best
            cells = [
                text
                for mine, least in zip(best, floor, strict=True)
                for text in (f"{mine * 1e3:.1f} ms = {mine / least:.1f} ×", f"{(mine - least) * 1e3:.1f} ms")
            ]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
