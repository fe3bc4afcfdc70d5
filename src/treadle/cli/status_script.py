"""The user's own status line: a command that gets facts as JSON and whose first line of output is shown.

The command comes from the user's configuration only. It runs at most every few seconds and never delays the terminal.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from treadle.cli.console import escape_controls
from treadle.messages import Json
from treadle.sandbox.base import Job
from treadle.sandbox.environment import build_host_environment, build_outside_path

LIMIT_SECONDS = 0.3
PAUSE_SECONDS = 3.0
"""Seconds between two starts of the command."""
MAX_BYTES = 8192

_STYLE = re.compile(r"\x1b\[[0-9;:]*m")


class StatusScript:
    """Runs the command and keeps its last line. `line` is empty while the ordinary status line is to be shown."""

    def __init__(self, command: str) -> None:
        self.line = ""
        self._command = command
        self._has_failed = False
        self._started = -PAUSE_SECONDS

    async def update(self, facts: dict[str, Json]) -> str:
        """Run the command, unless it ran a moment ago. Return why it failed, but only the first time."""
        if not self._command or time.monotonic() - self._started < PAUSE_SECONDS:
            return ""
        self._started = time.monotonic()
        try:
            self.line = clean_line(await asyncio.to_thread(run_status_command, self._command, facts))
            return ""
        except (OSError, ValueError) as error:
            has_failed, self._has_failed, self.line = self._has_failed, True, ""
            why = f"it took more than {LIMIT_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
            return "" if has_failed else f"status_command is not used: {why}"


def run_status_command(command: str, facts: dict[str, Json]) -> str:
    """Run the command with the facts on its standard input. Return its first line, or raise why there is none.

    It gets the variables of a hook: a short list without keys, and no programs from the workspace.
    """
    argv, folder = ("/bin/sh", "-c", command), Path(str(facts.get("folder") or "/nonexistent"))
    process = subprocess.Popen(
        argv,
        env=build_host_environment(Job(argv=argv, workspace=folder, env={"PATH": build_outside_path(folder)})),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",  # not the workspace: programs may read files of the folder they start in
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    end, output, piece = time.monotonic() + LIMIT_SECONDS, b"", b" "
    try:
        with suppress(BrokenPipeError):  # it may not read its input
            process.stdin.write(json.dumps(facts).encode()[:MAX_BYTES])
            process.stdin.close()
        while piece and b"\n" not in output:
            if not select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            piece = os.read(process.stdout.fileno(), MAX_BYTES)
            output += piece
            if len(output) > MAX_BYTES and b"\n" not in output[:MAX_BYTES]:
                raise ValueError(f"its first line is longer than {MAX_BYTES} bytes")
        if not output:
            raise ValueError(f"it wrote no line and ended with code {process.wait(LIMIT_SECONDS)}")
        return output.partition(b"\n")[0].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()


def clean_line(text: str) -> str:
    """Keep the escape codes that set a style, and make every other control character visible."""
    line = text.split("\n", 1)[0].rstrip("\r")
    pieces = _STYLE.split(line)
    styles = _STYLE.findall(line)
    cleaned = "".join(f"{escape_controls(piece)}{style}" for piece, style in zip(pieces, [*styles, ""], strict=True))
    return f"{cleaned}\x1b[0m" if styles else cleaned
