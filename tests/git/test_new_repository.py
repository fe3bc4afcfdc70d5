"""Repositories that a command makes: `git init` in an empty place, and git folders somewhere in the workspace."""

import os
from pathlib import Path

import pytest

from tests.git.place import Command, Place
from tests.kit.host_git import run_git
from treadle.git.git_folder import UnsafeFile
from treadle.git.private_copy import create_empty_copy
from treadle.git.repository import Repository
from treadle.git.take_back import adopt_repository
from treadle.sandbox.base import GitReport


def start_empty(top: Path) -> Command:
    top.mkdir()
    repository = Repository(top, top / ".git", top / ".git")
    return Command(create_empty_copy(repository, top.parent / "private"))


@pytest.mark.parametrize("has_placeholder", [True, False])
@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_git_init_and_a_commit_make_a_repository(tmp_path: Path, has_placeholder: bool, form: str) -> None:
    top = tmp_path / "top"
    command = start_empty(top)
    if has_placeholder:
        (top / ".git").mkdir()
    (top / "a.txt").write_text("a")
    command.git("init", "-q", "-b", "trunk", f"--object-format={form}")
    command.git("add", "-A")
    command.git("commit", "-qm", "first")
    report = command.end()
    assert report and report.rejected == ()
    assert [change.ref for change in report.changes] == ["HEAD", "refs/heads/trunk"]
    place = Place.open(top)
    place.check()
    assert place.subjects() == ["first"] and place.status() == [] and len(report.commits) == 1
    assert not (top / ".git/hooks").exists()
    place.write(**{"b.txt": "b"})
    place.git("add", "-A")
    place.git("commit", "-qm", "second")


def test_an_empty_copy_that_stays_empty_makes_nothing(tmp_path: Path) -> None:
    command = start_empty(tmp_path / "top")
    assert command.end() is None and not (tmp_path / "top/.git").exists()


def test_git_init_alone_makes_a_repository(tmp_path: Path) -> None:
    command = start_empty(tmp_path / "top")
    command.git("init", "-q", "-b", "main")
    report = command.end()
    assert report and report.rejected == () and report.changes[0].after == "ref: refs/heads/main"
    assert run_git(tmp_path / "top", "status", "--porcelain") == ""


def test_settings_and_hooks_of_a_new_repository_are_not_kept(tmp_path: Path) -> None:
    top = tmp_path / "top"
    command = start_empty(top)
    command.git("init", "-q", "-b", "main")
    command.git("config", "core.fsmonitor", f"touch {tmp_path}/canary")
    (command.folder / "hooks").mkdir(exist_ok=True)
    (command.folder / "hooks/pre-commit").write_text("#!/bin/sh\ntouch ../canary\n")
    (command.folder / "hooks/pre-commit").chmod(0o755)
    report = command.end()
    assert report and "config" in report.rejected[0]
    run_git(top, "status")
    run_git(top, "commit", "-qm", "x", "--allow-empty")
    assert not (tmp_path / "canary").exists() and "fsmonitor" not in (top / ".git/config").read_text()


@pytest.mark.parametrize("what", ["files", "a .git without HEAD", "reftable"])
def test_what_is_no_repository_is_not_kept(tmp_path: Path, what: str) -> None:
    command = start_empty(tmp_path / "top")
    if what == "files":
        (command.folder / "config").write_text("[core]\n\tfsmonitor = touch canary\n")
    else:
        command.git("init", "-q")
        if what == "reftable":
            (command.folder / "config").write_text("[extensions]\n\trefstorage = reftable\n")
        else:
            (command.folder / "HEAD").unlink()
    report = command.end()
    assert report and len(report.rejected) == 1 and not (tmp_path / "top/.git").exists()


def test_a_repository_that_appeared_meanwhile_is_left_alone(tmp_path: Path) -> None:
    command = start_empty(tmp_path / "top")
    command.git("init", "-q")
    place = Place(tmp_path / "top")
    report = command.end()
    assert report and "not empty" in report.rejected[0] and place.subjects() == ["one"]


def make_hostile(top: Path) -> Path:
    """Make a repository with a commit, as a command would in the workspace, with everything that could run later."""
    run_git(top, "init", "-q", "-b", "main", "sub")
    sub = top / "sub"
    (sub / "x.txt").write_text("x")
    run_git(sub, "add", "-A")
    run_git(sub, "commit", "-qm", "inner")
    run_git(sub, "config", "core.fsmonitor", f"touch {top}/canary; false")
    hook = sub / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {top}/canary\n")
    hook.chmod(0o755)
    return sub


def adopt(found: Path, *, is_bare: bool = False) -> GitReport:
    top = found if is_bare else found.parent
    return adopt_repository(Repository(top, found, found, top.name), found.with_name(".treadle-aside"), is_bare=is_bare)


def test_a_repository_made_in_a_subfolder_is_cleaned(tmp_path: Path) -> None:
    sub = make_hostile(tmp_path)
    report = adopt(sub / ".git")
    assert report.repository == "sub" and [change.ref for change in report.changes] == ["HEAD", "refs/heads/main"]
    assert "config" in report.rejected[0] and "hooks" in report.rejected[0]
    place = Place.open(sub)
    assert place.status() == [] and place.subjects() == ["inner"]
    place.git("switch", "-qc", "other")
    assert not (tmp_path / "canary").exists() and sorted(os.listdir(sub)) == [".git", "x.txt"]
    place.check()


def test_a_bare_repository_is_cleaned_and_stays_bare(tmp_path: Path) -> None:
    sub = make_hostile(tmp_path)
    run_git(tmp_path, "clone", "-q", "--bare", "sub", "made.git")
    report = adopt(tmp_path / "made.git", is_bare=True)
    assert run_git(tmp_path / "made.git", "log", "--format=%s") == "inner"
    assert run_git(tmp_path / "made.git", "rev-parse", "--is-bare-repository") == "true" and report.commits
    assert sorted(os.listdir(tmp_path)) == ["made.git", "sub"] and sub


def test_a_repository_that_cannot_be_read_is_switched_off(tmp_path: Path) -> None:
    sub = make_hostile(tmp_path)
    (sub / ".git/config").write_text("[extensions]\n\tunknown = 1\n[core]\n\trepositoryformatversion = 1\n")
    report = adopt(sub / ".git")
    aside = next(path for path in sub.iterdir() if path.name.startswith(".treadle-"))
    assert "switched off" in report.rejected[0] and aside.name in report.rejected[0] and not (sub / ".git").exists()
    assert run_git(aside, "rev-parse", "--git-dir", code=None) == ""


def test_a_very_deep_or_closed_folder_in_a_repository_is_removed(tmp_path: Path) -> None:
    sub = make_hostile(tmp_path)
    here = os.open(sub / ".git", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.fchmod(here, 0)
    os.close(here)
    (sub / ".git/link").symlink_to(tmp_path)
    (sub / ".git/info").chmod(0)
    adopt(sub / ".git")
    assert sorted(os.listdir(sub)) == [".git", "x.txt"] and sorted(os.listdir(tmp_path)) == ["sub"]
    Place.open(sub).check()


def test_a_link_in_the_place_of_a_repository_is_not_followed(tmp_path: Path) -> None:
    place = Place(tmp_path / "victim")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.git").symlink_to(place.git_dir)
    with pytest.raises(UnsafeFile):
        adopt(tmp_path / "sub/.git")
    assert place.subjects() == ["one"] and (place.git_dir / "HEAD").exists()
