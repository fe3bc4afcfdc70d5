"""A fresh home and workspace for each test."""

from pathlib import Path

import pytest

from tests.kit.terminal import Place, create_place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return create_place(tmp_path)
