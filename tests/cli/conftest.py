"""A fresh home and workspace for each test."""

from pathlib import Path

import pytest

from tests.kit.terminal import Place, place_in


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)
