"""Ordinary work of a command in a private copy, taken back into the real repository. git itself is the judge."""

import os
import random
from pathlib import Path

import pytest

from tests.git.place import Command, Place
from tests.kit.host_git import run_git
from treadle.git.take_back import take_back


def test_a_command_that_does_nothing_gives_no_report(place: Place) -> None:
    command = place.start_command()
    command.git("status")
    command.git("log", "--oneline")
    assert command.end() is None


def test_a_commit_is_taken_over(place: Place) -> None:
    before = place.git("rev-parse", "HEAD")
    place.write(**{"a.txt": "2\n"})
    report = place.run_gits("commit -qam two")
    after = place.git("rev-parse", "HEAD")
    assert [(change.ref, change.before, change.after) for change in report.changes] == [
        ("refs/heads/main", before, after)
    ]
    assert report.commits == (f"{after[:7]} two",) and report.rejected == ()
    assert place.subjects() == ["two", "one"] and place.status() == []
    assert place.git("log", "-g", "--format=%gs", "-1") == "commit: two"
    assert place.git("log", "-g", "--format=%gs", "-1", "main") == "commit: two"


def test_what_is_staged_is_taken_over(place: Place) -> None:
    place.write(**{"new.txt": "x", "a.txt": "3\n"})
    report = place.run_gits("add -A", "rm -q --cached b.txt")
    assert report.changes == () and report.rejected == () and report.index_before
    assert place.status() == ["M  a.txt", "D  b.txt", "A  new.txt", "?? b.txt"]


def test_a_second_commit_amends_the_first(place: Place) -> None:
    place.write(**{"a.txt": "2\n"})
    place.run_gits("commit -qam two")
    place.run_gits("commit -q --amend -m better")
    assert place.subjects() == ["better", "one"] and place.status() == []


def test_branches_are_made_switched_and_deleted(place: Place) -> None:
    report = place.run_gits("switch -qc topic/x", "commit -q --allow-empty -m t", "branch old", "tag light")
    assert {change.ref for change in report.changes} == {
        "refs/heads/topic/x",
        "refs/heads/old",
        "refs/tags/light",
        "HEAD",
    }
    assert place.git("branch", "--show-current") == "topic/x" and place.subjects() == ["t", "one"]
    report = place.run_gits("switch -q main", "branch -D topic/x old")
    assert place.git("branch", "--format=%(refname:short)") == "main"
    assert not (place.git_dir / "logs/refs/heads/topic").exists()
    assert place.git("log", "-g", "--format=%gs", "-1") == "checkout: moving from topic/x to main"


def test_stashes_are_pushed_popped_and_dropped(place: Place) -> None:
    for number in ("2", "3"):
        place.write(**{"a.txt": number})
        place.run_gits(f"stash push -q -m s{number}")
    assert place.git("stash", "list", "--format=%gs") == "On main: s3\nOn main: s2" and place.status() == []
    report = place.run_gits("stash drop -q stash@{1}")
    assert place.git("stash", "list", "--format=%gs") == "On main: s3"
    report = place.run_gits("stash pop -q")
    assert [(change.ref, change.after) for change in report.changes] == [("refs/stash", "")]
    assert place.git("stash", "list") == "" and (place.top / "a.txt").read_text() == "3"


def test_a_clean_merge_is_taken_over(place: Place) -> None:
    _diverge(place, "b.txt")
    report = place.run_gits("merge -q --no-edit topic")
    assert place.subjects("-1") == ["Merge branch 'topic'"] and place.status() == [] and report.rejected == ()
    assert not list(place.git_dir.glob("MERGE_*"))


def _diverge(place: Place, path: str) -> None:
    """Make a branch `topic` with two commits that change a path, and one on `main` that changes a.txt."""
    place.git("switch", "-qc", "topic")
    place.commit("topic 1", **{path: "t1\n"})
    place.commit("topic 2", **{"c.txt": "t2\n"})
    place.git("switch", "-q", "main")
    place.commit("main 1", **{"a.txt": "m1\n"})


