"""A repository for each test."""

import shutil
from pathlib import Path

import pytest

from tests.git.place import Place
from tests.git.victim import Victim


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "top")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Victim(tmp_path_factory.mktemp("template") / "top").top


@pytest.fixture
def victim(tmp_path: Path, template: Path) -> Victim:
    shutil.copytree(template, tmp_path / "top")
    return Victim.open(tmp_path / "top")
