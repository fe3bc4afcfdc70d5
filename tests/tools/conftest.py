"""A call's surroundings for tools that are tested alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from treadle.errors import NotFound
from treadle.events import KeptFile
from treadle.messages import Json
from treadle.tools.base import ToolContext, ToolServices


class Paper(ToolServices):
    """A desk that keeps what is noted, and holds the artifacts it was given."""

    def __init__(self) -> None:
        self.notes: dict[str, Json] = {}
        self.artifacts: dict[str, bytes] = {}

    async def save_note(self, name: str, data: Json) -> None:
        self.notes[name] = data

    async def record_kept_files(
        self, files: Sequence[KeptFile], *, tree: str = "", left_out: Sequence[str] = ()
    ) -> None:
        raise AssertionError("these tools change no files")

    async def read_artifact(self, artifact_id: str) -> bytes:
        if artifact_id not in self.artifacts:
            raise NotFound(f"no artifact {artifact_id!r} in this session")
        return self.artifacts[artifact_id]


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def tool_context(tmp_path: Path, paper: Paper) -> ToolContext:
    return ToolContext("session", "call", tmp_path, services=paper)
