"""The user, or another command, changes the repository while a command runs. Both sides survive."""

import os

import pytest

from tests.git.place import Command, Place
from treadle.git import git_folder
from treadle.git.take_refs import RefTaker


def commit_in(command: Command, place: Place, subject: str, **files: str) -> None:
    place.write(**files)
    command.git("add", *files)
    command.git("commit", "-qm", subject)


def test_a_commit_of_the_user_meanwhile_stays_and_the_commands_gets_a_branch(place: Place) -> None:
    command = place.start_command()
    commit_in(command, place, "of the command", **{"c.txt": "c"})
    place.write(**{"u.txt": "u"})
    place.git("add", "u.txt")
    place.git("commit", "-qm", "of the user")
    report = command.end()
    assert report and place.subjects("main") == ["of the user", "one"]
    (change,) = report.changes
    assert place.subjects(change.ref) == ["of the command", "one"]
    assert change.ref == f"refs/heads/treadle/main-{change.after[:7]}"
    assert "changed it meanwhile" in report.rejected[0] and change.ref.removeprefix("refs/heads/") in report.rejected[0]
    assert place.git("log", "-g", "--format=%gs", "-1") == "commit: of the user"
    place.check()


def test_two_commands_at_once_both_survive(place: Place) -> None:
    first, second = place.start_command(), place.start_command()
    commit_in(first, place, "first", **{"f.txt": "f"})
    commit_in(second, place, "second", **{"s.txt": "s"})
    first.end()
    report = second.end()
    assert report and place.subjects("main") == ["first", "one"]
    assert place.subjects(report.changes[0].ref) == ["second", "one"]
    place.check()


def test_two_commands_on_two_branches_need_no_extra_branch(place: Place) -> None:
    place.git("branch", "x")
    place.git("branch", "y")
    commands = {name: place.start_command() for name in ("x", "y")}
    for name, command in commands.items():
        tree = command.git("rev-parse", "HEAD^{tree}")
        command.git("update-ref", f"refs/heads/{name}", command.git("commit-tree", tree, "-p", name, "-m", name))
        report = command.end()
        assert report and report.rejected == ()
    assert place.subjects("x") == ["x", "one"] and place.subjects("y") == ["y", "one"]


def test_what_both_staged_is_merged_and_the_users_entry_wins(place: Place) -> None:
    command = place.start_command()
    place.write(**{"a.txt": "command\n", "c.txt": "command\n"})
    command.git("add", "a.txt", "c.txt")
    place.write(**{"a.txt": "user\n", "u.txt": "user\n"})
    place.git("add", "a.txt", "u.txt")
    report = command.end()
    assert report and place.git("show", ":a.txt") == "user"
    assert place.git("show", ":c.txt") == "command" and place.git("show", ":u.txt") == "user"
    assert report.rejected == ("The staged state of a.txt was not kept: the user changed it meanwhile.",)
    place.check()


def test_a_file_and_a_folder_of_one_name_are_not_staged_together(place: Place) -> None:
    command = place.start_command()
    place.write(**{"x/y.txt": "command"})
    command.git("add", "x/y.txt")
    (place.top / "x/y.txt").unlink()
    (place.top / "x").rmdir()
    place.write(x="user")
    place.git("add", "x")
    report = command.end()
    assert report and "the same name" in report.rejected[0]
    assert place.git("ls-files").splitlines() == ["a.txt", "b.txt", "x"]


def test_a_stash_of_the_user_meanwhile_stays(place: Place) -> None:
    command = place.start_command()
    place.write(**{"a.txt": "command"})
    command.git("stash", "push", "-q", "-m", "command")
    place.write(**{"a.txt": "user"})
    place.git("stash", "push", "-q", "-m", "user")
    report = command.end()
    assert report and place.git("stash", "list", "--format=%gs") == "On main: user"
    assert place.git("show", f"{report.changes[0].ref}:a.txt") == "command"
    place.check()


def test_a_switch_of_the_user_meanwhile_stays(place: Place) -> None:
    command = place.start_command()
    command.git("switch", "-qc", "command")
    place.git("switch", "-qc", "user")
    report = command.end()
    assert report and place.git("branch", "--show-current") == "user" and "HEAD was not changed" in report.rejected[0]
    assert "command" in place.git("branch")


def test_a_merge_that_the_user_began_meanwhile_stays(place: Place) -> None:
    place.git("switch", "-qc", "topic")
    place.commit("topic", **{"a.txt": "t"})
    place.git("switch", "-q", "main")
    place.commit("main", **{"a.txt": "m"})
    command = place.start_command()
    (command.folder / "MERGE_MSG").write_text("of the command")
    place.git("merge", "topic", check=False)
    report = command.end()
    assert report and "MERGE_MSG in .git was not kept: the user changed it meanwhile." in report.rejected
    assert "Merge branch" in (place.git_dir / "MERGE_MSG").read_text()


@pytest.mark.parametrize("name", ["refs/heads/main", "index", "HEAD", "packed-refs"])
def test_a_lock_of_another_git_is_respected(place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_folder, "LOCK_WAIT_S", 0.05)
    place.git("branch", "gone")
    place.git("pack-refs", "--all")
    command = place.start_command()
    commit_in(command, place, "new", **{"n.txt": "n"})
    command.git("branch", "-D", "gone")
    command.git("switch", "-qc", "other")
    lock = place.git_dir / f"{name}.lock"
    lock.touch()
    report = command.end()
    assert lock.read_bytes() == b"" and report and report.rejected
    lock.unlink()
    place.check()
    new = place.git("rev-list", "--all", "--count")
    assert new == "2", "the commit of the command is on some branch"


def test_a_lock_that_is_released_in_time_is_waited_for(place: Place) -> None:
    command = place.start_command()
    commit_in(command, place, "new", **{"n.txt": "n"})
    lock = place.git_dir / "refs/heads/main.lock"
    lock.touch()
    child = os.fork()
    if child == 0:
        os.unlink(lock)
        os._exit(0)
    report = command.end()
    os.waitpid(child, 0)
    assert report and report.rejected == () and place.subjects() == ["new", "one"]


def test_a_commit_of_the_user_amid_a_take_back_reverts_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    command = place.start_command()
    commit_in(command, place, "new", **{"n.txt": "n"})
    take_refs = RefTaker.take_refs

    def commit_and_take(self: RefTaker) -> None:
        take_refs(self)
        place.git("commit", "-q", "--allow-empty", "-m", "of the user")

    monkeypatch.setattr(RefTaker, "take_refs", commit_and_take)
    command.end()
    assert place.subjects() == ["of the user", "new", "one"] and "n.txt" in place.git("ls-tree", "--name-only", "HEAD")
    place.check()


def test_a_file_that_others_may_not_read_stays_so(place: Place) -> None:
    (place.git_dir / "index").chmod(0o600)
    command = place.start_command()
    commit_in(command, place, "new", **{"n.txt": "n"})
    command.end()
    assert (place.git_dir / "index").stat().st_mode & 0o777 == 0o600 and place.status() == []
