"""A few small objects that stand for more than git can go through, or at which it stops. Each has a control."""

import subprocess
from collections.abc import Callable

import pytest

from tests.git.place import Command, Place, put_commit, put_object, set_main
from tests.kit.host_git import GIT_ENVIRONMENT

Attack = Callable[[Command], str]
LITTLE = ("--as=64000000", "--stack=500000")


def try_git(place: Place) -> list[str]:
    """Use git as the user, with little memory and stack. Return what failed."""
    return [
        line
        for line in ("status", "log -1", "fsck")
        if subprocess.run(
            ["prlimit", *LITTLE, "git", *line.split()],
            cwd=place.top,
            env=GIT_ENVIRONMENT,
            capture_output=True,
            check=False,
        ).returncode
    ]


def nest_trees(command: Command, depth: int, names: bytes) -> str:
    """Write trees of which each has the one below under all these names."""
    mode, inner = b"100644", put_object(command, "blob", b"x")
    for _ in range(depth):
        entries = [b"%s %c\0" % (mode, name) + bytes.fromhex(inner) for name in names]
        mode, inner = b"40000", put_object(command, "tree", b"".join(entries))
    return inner


def name_object(command: Command, mode: bytes, object_id: str) -> str:
    return put_object(command, "tree", mode + b" a\0" + bytes.fromhex(object_id))


def commit_tree(make: Attack) -> Attack:
    return lambda command: put_commit(command, make(command), command.copy.refs["refs/heads/main"])


def commit_on_tree(command: Command) -> str:
    return put_commit(command, nest_trees(command, 1, b"a"), nest_trees(command, 2, b"a"))


ATTACKS: dict[str, Attack] = {
    "ten million files": commit_tree(lambda command: nest_trees(command, 7, b"abcdefghij")),
    "two million files by two names a level": commit_tree(lambda command: nest_trees(command, 21, b"ab")),
    "a very deep folder": commit_tree(lambda command: nest_trees(command, 3000, b"a")),
    "a file as a folder": commit_tree(
        lambda command: name_object(command, b"40000", put_object(command, "blob", b"x"))
    ),
    "a folder as a file": commit_tree(lambda command: name_object(command, b"100644", nest_trees(command, 1, b"a"))),
    "a commit of a file": commit_tree(lambda command: nest_trees(command, 0, b"")),
    "a commit after a folder": commit_on_tree,
}


@pytest.mark.parametrize("what", ATTACKS)
def test_git_works_after_a_command_made_objects_that_git_cannot_use(what: str, place: Place) -> None:
    command = place.start_command()
    commit = ATTACKS[what](command)
    set_main(command, commit)
    report = command.end()
    assert report and "refs/heads/main was not kept" in report.rejected[0] and place.subjects() == ["one"]
    assert try_git(place) == []
    place.check()

    subprocess.run(["cp", "-rT", command.folder / "objects", place.git_dir / "objects"], check=True)
    (place.git_dir / "refs/heads/main").write_text(f"{commit}\n")
    assert try_git(place), f"{what} proves nothing"


def test_trees_that_two_commands_made_are_counted_together(place: Place) -> None:
    command = place.start_command()
    set_main(command, put_commit(command, nest_trees(command, 5, b"abcdefghij")))
    assert command.end() and place.subjects() == ["m"]
    command = place.start_command()
    tree = command.git("rev-parse", "HEAD^{tree}")
    entries = [b"40000 %03d\0" % number + bytes.fromhex(tree) for number in range(100)]
    set_main(command, put_commit(command, put_object(command, "tree", b"".join(entries))))
    report = command.end()
    assert report and "more than 2000000 files" in report.rejected[1] and place.subjects() == ["m"]


def test_a_chain_of_tags_is_not_kept(place: Place) -> None:
    """`git gc` takes hours for one of 100 000."""
    command = place.start_command()
    tip, kind = command.copy.refs["refs/heads/main"], "commit"
    tags: list[str] = []
    for _ in range(5):
        text = f"object {tip}\ntype {kind}\ntag t\ntagger A <a@example.org> 1700000000 +0000\n\nm\n"
        tip, kind = put_object(command, "tag", text.encode()), "tag"
        tags.append(tip)
    for number, tag in enumerate(tags):
        (command.folder / f"refs/tags/t{number}").write_text(f"{tag}\n")
    report = command.end()
    assert report and "chain of tags" in report.rejected[-1] and place.git("tag").split() == ["t0", "t1"]