def test_a_merge_with_a_conflict_is_finished_by_the_next_command(place: Place) -> None:
    _diverge(place, "a.txt")
    place.run_command(lambda command: command.git("merge", "topic", check=False))
    assert place.status() == ["UU a.txt", "A  c.txt"] and (place.git_dir / "MERGE_HEAD").exists()
    assert "All conflicts fixed" not in place.git("status")
    place.write(**{"a.txt": "both\n"})
    report = place.run_gits("add a.txt", "commit -q --no-edit")
    assert report.rejected == () and place.subjects("-1") == ["Merge branch 'topic'"] and place.status() == []
    assert place.git("rev-list", "--count", "--merges", "HEAD") == "1" and not list(place.git_dir.glob("MERGE_*"))


def test_a_merge_with_a_conflict_is_given_up_by_the_next_command(place: Place) -> None:
    _diverge(place, "a.txt")
    place.run_command(lambda command: command.git("merge", "topic", check=False))
    place.run_gits("merge --abort")
    assert place.status() == [] and place.subjects() == ["main 1", "one"] and not list(place.git_dir.glob("MERGE_*"))


def test_a_clean_rebase_is_taken_over(place: Place) -> None:
    _diverge(place, "b.txt")
    report = place.run_gits("switch -q topic", "rebase -q main")
    assert place.subjects() == ["topic 2", "topic 1", "main 1", "one"] and place.status() == []
    assert report.rejected == () and len(report.commits) == 2
    assert place.git("branch", "--show-current") == "topic"


@pytest.mark.parametrize("ending", ["--continue", "--abort", "--skip"])
def test_a_rebase_with_a_conflict_is_ended_by_the_next_command(place: Place, ending: str) -> None:
    _diverge(place, "a.txt")
    place.git("switch", "-q", "topic")
    report = place.run_command(lambda command: command.git("rebase", "main", check=False))
    assert report.rejected == () and "rebase in progress" in place.git("status")
    if ending == "--continue":
        place.write(**{"a.txt": "both\n"})
    report = place.run_command(lambda command: (command.git("add", "a.txt"), command.git("rebase", ending)))
    assert report.rejected == () and not (place.git_dir / "rebase-merge").exists() and place.status() == []
    subjects = {
        "--continue": ["topic 2", "topic 1", "main 1", "one"],
        "--skip": ["topic 2", "main 1", "one"],
        "--abort": ["topic 2", "topic 1", "one"],
    }
    assert place.subjects() == subjects[ending] and place.git("branch", "--show-current") == "topic"


def test_the_user_can_end_a_rebase_that_a_command_began(place: Place) -> None:
    _diverge(place, "a.txt")
    place.git("switch", "-q", "topic")
    place.run_command(lambda command: command.git("rebase", "-i", "main", check=False))
    place.write(**{"a.txt": "both\n"})
    place.git("add", "a.txt")
    place.git("rebase", "--continue")
    assert place.subjects() == ["topic 2", "topic 1", "main 1", "one"]


@pytest.mark.parametrize("what", ["cherry-pick", "revert"])
def test_a_pick_with_a_conflict_is_ended_by_the_next_command(place: Place, what: str) -> None:
    _diverge(place, "a.txt")
    picked = "topic~1 topic" if what == "cherry-pick" else "HEAD~1 HEAD"
    if what == "revert":
        place.commit("main 2", **{"a.txt": "m2\n"})
        place.commit("main 3", **{"a.txt": "m3\n"})
    before = place.subjects()
    report = place.run_command(lambda command: command.git(what, *picked.split(), check=False))
    assert report.rejected == () and "Unmerged" in place.git("status")
    report = place.run_gits(f"{what} --abort")
    assert report.rejected == () and place.subjects() == before and place.status() == []
    place.run_command(lambda command: command.git(what, *picked.split(), check=False))
    place.write(**{"a.txt": "both\n"})
    place.run_command(lambda command: (command.git("add", "a.txt"), command.git(what, "--continue", check=False)))
    place.git(what, "--continue", check=False)
    assert place.subjects() != before


