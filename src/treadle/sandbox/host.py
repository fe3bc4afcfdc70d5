"""Commands outside a pid namespace: on the host itself (`--access full`), and under Landlock.

They are started by supervisor.py, which ends all of their processes.
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.sandbox import process
from treadle.sandbox.base import CommandResult, Job, OnOutput
from treadle.sandbox.environment import build_host_environment
from treadle.sandbox.guarded_paths import resolve_working_folder, resolve_workspace

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class SupervisorConfig(Struct, frozen=True):
    """The command for supervisor.py, and the rights that it keeps. Without rules it keeps all rights."""

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    rules: list[tuple[str, int]] = []
    handled: int = 0
    scoped: int = 0
    seccomp: bytes = b""


async def run_on_host(job: Job, on_output: OnOutput) -> CommandResult:
    """Run a command to its end without a sandbox, but with limits and a clean environment."""
    workspace = resolve_workspace(job)
    cwd = resolve_working_folder(job, workspace)
    config = SupervisorConfig(argv=job.argv, cwd=str(cwd), env=build_host_environment(job))
    return await run_supervised(config, job, (workspace,), on_output)


async def run_supervised(
    config: SupervisorConfig, job: Job, folders: tuple[Path, ...], on_output: OnOutput
) -> CommandResult:
    """Run a command to its end. `folders` are watched for growth."""
    limits = [*process.build_limits(job.bounds, per_namespace=False).items()]
    settings = marshal.dumps({**msgspec.structs.asdict(config), "limits": limits})
    with ExitStack() as ours:
        with ExitStack() as theirs:
            control, stop = process.open_pipe(theirs, ours)
            read_end, write_end = process.open_pipe(ours, theirs)
            settings_file = process.create_memory_file("settings", settings, theirs)
            command = [sys.executable, "-I", "-S", "-B", str(_SUPERVISOR), str(settings_file), str(control)]
            supervisor = process.spawn_process(command, subprocess.DEVNULL, write_end, (settings_file, control))
        output = process.CommandOutput(read_end, job.bounds.output_bytes)
        ours.callback(output.stop)
        handle = os.pidfd_open(supervisor.pid)
        ours.callback(os.close, handle)

        def stop_all() -> None:
            with suppress(BrokenPipeError):  # it has ended already
                os.write(stop, b"stop")

        tree = process.ProcessTree(supervisor.pid, stop_all, (handle,))
        follower = process.ProcessFollower(supervisor, tree, job.bounds, folders)
        return await follower.follow(output, on_output, lambda: None)
