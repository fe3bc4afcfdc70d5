"""Runs the command of a hook: outside the sandbox, with a short list of variables, a time limit and a size limit.

The supervisor of the sandbox starts it. When the command ends, is too slow or writes too much, or when treadle itself
is killed, the supervisor ends all of its processes. A command can kill its supervisor: then treadle ends the processes
that have the mark of this hook among their variables.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from treadle.errors import TreadleError
from treadle.sandbox import supervisor
from treadle.sandbox.base import Job
from treadle.sandbox.environment import build_host_environment, build_outside_path
from treadle.sandbox.host import SupervisorConfig
from treadle.sandbox.process import create_memory_file, finish_despite_cancel, open_pipe

MAX_OUTPUT_BYTES = 256 * 1024
END_SECONDS = 2.0
"""Seconds that the supervisor has to end all processes, before it is killed itself."""
_MARK = "TREADLE_HOOK"
_MAX_ROUNDS = 100


class HookFailed(TreadleError):
    """A hook gave no verdict. The message says why."""


class HookOutput(NamedTuple):
    """What a command wrote, and its exit code."""

    code: int
    out: bytes
    error: bytes


async def run_hook_command(command: str, data: bytes, workspaces: tuple[Path, ...], timeout: float) -> HookOutput:
    """Run a command with `data` on its standard input; raises `HookFailed`. Its folder is the user's home.

    The first of the `workspaces` is the session's. Neither its folder nor its search path is in any of them: an agent
    could decide there which files the command runs.
    """
    argv = ("/bin/sh", "-c", command)
    mark = os.urandom(16).hex()
    own = {"TREADLE_WORKSPACE": str(workspaces[0]), "PATH": build_outside_path(*workspaces), _MARK: mark}
    own["PYTHONDONTWRITEBYTECODE"] = "1"  # a new folder in .treadle/hooks would be a text that nobody trusted
    variables = build_host_environment(Job(argv=argv, workspace=workspaces[0], env=own))
    config = SupervisorConfig(argv=argv, cwd=str(Path.home()), env=variables)
    settings = marshal.dumps({**msgspec.structs.asdict(config), "limits": [(resource.RLIMIT_CORE, 0)]})
    with ExitStack() as ours:
        with ExitStack() as theirs:
            control, _ = open_pipe(theirs, ours)
            settings_file = create_memory_file("settings", settings, theirs)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-B", supervisor.__file__, str(settings_file), str(control)),
                stdin=create_memory_file("input", data, theirs),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(settings_file, control),
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(timeout):
                out, error = await asyncio.gather(*(_read_output(stream, ours) for stream in _list_streams(process)))
                code = await process.wait()
                if max(len(out), len(error)) > MAX_OUTPUT_BYTES:
                    raise HookFailed(f"it wrote more than {MAX_OUTPUT_BYTES // 1024} KiB, and was killed")
                return HookOutput(code, out, error)
        except TimeoutError:
            raise HookFailed(f"it did not end within {timeout:g} s, and was killed") from None
        finally:
            ours.close()  # the supervisor kills what still runs
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)  # the command may have stopped it
            await finish_despite_cancel(_end_processes(process, mark))


def _list_streams(process: asyncio.subprocess.Process) -> list[asyncio.StreamReader]:
    return [stream for stream in (process.stdout, process.stderr) if stream is not None]


async def _read_output(stream: asyncio.StreamReader, stop: ExitStack) -> bytes:
    """Read to the end. Output that is too long stops the command, and the rest of it is dropped."""
    data = bytearray()
    while chunk := await stream.read(65536):
        if len(data) <= MAX_OUTPUT_BYTES:
            data += chunk
        else:
            stop.close()
    return bytes(data)


async def _end_processes(process: asyncio.subprocess.Process, mark: str) -> None:
    """Wait until the supervisor has ended all processes. If it cannot, kill those with the mark."""
    for _ in range(2):
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await _wait_for_end(process)
        if process.returncode is not None and process.returncode >= 0:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.to_thread(kill_marked_processes, f"{_MARK}={mark}".encode())


def kill_marked_processes(variable: bytes) -> None:
    """Kill all processes that were started with this variable. They may start others meanwhile, so look again."""
    for _ in range(_MAX_ROUNDS):
        found = False
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):  # it has ended, or is another user's
                if variable in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
                    found = True
        if not found:
            return


async def _wait_for_end(process: asyncio.subprocess.Process) -> None:
    """Wait until the supervisor has ended. asyncio reports the end only when both streams were read to their end."""
    for stream in _list_streams(process):
        while await stream.read(65536):
            pass
    await process.wait()
