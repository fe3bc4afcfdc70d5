"""The folder in which git talks to a remote: its settings are ours, and the objects are the user's."""

import os
import subprocess
from pathlib import Path

import pytest

from treadle.errors import BadInput
from treadle.git.exchange_folder import create_exchange, quote_setting
from treadle.git.object_format import SHA1, SHA256


def git(folder: Path, *words: str) -> str:
    variables = {"HOME": "/nowhere", "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["git", f"--git-dir={folder}", *words], env=variables, cwd="/", capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "url", ["https://example.org/a", 'https://example.org/"a', "https://example.org/a#b;c", "a\\b\tc"]
)
def test_git_reads_the_address_as_it_is(tmp_path: Path, url: str) -> None:
    create_exchange(tmp_path / "git", url, SHA1, objects=None, refs={})
    assert git(tmp_path / "git", "config", "remote.treadle.url") == url
    assert git(tmp_path / "git", "config", "core.hooksPath") == "/dev/null"


def test_an_address_cannot_add_a_setting(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        quote_setting("a\n[core]\n\thooksPath = /x")


@pytest.mark.parametrize("name", ["plain", 'with "quotes"', "with\nline", "mit-ü", "#comment"])
def test_objects_of_any_folder_are_found(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.mkdir()
    git(source / ".git", "init", "-q", str(source))
    blob = git(source / ".git", "hash-object", "-w", "/dev/null")
    create_exchange(tmp_path / "git", "https://example.org/a", SHA1, objects=source / ".git/objects", refs={})
    assert git(tmp_path / "git", "cat-file", "-t", blob) == "blob"


def test_borrowed_objects_are_found(tmp_path: Path) -> None:
    lender, borrower = tmp_path / "lender", tmp_path / "borrower"
    for folder in (lender, borrower):
        git(folder / ".git", "init", "-q", str(folder))
    (borrower / ".git/objects/info/alternates").write_text("../../../lender/.git/objects\n")
    blob = git(lender / ".git", "hash-object", "-w", "/dev/null")
    create_exchange(tmp_path / "git", "https://example.org/a", SHA1, objects=borrower / ".git/objects", refs={})
    assert git(tmp_path / "git", "cat-file", "-t", blob) == "blob"


def test_git_reads_no_list_of_alternates_that_a_repository_made(tmp_path: Path) -> None:
    """Git tells the lines of the file in its errors, and follows links to it."""
    (tmp_path / "secret").write_text("s3cr3t-word\n")
    for name in ("work", "other"):
        git(tmp_path / name / ".git", "init", "-q", str(tmp_path / name))
        (tmp_path / name / ".git/objects/info/alternates").symlink_to(tmp_path / "secret")
    third = tmp_path / "third"
    git(third / ".git", "init", "-q", str(third))
    (third / ".git/objects/info/alternates").write_text("../../../other/.git/objects\n")
    for name in ("work", "third"):
        objects = tmp_path / name / ".git/objects"
        create_exchange(tmp_path / f"git-{name}", "https://example.org/a", SHA1, objects=objects, refs={})
        with pytest.raises(subprocess.CalledProcessError) as failed:
            git(tmp_path / f"git-{name}", "cat-file", "-t", "1" * 40)
        assert "s3cr3t-word" not in failed.value.stderr
        with pytest.raises(subprocess.CalledProcessError) as failed:
            git(tmp_path / name / ".git", "cat-file", "-t", "1" * 40)
        assert "s3cr3t-word" in failed.value.stderr


def test_a_repository_with_long_ids_is_shared(tmp_path: Path) -> None:
    create_exchange(tmp_path / "git", "https://example.org/a", SHA256, objects=None, refs={})
    assert git(tmp_path / "git", "rev-parse", "--show-object-format") == "sha256"
