"""What a private copy has, and which repositories cannot be copied: hostile archives and unknown formats."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.git.place import CONFIG, Place
from treadle.git import private_copy
from treadle.git.git_folder import RepositoryUnsupported


def test_a_copy_shows_git_the_same_repository(place: Place) -> None:
    place.git("tag", "-a", "v1", "-m", "t")
    place.git("branch", "x/y")
    place.git("pack-refs", "--all")
    place.commit("two")
    place.git("update-ref", "refs/remotes/origin/main", "HEAD")
    place.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    place.git("notes", "add", "-m", "n")
    (place.git_dir / "info/exclude").write_text("*.tmp\n")
    place.write(**{"x.tmp": "x", "a.txt": "stash"})
    place.git("stash")
    command = place.start_command()
    for arguments in (
        "show-ref",
        "status",
        "log --all -g --format=%gs",
        "stash list",
        "symbolic-ref refs/remotes/origin/HEAD",
    ):
        assert command.git(*arguments.split()) == place.git(*arguments.split())
    assert command.end() is None


def test_a_copy_has_no_objects_and_no_settings_but_the_given_ones(place: Place) -> None:
    place.git("config", "core.fsmonitor", "true")
    place.git("remote", "add", "origin", "https://user:token@example.org/x.git")
    folder = place.start_command().folder
    assert (folder / "config").read_text() == CONFIG and not list(folder.glob("objects/??"))
    assert (folder / "objects/info/alternates").read_text() == f"{place.git_dir}/objects\n"
    assert not (folder / "commondir").exists()


def test_sample_hooks_links_and_plain_files_are_not_copied_as_hooks(place: Place, tmp_path: Path) -> None:
    hooks = place.git_dir / "hooks"
    hooks.mkdir(exist_ok=True)
    for name, mode in {"pre-commit": 0o755, "pre-push": 0o644, "x.sample": 0o755}.items():
        (hooks / name).write_text("#!/bin/sh\n")
        (hooks / name).chmod(mode)
    (hooks / "post-commit").symlink_to(tmp_path)
    assert os.listdir(place.start_command().folder / "hooks") == ["pre-commit"]


def link_to(name: str) -> Callable[[Place], object]:
    def attack(place: Place) -> None:
        thing = place.git_dir / name
        thing.parent.mkdir(parents=True, exist_ok=True)
        moved = place.aside / "moved"
        if thing.exists():
            thing.rename(moved)
        else:
            moved.write_text("private\n")
        thing.symlink_to(moved)

    return attack


@pytest.mark.parametrize(
    "name", ["HEAD", "refs", "refs/heads", "refs/heads/main", "objects", "index", "config", "packed-refs"]
)
def test_a_repository_with_links_is_not_copied(place: Place, name: str) -> None:
    link_to(name)(place)
    with pytest.raises(RepositoryUnsupported):
        place.start_command()
    assert not list(place.aside.glob("private-*"))


@pytest.mark.parametrize(
    "name", ["logs", "logs/HEAD", "COMMIT_EDITMSG", "MERGE_MSG", "info/exclude", "hooks", "rebase-merge"]
)
def test_links_in_other_places_are_neither_read_nor_written(place: Place, name: str) -> None:
    link_to(name)(place)
    before = {path: path.read_bytes() for path in (place.aside / "moved").rglob("*") if path.is_file()}
    place.write(**{"a.txt": "2\n"})
    report = place.run_gits("commit -qam two")
    assert report.changes and place.subjects() == ["two", "one"]
    assert {path: path.read_bytes() for path in (place.aside / "moved").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "settings",
    [
        "[extensions]\n\trefstorage = reftable\n",
        "[extensions]\n\tpartialclone = origin\n",
        "[extensions]\n\tcompatobjectformat = sha256\n",
        "[extensions] unknown",
        "[core]\n\trepositoryformatversion = 2\n",
        "[extensions]\n\tobjectformat = md5\n",
    ],
)
def test_a_repository_of_an_unknown_kind_is_not_copied(place: Place, settings: str) -> None:
    with (place.git_dir / "config").open("a") as file:
        file.write(settings)
    with pytest.raises(RepositoryUnsupported):
        place.start_command()


def test_a_split_or_sparse_index_is_not_copied(place: Place) -> None:
    place.git("update-index", "--split-index")
    with pytest.raises(RepositoryUnsupported, match="split or sparse"):
        place.start_command()


def test_a_sparse_checkout_keeps_its_marks(place: Place) -> None:
    place.commit("folders", **{"in/a.txt": "1", "out/b.txt": "1"})
    place.git("branch", "other")
    place.commit("more", **{"out/new.txt": "n", "in/a.txt": "2"})
    place.git("sparse-checkout", "set", "--no-sparse-index", "in")
    for branch, text in (("other", "1"), ("main", "2")):
        command = place.start_command(f"{CONFIG}\tsparseCheckout = true\n\tsparseCheckoutCone = true\n")
        command.git("switch", "-q", branch)
        command.end()
        assert place.git("branch", "--show-current") == branch and place.status() == []
        assert not (place.top / "out").exists() and (place.top / "in/a.txt").read_text() == text


def test_a_shallow_clone_is_copied(place: Place, tmp_path: Path) -> None:
    place.commit("two")
    place.git("clone", "-q", "--depth", "1", f"file://{place.top}", "../shallow")
    shallow = Place.open(tmp_path / "shallow")
    report = shallow.run_gits("commit -q --allow-empty -m three", "log --oneline")
    assert shallow.subjects() == ["three", "two"] and report.rejected == ()


def test_of_many_logs_only_the_newest_are_copied_and_the_others_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_copy, "_MAX_LOGS", 2)
    place.git("branch", "old")
    os.utime(place.git_dir / "logs/refs/heads/old", (0, 0))
    os.utime(place.git_dir / "logs/HEAD", (0, 0))
    command = place.start_command()
    assert sorted(command.copy.log_sizes) == ["HEAD", "refs/heads/main"]
    command.git("switch", "-q", "old")
    command.git("commit", "-q", "--allow-empty", "-m", "new")
    command.end()
    assert place.git("log", "-g", "--format=%gs", "old").splitlines() == ["commit: new", "branch: Created from main"]
