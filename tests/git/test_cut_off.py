"""The process is killed in the middle of a take-back, at every change of a name. The repository stays whole."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.git.place import Command, Place
from treadle.git.private_copy import PrivateCopy
from treadle.git.take_back import take_back

KILLED = 9


def take_back_until(copy: PrivateCopy, count: int) -> int:
    """Take back in a child that ends at once before it links or renames for the `count`-th time."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = count

    def end_in_time(change: Callable[..., None]) -> Callable[..., None]:
        def changed(*arguments: object, **options: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(KILLED)
            change(*arguments, **options)

        return changed

    os.rename, os.link = end_in_time(os.rename), end_in_time(os.link)  # type: ignore[assignment]
    try:
        take_back(copy)
    finally:
        os._exit(0)


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
        code = take_back_until(command.copy, count)
        for lock in [*place.git_dir.rglob("*.lock"), *place.git_dir.glob("objects/tmp_*")]:
            lock.unlink()  # as git tells its user to do
        place.check()
        place.git("log", "--all", "--oneline")
        take_back(command.copy)
        place.check()
        assert place.subjects("topic") == ["two", "one"] and place.git("branch", "--show-current") == "topic"
        assert place.status() == [] and "gone" not in place.git("branch") and place.git("tag") == "v1"
        assert place.git("stash", "list").count("\n") == 0 and place.git("for-each-ref", "refs/stash")
        count += 4
    assert code == 0 and count > 12
