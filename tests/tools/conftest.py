"""The context of a call, for tools that are tested alone; a user's home, a git server and a clone."""

from pathlib import Path

import pytest

from tests.kit.file_tools import RecordingServices
from tests.kit.git_servers import prepared_repositories, served_folder, served_port, users_clone, users_home
from treadle.tools.base import ToolContext

__all__ = ("prepared_repositories", "served_folder", "served_port", "users_clone", "users_home")


@pytest.fixture
def services() -> RecordingServices:
    return RecordingServices()


@pytest.fixture
def tool_context(tmp_path: Path, services: RecordingServices) -> ToolContext:
    return ToolContext("session", "call", tmp_path, services=services)
