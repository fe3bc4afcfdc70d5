"""What the shell tool's tests share: a workspace, a desk that remembers, and calling the tool as the engine would."""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.events import KeptFile, Tier
from treadle.messages import Json
from treadle.sandbox import backend as sandbox
from treadle.tools.base import ToolContext, ToolResult, ToolServices
from treadle.tools.shell import Shell

needs_walls = pytest.mark.skipif(
    sandbox.probe().level == "none", reason=f"NOT TESTED, there is no sandbox here: {sandbox.probe().why}"
)
needs_bubblewrap = pytest.mark.skipif(
    sandbox.probe().level != "bubblewrap", reason=f"NOT TESTED, the full sandbox does not work: {sandbox.probe().why}"
)


class Notes(ToolServices):
    """A desk that keeps what it is told, for the next call."""

    def __init__(self) -> None:
        self.notes: dict[str, Json] = {}
        self.kept: list[KeptFile] = []

    async def save_note(self, name: str, data: Json) -> None:
        self.notes[name] = data

    async def record_kept_files(
        self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = ()
    ) -> None:
        self.kept.extend(files)


class Terminal:
    """Calls of a shell in one workspace, one after the other."""

    def __init__(self, workspace: Path, tool: Shell | None = None, tier: Tier = "sandbox") -> None:
        self.workspace, self.tier = workspace, tier
        self.tool = tool or Shell(sandbox)
        self.desk = Notes()
        self.heard: list[str] = []
        self.begun = asyncio.Event()

    async def run(self, command: str, **arguments: Any) -> ToolResult:
        context = ToolContext("session", "call", self.workspace)
        context.tier, context.services, context.notes = self.tier, self.desk, dict(self.desk.notes)
        context.output = self._hear
        parsed = self.tool.parse(json.dumps({"command": command, **arguments}))
        result = await self.tool.run(self.tool.resolve_call(parsed, context.notes)[1], context)
        assert isinstance(result, ToolResult)
        return result

    def _hear(self, text: str) -> None:
        self.heard.append(text)
        self.begun.set()

    async def says(self, command: str, **arguments: Any) -> str:
        return (await self.run(command, **arguments)).text


def find_folder_note(notes: Mapping[str, Json]) -> str:
    return str(notes.get("treadle.folder", ""))


def run_to_the_end(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    """Run a command until also what it left in the background has ended: all of it holds the end of a pipe."""
    reading, writing = os.pipe()
    with open(reading, "rb") as ended:
        try:
            subprocess.run(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=(writing,),
                timeout=500,
                check=False,
            )
        finally:
            os.close(writing)
        ended.read()
