"""A command without a pid namespace, run through the small program in launch.py so that no part of it outlives it."""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.sandbox.base import CommandResult, Job, OnOutput
from treadle.sandbox.process import (
    CommandOutput,
    ProcessFollower,
    ProcessTree,
    build_limits,
    create_memory_file,
    open_pipe,
    spawn_process,
)

_LAUNCH = Path(__file__).with_name("supervisor.py")


class SupervisorConfig(Struct, frozen=True):
    """What launch.py is told: the command, and the rights it keeps; without rules it keeps all."""

    argv: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    rules: list[tuple[str, int]] = []
    handled: int = 0
    scoped: int = 0
    seccomp: bytes = b""


async def run_supervised(
    launch: SupervisorConfig, job: Job, folders: tuple[Path, ...], on_output: OnOutput
) -> CommandResult:
    """Run it to its end; `folders` are those whose growth is watched."""
    limits = [*build_limits(job.bounds, per_namespace=False).items()]
    with ExitStack() as held:
        with ExitStack() as given:
            control, keep = open_pipe(given, held)
            written, output = open_pipe(held, given)
            told = create_memory_file(
                "launch", marshal.dumps({**msgspec.structs.asdict(launch), "limits": limits}), given
            )
            command = [sys.executable, "-I", "-S", "-B", str(_LAUNCH), str(told), str(control)]
            process = spawn_process(command, subprocess.DEVNULL, output, (told, control))
        merged = CommandOutput(written, job.bounds.output_bytes)
        held.callback(merged.stop)
        handle = os.pidfd_open(process.pid)
        held.callback(os.close, handle)
        tree = ProcessTree(process.pid, lambda: _say_stop(keep), (handle,))
        return await ProcessFollower(process, tree, job.bounds, folders).follow(merged, on_output, lambda: None)


def _say_stop(control: int) -> None:
    with suppress(BrokenPipeError):  # it has ended already
        os.write(control, b"stop")
