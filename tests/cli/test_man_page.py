"""The man page is written from the parsers, is up to date, and groff reads it without a warning."""

import importlib.util
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from treadle.cli.main import COMMANDS

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs/man/treadle.1"


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("write_man_page", PAGE.with_name("write_man_page.py"))
    assert spec is not None and spec.loader is not None
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    assert PAGE.read_text("utf-8") == writer.write_page(), "run: make man"


def test_the_page_is_installed() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared == {"docs/man/treadle.1": "share/man/man1/treadle.1"}


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_reads_the_page_without_a_warning() -> None:
    done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-P-c", str(PAGE)], capture_output=True, check=True)
    assert done.stderr == b""
    text = done.stdout.decode().replace("\x08", "")
    assert all(f"{name[0] * 2}{name[1] * 2}" in text for name in COMMANDS) and "treadle config set" in text