def test_clean_picks_and_reverts_are_taken_over(place: Place) -> None:
    _diverge(place, "b.txt")
    place.run_gits("cherry-pick topic", "revert --no-edit HEAD")
    assert place.subjects("-2") == ['Revert "topic 2"', "topic 2"] and place.status() == []


def test_an_annotated_tag_is_taken_over_moved_and_deleted(place: Place) -> None:
    place.run_gits("tag -a v1 -m first")
    assert place.git("cat-file", "-t", "v1") == "tag"
    place.run_gits("commit -q --allow-empty -m next", "tag -f -a v1 -m second")
    assert place.git("rev-parse", "v1^{commit}") == place.git("rev-parse", "HEAD")
    place.run_gits("tag -d v1")
    assert place.git("tag") == ""


def test_a_reset_is_taken_over(place: Place) -> None:
    place.commit("two", **{"a.txt": "2\n"})
    report = place.run_gits("reset -q --hard HEAD~1")
    assert place.subjects() == ["one"] and place.status() == [] and report.rejected == ()
    assert place.git("rev-parse", "ORIG_HEAD") == report.changes[0].before


def test_packed_refs_are_read_changed_and_deleted(place: Place) -> None:
    place.git("branch", "one")
    place.git("branch", "two")
    place.git("pack-refs", "--all")
    place.run_gits("branch -D one", "commit -q --allow-empty -m x")
    assert place.git("branch", "--format=%(refname:short)").splitlines() == ["main", "two"]
    assert place.subjects() == ["x", "one"]


def test_packs_made_by_a_command_are_unpacked(place: Place) -> None:
    def work(command: Command) -> None:
        for number in range(30):
            place.write(**{"big.txt": "".join(f"line {n} {number if n % 7 == 0 else 0}\n" for n in range(2000))})
            command.git("add", "-A")
            command.git("commit", "-qm", f"n{number}")
        command.git("gc", "-q")
        assert not list(command.folder.glob("objects/??/*")) and list(command.folder.glob("objects/pack/*.pack"))

    report = place.run_command(work)
    assert len(report.commits) == 30 and report.rejected == () and place.subjects()[0] == "n29"
    assert not list(place.git_dir.glob("objects/pack/*"))


def test_a_repository_with_packed_objects_and_alternates_is_known(place: Place, tmp_path: Path) -> None:
    place.commit("two", **{"a.txt": "2\n"})
    place.git("gc", "-q")
    run_git(tmp_path, "clone", "-q", "--shared", str(place.top), "other")
    other = Place.open(tmp_path / "other")
    other.write(**{"a.txt": "3\n"})
    report = other.run_gits("commit -qam three", "branch back HEAD~2")
    assert report.rejected == () and other.subjects() == ["three", "two", "one"]


def test_a_large_file_is_taken_over(place: Place) -> None:
    data = random.Random(1).randbytes(30_000_000)
    (place.top / "large.bin").write_bytes(data)
    place.run_gits("add -A", "commit -qm large")
    assert place.status() == [] and place.git("cat-file", "-s", "HEAD:large.bin") == "30000000"


def test_a_sha256_repository_is_taken_back(tmp_path: Path) -> None:
    place = Place(tmp_path / "top", "--object-format=sha256")
    place.write(**{"a.txt": "2\n", "n.txt": "n"})
    report = place.run_gits("add -A", "commit -qm two", "stash list", "gc -q")
    assert report.rejected == () and place.subjects() == ["two", "one"] and place.status() == []
    assert len(place.git("rev-parse", "HEAD")) == 64


def test_a_linked_worktree_is_taken_back(place: Place) -> None:
    linked = Place.link(place, "linked", "side")
    linked.write(**{"a.txt": "2\n"})
    report = linked.run_gits("commit -qam two", "branch extra")
    assert report.rejected == () and {change.ref for change in report.changes} == {
        "refs/heads/side",
        "refs/heads/extra",
    }
    assert linked.subjects() == ["two", "one"] and place.subjects() == ["one"] and linked.status() == []
    linked.run_gits("stash list", "switch -qc other")
    assert linked.git("branch", "--show-current") == "other" and place.git("branch", "--show-current") == "main"


