"""What the tests of the shell tool share: calls of the tool in one workspace, as the engine makes them."""

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.file_tools import RecordingServices
from treadle.events import Tier
from treadle.sandbox import backend as sandbox
from treadle.tools.base import FOLDER_NOTE, ToolContext, ToolResult
from treadle.tools.shell import Shell

needs_sandbox = pytest.mark.skipif(
    sandbox.probe().level == "none", reason=f"NOT TESTED, there is no sandbox here: {sandbox.probe().why}"
)
needs_bubblewrap = pytest.mark.skipif(
    sandbox.probe().level != "bubblewrap", reason=f"NOT TESTED, the full sandbox does not work: {sandbox.probe().why}"
)


class Terminal:
    """Calls of a shell in one workspace, one after the other."""

    def __init__(self, workspace: Path, tool: Shell | None = None, tier: Tier = "sandbox") -> None:
        self.workspace, self.tier = workspace, tier
        self.tool = tool or Shell(sandbox)
        self.services = RecordingServices()
        self.output: list[str] = []
        self.has_output = asyncio.Event()

    @property
    def folder_note(self) -> str:
        return str(self.services.notes.get(FOLDER_NOTE, ""))

    async def run(self, command: str, **arguments: Any) -> ToolResult:
        context = ToolContext("session", "call", self.workspace, tier=self.tier, services=self.services)
        context.notes, context.output = dict(self.services.notes), self._record_output
        parsed = self.tool.parse(json.dumps({"command": command, **arguments}))
        result = await self.tool.run(self.tool.resolve_call(parsed, context.notes)[1], context)
        assert isinstance(result, ToolResult)
        return result

    async def read(self, command: str, **arguments: Any) -> str:
        """Run a command and return its text."""
        return (await self.run(command, **arguments)).text

    def _record_output(self, text: str) -> None:
        self.output.append(text)
        self.has_output.set()


def run_to_the_end(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    """Run a command and wait for its background processes too: each of them holds the end of a pipe."""
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
