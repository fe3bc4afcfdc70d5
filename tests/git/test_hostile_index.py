"""A command fills its private index with traps. None of them reaches the index of the user."""

import os
import struct
from hashlib import sha1
from pathlib import Path

import pytest

from tests.git.place import Command, put_object
from tests.git.victim import Victim
from treadle.git.index_file import Entries, EntryState, render_index
from treadle.git.object_format import SHA1

PATHS = [
    *(b".git/config", b".GIT/x", b"a/../../x", b"/etc/passwd", b"a//b", b"./x", b"x/.git/hooks/y", b"git~1/config"),
    *(b".git", b"a/.git\xe2\x80\x8d/config", b".git /x"),
]


def put_index(command: Command, path: bytes, mode: int, object_id: str, state: EntryState | None = None) -> None:
    entries: Entries = {(path, 0, mode, bytes.fromhex(object_id), False): state or EntryState()}
    (command.folder / "index").write_bytes(render_index(entries, SHA1))


@pytest.mark.parametrize("path", PATHS)
def test_index_entries_with_dangerous_paths_are_never_kept(victim: Victim, path: bytes) -> None:
    rejected = victim.suffer(lambda c, canary: put_index(c, path, 0o100644, c.git("rev-parse", "HEAD:a.txt")))
    assert "leads out of the work tree or into .git" in rejected[0] and victim.git("ls-files") == ""


@pytest.mark.parametrize(
    ("mode", "words"), [(0o160000, "new submodule"), (0o40000, "unknown mode"), (0o100777, "unknown mode")]
)
def test_index_entries_of_other_modes_are_never_kept(victim: Victim, mode: int, words: str) -> None:
    rejected = victim.suffer(lambda c, canary: put_index(c, b"x", mode, c.git("rev-parse", "HEAD:a.txt")))
    assert words in rejected[0]


def test_an_index_entry_without_its_object_is_never_kept(victim: Victim) -> None:
    assert "content is missing" in victim.suffer(lambda c, canary: put_index(c, b"x", 0o100644, "1" * 40))[0]


@pytest.mark.parametrize(("staged", "line"), [(b"1\n", " M a.txt"), (b"staged", "MM a.txt")])
def test_an_index_cannot_hide_a_changed_file(victim: Victim, staged: bytes, line: str) -> None:
    """The command's index says that the file it changed is unchanged, and must not be looked at."""

    def attack(command: Command, canary: Path) -> None:
        (victim.top / "a.txt").write_text("changed by the command\n")
        os.utime(victim.top / "a.txt", (1_700_000_000, 1_700_000_000))
        about = os.stat(victim.top / "a.txt")
        times = (*divmod(about.st_ctime_ns, 10**9), *divmod(about.st_mtime_ns, 10**9))
        numbers = (*times, about.st_dev, about.st_ino, about.st_uid, about.st_gid, about.st_size)
        stat = struct.pack(">9I", *(number & 0xFFFFFFFF for number in numbers))
        put_index(command, b"a.txt", 0o100644, put_object(command, "blob", staged), EntryState(stat, 0xC000))
        command_status = command.git("status", "--porcelain")
        assert line not in command_status.splitlines(), "the trap works in the private copy"

    victim.suffer(attack)
    assert line in victim.seen


def test_the_extensions_of_an_index_are_never_kept(victim: Victim) -> None:
    def attack(command: Command, canary: Path) -> None:
        (victim.top / "n.txt").write_text("n")
        command.git("add", "n.txt")
        data = (command.folder / "index").read_bytes()[:-20]
        token = struct.pack(">I", 2) + b"evil:token\0" + struct.pack(">I", 0)
        data += b"FSMN" + struct.pack(">I", len(token)) + token
        (command.folder / "index").write_bytes(data + sha1(data).digest())

    victim.suffer(attack)
    assert b"FSMN" not in (victim.git_dir / "index").read_bytes() and "n.txt" in victim.git("ls-files")
