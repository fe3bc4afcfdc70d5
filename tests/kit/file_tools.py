"""A workspace with the file tools on it, and what they recorded: the tools run as the engine would run them."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.events import KeptFile
from treadle.history.content_store import ContentStore
from treadle.tools.base import ToolContext, ToolError, ToolResult, ToolServices
from treadle.tools.builtin import build_file_tools


class RecordingServices(ToolServices):
    """Keeps notes for later calls, and what was recorded before each change together with what the file held then."""

    def __init__(self, workspace: Path) -> None:
        self.workspace, self.notes = workspace, dict[str, Any]()
        self.kept: list[KeptFile] = []
        self.left_out: list[str] = []
        self.trees: list[str] = []
        self.held_when_kept: dict[str, bytes | None] = {}

    async def save_note(self, name: str, data: Any) -> None:
        self.notes[name] = data

    async def record_kept_files(
        self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = ()
    ) -> None:
        for file in files:
            path = self.workspace / file.path
            self.held_when_kept[file.path] = path.read_bytes() if path.is_file() else None
        self.kept.extend(files)
        self.left_out.extend(left_out)
        self.trees.append(tree)


class ToolBench:
    """A workspace, its tools, and a session's desk."""

    def __init__(self, folder: Path, granted: Sequence[str] = ()) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.kept = ContentStore(folder / "kept")
        self.services = RecordingServices(self.workspace)
        self.progress_lines: list[str] = []
        self.tools = {tool.name: tool for tool in build_file_tools(self.kept, granted=granted)}

    def put(self, path: str, content: str | bytes) -> Path:
        """A file as the user made it."""
        file = self.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    async def result(self, name: str, **arguments: Any) -> object:
        tool = self.tools[name]
        context = ToolContext("session", "call_1", self.workspace, notes=self.services.notes, services=self.services)
        context.progress = lambda message, *rest: self.progress_lines.append(message)
        return await tool.run(tool.parse(json.dumps(arguments)), context)

    async def call(self, name: str, **arguments: Any) -> str:
        """What the model is told, when it goes well."""
        told = await self.result(name, **arguments)
        return told.text if isinstance(told, ToolResult) else str(told)

    async def call_refused(self, name: str, **arguments: Any) -> str:
        """What the model is told, when it does not."""
        with pytest.raises(ToolError) as raised:
            await self.call(name, **arguments)
        return str(raised.value)


@pytest.fixture
def some_bench(tmp_path: Path) -> Iterator[ToolBench]:
    bench = ToolBench(tmp_path)
    yield bench
    bench.kept.close()
