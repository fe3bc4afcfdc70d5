"""A fresh home and workspace for each test."""

from pathlib import Path

import pytest

from tests.cli.kit import Place, place_in


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path)