def test_the_branch_of_another_worktree_cannot_be_taken(place: Place) -> None:
    linked = Place.link(place, "linked", "side")
    command = linked.start_command()
    for arguments in (("switch", "-q", "main"), ("branch", "-D", "main")):
        with pytest.raises(AssertionError, match="checked out at"):
            command.git(*arguments)
    command.git("update-ref", "refs/heads/main", command.git("commit-tree", "HEAD^{tree}", "-m", "forced"))
    report = command.end()
    assert report and place.subjects("main") == ["one"] and "checked out in another worktree" in report.rejected[0]
    assert report.changes[0].ref.startswith("refs/heads/treadle/main-")


def test_head_cannot_name_the_branch_of_another_worktree(place: Place) -> None:
    command = Place.link(place, "linked", "side").start_command()
    command.git("symbolic-ref", "HEAD", "refs/heads/main")
    report = command.end()
    assert report and "refs/heads/main is checked out in another worktree" in report.rejected[0]
    assert (place.git_dir / "worktrees/linked/HEAD").read_text() == "ref: refs/heads/side\n"


def test_a_branch_that_refers_to_another_is_not_kept(place: Place) -> None:
    report = place.run_gits("symbolic-ref refs/heads/other refs/heads/main")
    assert "it refers to another ref" in report.rejected[0] and place.git("branch", "--list", "other") == ""


def test_head_cannot_name_a_branch_that_was_not_kept(place: Place) -> None:
    def work(command: Command) -> None:
        (command.folder / "refs/heads/bad").write_text(command.git("rev-parse", "HEAD^{tree}") + "\n")
        command.git("symbolic-ref", "HEAD", "refs/heads/bad")

    report = place.run_command(work)
    assert "HEAD was not changed" in report.rejected[1] and place.git("branch", "--show-current") == "main"


def test_a_branch_below_a_packed_one_gets_another_name(place: Place) -> None:
    place.git("branch", "a")
    place.git("pack-refs", "--all")
    commit = place.git("rev-parse", "HEAD")

    def work(command: Command) -> None:
        (command.folder / "refs/heads/a").mkdir()
        (command.folder / "refs/heads/a/b").write_text(f"{commit}\n")

    assert "in the way of another name" in place.run_command(work).rejected[0]
    assert place.git("rev-parse", "refs/heads/a") == commit and not (place.git_dir / "refs/heads/a/b").exists()


def test_a_link_above_a_branch_does_not_delete_it(place: Place) -> None:
    place.git("branch", "x/y")

    def work(command: Command) -> None:
        command.git("branch", "-D", "x/y")
        command.git("branch", "x/y")  # which is in no list of packed refs now
        (command.folder / "refs/heads/x").rename(command.folder / "elsewhere")
        (command.folder / "refs/heads/x").symlink_to(command.folder / "elsewhere")

    assert "refs/heads/x was not kept" in place.run_command(work).rejected[0] and place.git("rev-parse", "x/y")


def test_a_submodule_is_taken_back(place: Place, tmp_path: Path) -> None:
    library = Place(tmp_path / "library")
    place.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.top), "sub")
    place.commit("with sub")
    inner = Place.open(place.top / "sub", place.top / ".git/modules/sub")
    inner.aside = tmp_path
    inner.write(**{"a.txt": "in sub\n"})
    report = inner.run_gits("commit -qam inside")
    assert report.rejected == () and inner.subjects("-1") == ["inside"] and place.status() == [" M sub"]
    command = place.start_command()
    command.git("add", "sub")
    report = take_back(command.copy, lambda path: path == "sub")
    assert report and report.rejected == () and place.status() == ["M  sub"]


