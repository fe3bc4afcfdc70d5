"""Rewinding a repository: refs, HEAD and the index go back, unless somebody changed them since."""

import os

import pytest

from tests.git.place import Place
from treadle.git.commit_list import read_commits
from treadle.git.real_repository import RealRepository
from treadle.git.restore import restore_index, restore_ref
from treadle.sandbox.base import GitReport, RefChange


def undo(place: Place, report: GitReport) -> list[str]:
    """Undo what a command did, the last change first. Return why something stayed."""
    faults = [restore_ref(place.repository, change) for change in reversed(report.changes)]
    faults += [restore_index(place.repository, report.index_before)] if report.index_before is not None else []
    return [fault for fault in faults if fault]


def test_a_commit_is_undone_and_stays_in_the_log(place: Place) -> None:
    place.write(**{"a.txt": "2\n"})
    report = place.run_gits("add -A", "commit -qm two")
    assert undo(place, report) == []
    assert place.subjects() == ["one"] and place.status() == [" M a.txt"]
    assert place.git("log", "-g", "--format=%gs", "-2") == "treadle: rewind\ncommit: two"
    assert place.git("log", "-g", "--format=%gs", "-2", "main") == "treadle: rewind\ncommit: two"
    place.check()


def test_a_new_branch_with_head_on_it_is_undone(place: Place) -> None:
    report = place.run_gits("switch -qc topic", "commit -q --allow-empty -m t", "branch -D main", "tag v1")
    assert undo(place, report) == []
    assert place.git("for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert place.git("branch", "--show-current") == "main" and place.subjects() == ["one"]
    place.check()


def test_what_was_changed_since_is_left_and_described(place: Place) -> None:
    report = place.run_gits("commit -q --allow-empty -m two", "branch extra")
    place.commit("of the user")
    (sentence,) = undo(place, report)
    assert "refs/heads/main" in sentence and "has been changed since" in sentence
    assert place.subjects() == ["of the user", "two", "one"] and place.git("branch", "--list", "extra") == ""
    place.check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (RefChange("refs/heads/main", "1" * 40, ""), "changed since"),
        (RefChange("../../x", "", ""), "not the name of a ref"),
        (RefChange("refs/heads/new", "1" * 40, ""), "is gone"),
        (RefChange("refs/heads/new", "ref: refs/heads/main", ""), "cannot be checked out"),
        (RefChange("HEAD", "", "ref: refs/heads/main"), "was new"),
        (RefChange("HEAD", "ref: ../x", "ref: refs/heads/main"), "cannot be checked out"),
    ],
)
def test_a_change_that_cannot_be_undone_is_described(place: Place, change: RefChange, words: str) -> None:
    assert words in restore_ref(place.repository, change)
    assert place.subjects() == ["one"]


def test_an_index_that_did_not_exist_is_removed_again(place: Place) -> None:
    place.git("rm", "-q", "--cached", "-r", ".")
    (place.git_dir / "index").unlink()
    report = place.run_gits("add -A")
    assert report.index_before == b""
    undo(place, report)
    assert not (place.git_dir / "index").exists()


def test_commits_between_two_points_are_listed(place: Place) -> None:
    first = place.git("rev-parse", "HEAD")
    place.git("switch", "-qc", "topic")
    topic = place.commit("topic")
    place.git("switch", "-q", "main")
    for number in range(5):
        place.commit(f"main {number}", **{"a.txt": str(number)})
    place.git("gc", "-q")
    place.git("merge", "-q", "--no-edit", "topic")
    head = place.git("rev-parse", "HEAD")
    lines = read_commits(place.repository, first, head, 20)
    assert lines == place.git("log", "--format=%h %s", f"{first}..{head}").splitlines()
    assert read_commits(place.repository, first, head, 3) == lines[:3]
    assert len(read_commits(place.repository, topic, head, 99)) == 6
    assert read_commits(place.repository, head, topic, 9) == []
    assert len(read_commits(place.repository, "", head, 99)) == 8
    assert read_commits(place.repository, "1" * 40, "nonsense", 9) == []


def test_head_is_read_without_git(place: Place) -> None:
    head = place.git("rev-parse", "HEAD")

    def read() -> tuple[str, str]:
        with RealRepository(place.repository) as real:
            return real.read_ref("HEAD"), real.resolve_ref("HEAD")

    assert read() == ("ref: refs/heads/main", head)
    place.git("pack-refs", "--all")
    assert read() == ("ref: refs/heads/main", head)
    place.git("switch", "-q", "--detach")
    assert read() == (head, head)
    place.git("switch", "-q", "--orphan", "empty/one")
    assert read() == ("ref: refs/heads/empty/one", "")


def test_a_change_within_the_second_of_the_old_index_is_seen(place: Place) -> None:
    """git finds such changes by the time of the index, so an old index needs an old time."""
    now = 1_700_000_000
    for name in ("a.txt", "b.txt", ".git/index"):
        os.utime(place.top / name, (now, now))
    place.git("update-index", "--refresh")
    os.utime(place.top / ".git/index", (now, now))
    place.write(**{"a.txt": "2\n"})
    os.utime(place.top / "a.txt", (now, now))
    report = place.run_gits("-c core.trustctime=false commit -qam two")
    assert undo(place, report) == []
    assert place.git("-c", "core.trustctime=false", "status", "--porcelain") == " M a.txt"
