"""Run a command that does nothing, without a sandbox and in each sandbox, and print a table.

python benchmarks/sandbox.py [--reps 5] [--rounds 40]

The table shows wall time, and CPU time (user and system) of this process and its children.
The least of several rounds counts. One row has three toolchains in a home that the script makes: pyenv, nvm and rustup.
The last line is what their mounts add. The goal is at most 30 ms of CPU.
"""

import argparse
import asyncio
import ctypes
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from treadle.sandbox import landlock, network
from treadle.sandbox.backend import probe, run_in_sandbox, run_on_host
from treadle.sandbox.base import CommandResult, Job, OnOutput

PATH = "/usr/local/bin:/usr/bin:/bin"
Run = Callable[[Job, OnOutput], Awaitable[CommandResult]]


async def run_plainly(job: Job, on_output: OnOutput) -> CommandResult:
    """Run the same command with the standard library, and read its output. This is the floor."""
    process = await asyncio.create_subprocess_exec(
        *job.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=job.workspace
    )
    on_output((await process.communicate())[0])
    return CommandResult(process.returncode, "exited", None, 0.0, 0)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent has ended: then the first process of a sandbox is counted too."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


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


TOOLCHAINS = {
    "pyenv": (".pyenv/shims/python3", ".pyenv/bin/pyenv", ".pyenv/libexec/pyenv", ".pyenv/versions/3.11.7/bin/python3"),
    "nvm": (".nvm/versions/node/v22.1.0/bin/node", ".nvm/versions/node/v20.9.0/bin/node"),
    "rustup": (".cargo/bin/cargo", ".rustup/toolchains/stable/bin/cargo", ".rustup/update-hashes/stable"),
}
SETTINGS = (
    ".pyenv/version",
    ".rustup/settings.toml",
    ".cargo/credentials.toml",
    ".nvm/versions/node/v22.1.0/etc/npmrc",
)
SEARCHED = (".cargo/bin", ".pyenv/shims", ".pyenv/bin", ".nvm/versions/node/v22.1.0/bin")


def make_toolchains(home: Path) -> str:
    """Make the layouts of three toolchains in a home. Return the search path."""
    for name in (*(one for files in TOOLCHAINS.values() for one in files), *SETTINGS):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("#!/bin/sh\n")
        (home / name).chmod(0o644 if name in SETTINGS else 0o755)
    return os.pathsep.join([*(str(home / name) for name in SEARCHED), "/usr/local/bin", "/usr/bin", "/bin"])


@contextmanager
def use_home(home: Path, search_path: str) -> Iterator[None]:
    """Let this process have another home, with nothing of this machine's toolchains."""
    names = [name for name in os.environ if name.endswith(("_ROOT", "_HOME", "_DIR")) or name == "VIRTUAL_ENV"]
    before = {name: os.environ.pop(name) for name in [*names, "HOME", "PATH"] if name in os.environ}
    os.environ |= {"HOME": str(home), "PATH": search_path}
    try:
        yield
    finally:
        os.environ |= before


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        plain, own = Path(folder, "plain"), Path(folder, "home/code")
        for made in (plain, own):
            made.mkdir(parents=True)
        search_path = make_toolchains(home)
        job = Job(("/usr/bin/true",), plain)
        ways: dict[str, tuple[Run, Job]] = {
            "plain, by asyncio": (run_plainly, job),
            "on the host, bounds held": (run_on_host, job),
        }
        if landlock.read_landlock_version() >= landlock.OLDEST_VERSION:
            ways["Landlock and seccomp"] = (landlock.run_in_landlock, job)
        if probe().level == "bubblewrap":
            ways["bubblewrap, seccomp and limits"] = (run_in_sandbox, job)
            ways["the same with three toolchains"] = (run_in_sandbox, Job(job.argv, own))
            ways["the same with network"] = (run_in_sandbox, Job(job.argv, job.workspace, network=True))
            ways["the same, asking for hosts"] = (run_in_sandbox, Job(job.argv, job.workspace, ask_host=allow_host))
        print("| `true` | wall | added | CPU | added |\n|---|---|---|---|---|", flush=True)
        floor: tuple[float, float] | None = None
        all_best: dict[str, tuple[float, float]] = {}
        for name, (run, wanted) in ways.items():
            place = (home, search_path) if wanted.workspace == own else (Path(folder, "empty"), PATH)
            with use_home(*place):
                await measure(run, wanted, 2)
                found = [await measure(run, wanted, options.rounds) for _ in range(options.reps)]
            best = all_best[name] = min(wall for wall, _ in found), min(used for _, used in found)
            floor = floor or best
            cells = [
                text
                for mine, least in zip(best, floor, strict=True)
                for text in (f"{mine * 1e3:.1f} ms = {mine / least:.1f} ×", f"{(mine - least) * 1e3:.1f} ms")
            ]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if "the same with three toolchains" in all_best:
            with_tools, without = all_best["the same with three toolchains"], all_best["bubblewrap, seccomp and limits"]
            added = [(mine - other) * 1e3 for mine, other in zip(with_tools, without, strict=True)]
            print(f"\nThree toolchains add {added[0]:.1f} ms, and {added[1]:.1f} ms of CPU. The goal is 30 ms of CPU.")


if __name__ == "__main__":
    asyncio.run(main())
