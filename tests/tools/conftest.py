"""The context of a call, for tools that are tested alone."""

from pathlib import Path

import pytest

from tests.kit.file_tools import RecordingServices
from treadle.tools.base import ToolContext


@pytest.fixture
def services() -> RecordingServices:
    return RecordingServices()


@pytest.fixture
def tool_context(tmp_path: Path, services: RecordingServices) -> ToolContext:
    return ToolContext("session", "call", tmp_path, services=services)
