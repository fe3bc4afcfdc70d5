"""A repository for each test."""

from pathlib import Path

import pytest

from tests.git.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "top")
