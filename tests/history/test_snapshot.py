"""Kept contents and snapshots: what a command changed, found without reading everything again."""

import os
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kit.file_tools import FileTools, file_tools
from treadle.errors import NotFound, StoreError
from treadle.events import KeptFile
from treadle.history import snapshot as snapshot_module
from treadle.history.snapshot import Snapshot, record_changes
from treadle.tools.base import ToolContext

files = file_tools


def read_old_contents(files: FileTools, kept_files: list[KeptFile]) -> dict[str, bytes | None]:
    """What each changed file held before."""
    return {file.path: files.kept.get(file.before) if file.before else None for file in kept_files}


async def test_a_file_is_not_changed_when_its_old_content_cannot_be_kept(files: FileTools, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    blocked = FileTools(tmp_path)
    blocked.kept.folder = tmp_path / "blocked" / "kept"
    blocked.put("a.txt", "old")
    with pytest.raises(StoreError, match="no file was changed"):
        await blocked.call("write_file", path="a.txt", content="new")
    assert (blocked.workspace / "a.txt").read_text() == "old"


async def test_what_was_made_changed_and_deleted_is_found_with_what_it_held(files: FileTools) -> None:
    for name in ("same", "changed", "deleted", "touched"):
        files.put(f"sub/{name}.txt", name)
    taken = Snapshot(files.kept, files.workspace)
    assert taken.tree and taken.left_out == ()
    files.put("sub/changed.txt", "Changed")
    files.put("made/new.txt", "new")
    (files.workspace / "sub/deleted.txt").unlink()
    os.utime(files.workspace / "sub/touched.txt")
    assert read_old_contents(files, taken.find_changes()) == {
        "sub/changed.txt": b"changed",
        "sub/deleted.txt": b"deleted",
        "made/new.txt": None,
    }
    assert taken.left.keys() == {"sub/changed.txt", "sub/deleted.txt", "made/new.txt"}


async def test_a_change_of_the_same_size_within_the_same_tick_is_found(
    files: FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_stat = snapshot_module._read_stat

    def read_coarse_stat(entry: os.DirEntry[str]) -> snapshot_module._FileStat | None:
        """As on a file system whose clock stood still."""
        about = read_stat(entry)
        return about and replace(about, stamp=str(about.size))

    monkeypatch.setattr(snapshot_module, "_read_stat", read_coarse_stat)
    files.put("a.txt", "one")
    for old, new in (("one", "two"), ("two", "six")):
        taken = Snapshot(files.kept, files.workspace)
        files.put("a.txt", new)
        assert read_old_contents(files, taken.find_changes()) == {"a.txt": old.encode()}


async def test_files_that_have_not_changed_are_not_read_again(
    files: FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put("a.txt", "a")
    files.put("b.txt", "b")
    monkeypatch.setattr(snapshot_module, "_SETTLED_NS", 0)  # no need to wait until the files are old
    Snapshot(files.kept, files.workspace)
    reads: list[str] = []
    content = snapshot_module._OpenWorkspace.read_file

    def count_reads(self: snapshot_module._OpenWorkspace, path: str) -> bytes | None:
        reads.append(path)
        return content(self, path)

    monkeypatch.setattr(snapshot_module._OpenWorkspace, "read_file", count_reads)
    files.put("b.txt", "changed")
    again = Snapshot(files.kept, files.workspace)
    assert reads == ["b.txt"]
    assert again.find_changes() == [] and reads == ["b.txt"]


async def test_links_machine_made_folders_and_secrets_are_left_alone(files: FileTools) -> None:
    outside = files.workspace.parent / "outside"
    outside.mkdir()
    (outside / "victim.txt").write_text("canary")
    (files.workspace / "link").symlink_to(outside)
    for path in (".git/config", "node_modules/x.js", "__pycache__/x.pyc", ".env", ".ssh/id_ed25519"):
        files.put(path, "canary")
    taken = Snapshot(files.kept, files.workspace)
    for path in (".git/config", "node_modules/x.js", ".env"):
        files.put(path, "changed")
    (outside / "victim.txt").write_text("changed")
    assert taken.find_changes() == []
    with files.kept._open() as db:
        assert db.execute("SELECT id FROM contents").fetchall() == [(taken.tree,)]
    assert b"canary" not in files.kept.get(taken.tree)


async def test_a_database_that_is_open_is_left_alone_whether_it_stays_open_or_not(files: FileTools) -> None:
    """The session's own store may lie in the workspace: it goes on while a command runs, and must never be put back."""
    database = sqlite3.connect(files.workspace / "store.db")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE facts (seq)")
    taken = Snapshot(files.kept, files.workspace)
    database.execute("INSERT INTO facts VALUES (1)")
    database.commit()
    assert taken.find_changes() == [] and taken.left_out == ()
    database.close()
    assert taken.find_changes() == [] and taken.left_out == ()


async def test_what_is_too_large_or_too_many_is_said(files: FileTools, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(files.put("huge.bin", ""), "wb") as file:
        file.truncate(11 * 1024 * 1024)
    files.put("a.txt", "a")
    taken = Snapshot(files.kept, files.workspace)
    assert taken.left_out == ("huge.bin",)
    files.put("huge.bin", "small now")
    assert taken.find_changes() == [] and taken.left_out == ("huge.bin",)
    files.put("sub/b.txt", "b")
    monkeypatch.setattr(snapshot_module, "MAX_FILES", 1)
    taken = Snapshot(files.kept, files.workspace)
    assert "beyond the first 1 files" in taken.left_out[-1]
    assert taken.find_changes() == []


async def test_around_a_command_the_list_is_recorded_before_and_the_changes_after_even_when_it_fails(
    files: FileTools,
) -> None:
    files.put("a.txt", "old")
    services = files.services
    context = ToolContext("session", "call_1", files.workspace, services=services)

    async def fail() -> None:
        async with record_changes(files.kept, context):
            assert len(services.trees) == 1 and files.kept.get(services.trees[0])
            files.put("a.txt", "new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert read_old_contents(files, services.kept) == {"a.txt": b"old"} and services.trees[1] == ""
    assert services.notes["treadle.left"].keys() == {"a.txt"}
    with pytest.raises(NotFound):  # the list is not needed any more
        files.kept.get(services.trees[0])


async def test_a_name_that_is_not_utf_8_is_left_out_and_said_and_hinders_nothing_else(files: FileTools) -> None:
    files.put("plain.txt", "old")
    odd = files.workspace / os.fsdecode(b"odd\xff.txt")
    odd.write_text("old")
    taken = Snapshot(files.kept, files.workspace)
    assert taken.tree and taken.left_out == ("odd\ufffd.txt",)
    odd.unlink()
    folder = files.workspace / os.fsdecode(b"made\xfe")
    folder.mkdir()
    (folder / "in.txt").touch()
    files.put("plain.txt", "new")
    assert read_old_contents(files, taken.find_changes()) == {"plain.txt": b"old"}
    assert taken.left_out == ("made\ufffd", "odd\ufffd.txt")