def test_an_index_of_version_4_is_read(place: Place) -> None:
    place.commit("many", **{f"folder/file{number}.txt": str(number) for number in range(50)})
    place.git("update-index", "--index-version", "4")
    place.write(**{"folder/file7.txt": "x", "folder/new.txt": "n"})
    report = place.run_gits("update-index --index-version 4", "add -A")
    assert place.status() == ["M  folder/file7.txt", "A  folder/new.txt"] and report.rejected == ()


def test_a_detached_head_is_taken_back(place: Place) -> None:
    place.run_gits("switch -q --detach", "commit -q --allow-empty -m alone")
    assert place.git("branch", "--show-current") == "" and place.subjects() == ["alone", "one"]
    place.run_gits("switch -q -")
    assert place.git("branch", "--show-current") == "main" and place.subjects() == ["one"]


def test_an_unborn_branch_is_taken_back(place: Place) -> None:
    report = place.run_gits("switch -q --orphan empty")
    assert report.rejected == () and place.git("branch", "--show-current") == "empty"
    place.write(**{"z.txt": "z"})
    place.run_gits("add -A", "commit -qm root")
    assert place.subjects() == ["root"] and place.status() == []


def test_the_users_hooks_run_for_the_command(place: Place) -> None:
    hook = place.git_dir / "hooks/pre-commit"
    hook.write_text("#!/bin/sh\necho hooked > hooked.txt\n")
    hook.chmod(0o755)
    place.write(**{"a.txt": "2\n"})
    place.run_gits("commit -qam two")
    assert (place.top / "hooked.txt").exists()


def test_a_branch_named_like_a_folder_takes_its_place(place: Place) -> None:
    place.git("branch", "x/y")
    place.run_gits("branch -D x/y", "branch x")
    assert place.git("branch", "--format=%(refname:short)").splitlines() == ["main", "x"]
    place.git("pack-refs", "--all")
    place.run_gits("branch -D x", "branch x/y")
    assert place.git("branch", "--format=%(refname:short)").splitlines() == ["main", "x/y"]


def test_a_renamed_branch_keeps_its_log(place: Place) -> None:
    place.run_gits("branch -m main trunk")
    assert (
        place.git("branch", "--show-current") == "trunk"
        and place.git("branch", "--format=%(refname)") == "refs/heads/trunk"
    )
    assert "renamed refs/heads/main" in place.git("log", "-g", "--format=%gs", "trunk")


def test_a_change_within_the_second_of_the_last_add_is_seen_on_both_sides(place: Place) -> None:
    """git finds such changes by the time of the index, which a copy must not lose."""
    now = 1_700_000_000
    place.write(**{"a.txt": "3\n", "new.txt": "1\n"})
    place.git("add", "-A")
    for name in ("a.txt", "new.txt", ".git/index"):
        os.utime(place.top / name, (now, now))
    place.git("update-index", "--refresh")
    os.utime(place.top / ".git/index", (now, now))
    place.write(**{"a.txt": "4\n", "new.txt": "2\n"})
    for name in ("a.txt", "new.txt"):
        os.utime(place.top / name, (now, now))
    report = place.run_gits("-c core.trustctime=false add a.txt")
    assert report.rejected == () and place.git("show", ":a.txt") == "4"
    assert place.git("-c", "core.trustctime=false", "status", "--porcelain") == "M  a.txt\nAM new.txt"


def test_a_worktree_that_a_command_adds_is_not_kept_and_told(place: Place) -> None:
    place.git("worktree", "add", "-q", "-b", "theirs", "../theirs")
    command = place.start_command()
    command.git("worktree", "list")
    assert command.end() is None, "the worktrees of the user are nothing new"
    command = place.start_command()
    command.git("worktree", "add", "-q", "-b", "mine", "../mine")
    report = command.end()
    assert report and report.rejected == (
        "Not kept in .git: worktrees. Only the user can change this: tell them the command.",
    )
    assert "mine" not in place.git("worktree", "list") and "mine" in place.git("branch")
