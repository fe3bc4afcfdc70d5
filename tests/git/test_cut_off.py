"""The process is killed in the middle of a take-back, at every change of a name. The repository stays whole."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.git.place import Command, Place
from tests.kit.cut_off import KILLED, do_until
from tests.kit.host_git import run_git
from treadle.git.new_repository import is_unfinished
from treadle.git.private_copy import create_empty_copy
from treadle.git.repository import Repository
from treadle.git.take_back import take_back
from treadle.sandbox.new_repositories import RepositoryCleaner
from treadle.sandbox.workspace_scan import scan_workspace


def work(command: Command, place: Place) -> None:
    place.write(**{"a.txt": "stashed\n"})
    command.git("stash", "push", "-q")
    place.write(**{"c.txt": "c\n"})
    command.git("switch", "-qc", "topic")
    command.git("add", "-A")
    command.git("commit", "-qm", "two")
    command.git("tag", "-a", "-m", "t", "v1")
    command.git("branch", "-D", "gone")


@pytest.mark.parametrize("first", range(4))
def test_the_repository_is_whole_wherever_the_take_back_was_cut_off(place: Place, tmp_path: Path, first: int) -> None:
    """Each of the four tests tries every fourth place. Another take-back then finishes the work."""
    place.git("branch", "gone")
    place.git("pack-refs", "--all")
    command = place.start_command()
    work(command, place)
    shutil.copytree(place.git_dir, tmp_path / "before", symlinks=True)
    count, code = first, KILLED
    while code == KILLED:
        shutil.rmtree(place.git_dir)
        shutil.copytree(tmp_path / "before", place.git_dir, symlinks=True)
        code = do_until(lambda: take_back(command.copy), count)
        place.start_command()  # which removes locks and unfinished files
        place.check()
        place.git("log", "--all", "--oneline")
        take_back(command.copy)
        place.check()
        assert place.subjects("topic") == ["two", "one"] and place.git("branch", "--show-current") == "topic"
        assert place.status() == [] and "gone" not in place.git("branch") and place.git("tag") == "v1"
        assert place.git("stash", "list").count("\n") == 0 and place.git("for-each-ref", "refs/stash")
        count += 4
    assert code == 0 and count > 12


def start_new(top: Path, name: str) -> Command:
    repository = Repository(top, top / ".git", top / ".git")
    return Command(create_empty_copy(repository, top.parent / name))


def commit_first(command: Command) -> None:
    command.git("init", "-q", "-b", "main")
    command.git("add", "-A")
    command.git("commit", "-qm", "first")


def list_cuts(first: int, step: int) -> Iterator[int]:
    count = first
    while True:
        yield count
        count += step


def test_a_new_repository_can_be_made_again_wherever_the_first_attempt_was_cut_off(tmp_path: Path) -> None:
    for count in list_cuts(0, 2):
        top = tmp_path / f"{count}"
        top.mkdir()
        (top / "x.txt").write_text("x")
        command = start_new(top, f"{count}-first")
        commit_first(command)
        code = do_until(lambda command=command: take_back(command.copy), count)
        if is_unfinished(top / ".git"):
            second = start_new(top, f"{count}-second")
            commit_first(second)
            assert second.end()
        else:  # it is one now, and the next command commits in it
            place = Place.open(top)
            place.start_command()
            place.commit("again")
        Place.open(top).check()
        assert Place.open(top).git("ls-files") == "x.txt"
        if code != KILLED:
            assert count > 12
            return


def test_a_repository_in_a_subfolder_is_whole_wherever_its_cleaning_was_cut_off(tmp_path: Path) -> None:
    """The next command goes on with it, and no folder is left beside."""
    for count in list_cuts(0, 3):
        top = tmp_path / f"{count}"
        top.mkdir()
        cleaner = RepositoryCleaner(top, scan_workspace(top))
        Place(top / "sub").git("config", "core.fsmonitor", "false")
        run_git(top, "clone", "-q", "--bare", "sub", "bare")

        def clean(cleaner: RepositoryCleaner = cleaner) -> None:
            cleaner.clean()
            cleaner.close()

        code = do_until(clean, count)
        os.close(cleaner._group._lock)  # type: ignore[union-attr]
        found = RepositoryCleaner(top, scan_workspace(top))
        found.clean()
        found.close()
        place = Place.open(top / "sub")
        assert (
            place.subjects("main") == ["one"]
            and place.status() == []
            and not place.git("config", "--list").count("fsmonitor")
        )
        assert run_git(top / "bare", "log", "--format=%s", "main") == "one"
        assert sorted(os.listdir(top)) == ["bare", "sub"] and sorted(os.listdir(top / "sub")) == [
            ".git",
            "a.txt",
            "b.txt",
        ]
        place.check()
        if code != KILLED:
            assert count > 12
            return
