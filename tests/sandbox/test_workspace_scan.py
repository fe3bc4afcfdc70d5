"""The search through a workspace: it finds everything at any depth, again after each change, and follows no link."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.sandbox import make_deep_folder
from treadle.git.git_folder import remove_tree
from treadle.sandbox import workspace_scan
from treadle.sandbox.new_repositories import RepositoryCleaner
from treadle.sandbox.workspace_scan import scan_workspace


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        else:
            path.touch()


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written just now counts as old, so that it is remembered."""
    monkeypatch.setattr(workspace_scan, "_SETTLED_NS", -(10**12))
    monkeypatch.setattr(workspace_scan, "_TRUSTED_SYSTEMS", Everything())


class Everything:
    def __contains__(self, name: object) -> bool:
        return True


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many folders were listed since the last question."""
    count = [0]
    scandir = os.scandir

    def counting(path: int | str) -> object:
        count[0] += 1
        return scandir(path)

    def read() -> int:
        before, count[0] = count[0], 0
        return before

    monkeypatch.setattr(workspace_scan.os, "scandir", counting)
    return read


def test_it_finds_repositories_behind_very_many_entries_and_in_packages(tmp_path: Path) -> None:
    for number in range(12):
        make(tmp_path, *(f"a/d{number}/f{n}" for n in range(1000)))
    make(tmp_path, "a/zz/.git/config", "node_modules/x/y/.git/HEAD", "__pycache__/.git", "z/.env")
    found = scan_workspace(tmp_path)
    assert found.repositories == {"__pycache__/.git": "file", "a/zz/.git": "folder", "node_modules/x/y/.git": "folder"}
    assert found.env_files == ("z/.env",) and found.is_complete


def test_it_finds_what_git_takes_for_a_repository(tmp_path: Path) -> None:
    make(tmp_path, "one/HEAD", "one/objects/", "one/refs/", "two/HEAD", "two/commondir", "half/HEAD", "half/objects/")
    make(tmp_path, "notes/HEAD", "one/inner/.git", "half/inner/.git")
    (tmp_path / "link").mkdir()
    (tmp_path / "link/.git").symlink_to("../one")
    found = scan_workspace(tmp_path)
    assert found.repositories == {"one": "bare", "two": "bare", "link/.git": "link", "half/inner/.git": "file"}
    assert found.half_bare == ("half",)
    make(tmp_path, "HEAD", "objects/", "refs/")
    assert scan_workspace(tmp_path).repositories[""] == "bare"


def test_it_follows_no_link(tmp_path: Path) -> None:
    make(tmp_path, "elsewhere/.git/config", "work/")
    (tmp_path / "work/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "work/round").symlink_to(".")
    assert scan_workspace(tmp_path / "work").repositories == {}


def test_a_folder_that_did_not_change_is_not_listed_again(
    tmp_path: Path, settled: None, listed: Callable[[], int]
) -> None:
    make(tmp_path, "a/b/c/file", "a/d/file", "e/.env")
    scan_workspace(tmp_path)
    assert listed() == 6
    assert scan_workspace(tmp_path).env_files == ("e/.env",)
    assert listed() == 0
    make(tmp_path, "a/b/c/.git/config")
    assert list(scan_workspace(tmp_path).repositories) == ["a/b/c/.git"]
    assert listed() == 1
    shutil.rmtree(tmp_path / "a/b")
    listed()
    assert scan_workspace(tmp_path).repositories == {} and listed() == 1


def test_a_folder_that_changed_just_now_is_listed_again(tmp_path: Path, listed: Callable[[], int]) -> None:
    make(tmp_path, "a/file")
    scan_workspace(tmp_path)
    listed()
    scan_workspace(tmp_path)
    assert listed() == 2


@pytest.mark.parametrize("exchange", ["moved", "copied", "times"])
def test_an_exchanged_folder_is_seen(exchange: str, tmp_path: Path, settled: None) -> None:
    make(tmp_path, "a/b/file", "other/x/.git/config")
    assert list(scan_workspace(tmp_path).repositories) == ["other/x/.git"]
    about = (tmp_path / "a/b").stat()
    if exchange == "moved":
        shutil.rmtree(tmp_path / "a/b")
        (tmp_path / "other/x").rename(tmp_path / "a/b")
    elif exchange == "copied":
        (tmp_path / "a").rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", tmp_path / "a", copy_function=shutil.copy2)
        make(tmp_path, "a/b/.git/config")
    else:
        make(tmp_path, "a/b/.git/config")
    os.utime(tmp_path / "a/b", ns=(about.st_atime_ns, about.st_mtime_ns))
    assert "a/b/.git" in scan_workspace(tmp_path).repositories


def test_a_very_deep_folder_is_searched_and_one_that_cannot_be_named_is_told(tmp_path: Path) -> None:
    top = tmp_path / "deep"
    top.mkdir()
    make_deep_folder(top, 1600, with_git=(400, 1598))
    try:
        found = scan_workspace(top)
    finally:
        remove_tree(top)  # pytest cannot remove it
    assert list(found.repositories) == [f"{'d/' * 401}.git"]
    assert len(found.too_deep) == 1 and 2900 < len(found.too_deep[0]) < 3100


def test_too_many_folders_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_scan, "_MAX_FOLDERS", 5)
    make(tmp_path, *(f"{number}/file" for number in range(4)))
    assert scan_workspace(tmp_path).is_complete
    make(tmp_path, "5/file")
    assert not scan_workspace(tmp_path).is_complete


def test_an_unknown_file_system_is_not_trusted(
    tmp_path: Path, settled: None, listed: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_scan, "_TRUSTED_SYSTEMS", ())
    workspace_scan.is_trusted.cache_clear()
    make(tmp_path, "a/file")
    scan_workspace(tmp_path)
    listed()
    scan_workspace(tmp_path)
    assert listed() == 2


def test_only_a_few_workspaces_are_remembered(tmp_path: Path) -> None:
    for number in range(9):
        make(tmp_path, f"{number}/a/.env")
        assert scan_workspace(tmp_path / str(number)).env_files == ("a/.env",)
    assert len(workspace_scan._memory) <= 4  # pyright: ignore[reportPrivateUsage]


def test_a_folder_of_sources_that_looks_like_a_repository_keeps_its_files(tmp_path: Path) -> None:
    cleaner = RepositoryCleaner(tmp_path, scan_workspace(tmp_path))
    for name in ("objects", "refs"):
        (tmp_path / "src" / name).mkdir(parents=True)
    for name in ("HEAD", "main.c"):
        (tmp_path / "src" / name).write_text("ref: refs/heads/main\n")
    (report,) = cleaner.clean()
    cleaner.close()
    assert sorted(os.listdir(tmp_path / "src")) == ["HEAD.not-kept", "main.c", "objects", "refs"]
    assert report.rejected[0].startswith("src/HEAD was renamed to HEAD.not-kept")


def test_the_repository_of_the_workspace_is_known_at_once_also_to_a_group_that_began_without_it(tmp_path: Path) -> None:
    first = RepositoryCleaner(tmp_path, scan_workspace(tmp_path))
    (tmp_path / ".git").mkdir()
    assert not RepositoryCleaner(tmp_path, scan_workspace(tmp_path)).was_there_before(".git"), "it is empty"
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    second = RepositoryCleaner(tmp_path, scan_workspace(tmp_path))
    assert second.was_there_before(".git")
    second.close()
    first.close()
