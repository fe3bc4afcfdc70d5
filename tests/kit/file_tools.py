"""A workspace with the file tools, which run as the engine runs them, and services that record what tools save."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.errors import NotFound
from treadle.events import KeptFile, KeptRef
from treadle.history.content_store import ContentStore
from treadle.messages import Json
from treadle.tools.base import ToolContext, ToolError, ToolResult, ToolServices
from treadle.tools.builtin import build_file_tools


class RecordingServices(ToolServices):
    """Keeps notes and artifacts. Records the files to keep, and their contents at that time if it has a workspace."""

    def __init__(self, workspace: Path | None = None) -> None:
        self.workspace = workspace
        self.notes: dict[str, Json] = {}
        self.artifacts: dict[str, bytes] = {}
        self.kept: list[KeptFile] = []
        self.left_out: list[str] = []
        self.trees: list[str] = []
        self.refs: list[KeptRef] = []
        self.content_when_kept: dict[str, bytes | None] = {}

    async def save_note(self, name: str, data: Json) -> None:
        self.notes[name] = data

    async def record_kept_files(
        self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = (), refs: Sequence[KeptRef] = ()
    ) -> None:
        for file in files if self.workspace else ():
            path = self.workspace / file.path
            self.content_when_kept[file.path] = path.read_bytes() if path.is_file() else None
        self.kept.extend(files)
        self.left_out.extend(left_out)
        self.trees.append(tree)
        self.refs.extend(refs)

    async def read_artifact(self, artifact_id: str) -> bytes:
        if artifact_id not in self.artifacts:
            raise NotFound(f"no artifact {artifact_id!r} in this session")
        return self.artifacts[artifact_id]


class FileTools:
    """A workspace, its file tools, and the services that they get."""

    def __init__(self, folder: Path, granted: Sequence[str] = ()) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.kept = ContentStore(folder / "kept")
        self.services = RecordingServices(self.workspace)
        self.progress_lines: list[str] = []
        self.tools = {tool.name: tool for tool in build_file_tools(self.kept, granted=granted)}

    def put(self, path: str, content: str | bytes) -> Path:
        """Write a file as the user would."""
        file = self.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    async def run(self, name: str, **arguments: Any) -> object:
        tool = self.tools[name]
        context = ToolContext("session", "call_1", self.workspace, notes=self.services.notes, services=self.services)
        context.progress = lambda message, *rest: self.progress_lines.append(message)
        return await tool.run(tool.parse(json.dumps(arguments)), context)

    async def call(self, name: str, **arguments: Any) -> str:
        """Call a tool and return the text for the model."""
        result = await self.run(name, **arguments)
        return result.text if isinstance(result, ToolResult) else str(result)

    async def get_error(self, name: str, **arguments: Any) -> str:
        """Call a tool that must fail, and return its error."""
        with pytest.raises(ToolError) as raised:
            await self.call(name, **arguments)
        return str(raised.value)


@pytest.fixture
def file_tools(tmp_path: Path) -> Iterator[FileTools]:
    files = FileTools(tmp_path)
    yield files
    files.kept.close()
