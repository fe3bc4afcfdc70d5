"""Kept contents and snapshots: what a command changed, found without reading everything again."""

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kit.file_tools import ToolBench, some_bench
from treadle.errors import NotFound, StoreDamaged, StoreError
from treadle.events import KeptFile
from treadle.history import content_store as kept_module
from treadle.history import snapshot as snapshot_module
from treadle.history.content_store import ContentStore, SeenFile
from treadle.history.snapshot import Snapshot, record_changes
from treadle.tools.base import ToolContext

bench = some_bench


def changed(bench: ToolBench, files: list[KeptFile]) -> dict[str, bytes | None]:
    """What each changed file held before."""
    return {file.path: bench.kept.get(file.before) if file.before else None for file in files}


def test_the_same_content_is_kept_once_and_only_for_the_user(bench: ToolBench) -> None:
    names = bench.kept.put(b"one", b"two", b"one")
    assert names[0] == names[2] != names[1]
    assert [bench.kept.get(name) for name in names] == [b"one", b"two", b"one"]
    database = bench.kept.folder / "kept.db"
    assert stat.S_IMODE(database.stat().st_mode) == 0o600 and stat.S_IMODE(bench.kept.folder.stat().st_mode) == 0o700


def test_contents_survive_the_process_that_kept_them(bench: ToolBench) -> None:
    (name,) = bench.kept.put(b"kept")
    bench.kept.close()
    again = ContentStore(bench.kept.folder)
    assert again.get(name) == b"kept"
    again.close()


def test_a_missing_content_and_a_damaged_one_are_told_apart(bench: ToolBench) -> None:
    with pytest.raises(NotFound, match="cannot be restored"):
        bench.kept.get("0" * 64)
    (name,) = bench.kept.put(b"kept")
    with bench.kept._open() as db:
        db.execute("UPDATE contents SET data = ? WHERE id = ?", (b"junk", name))
    with pytest.raises(StoreDamaged, match="damaged"):
        bench.kept.get(name)


def test_a_store_that_grew_too_large_forgets_the_oldest_at_the_next_start(
    bench: ToolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, *_, new = (bench.kept.put(f"content {number}".encode())[0] for number in range(10))
    bench.kept.save_seen("place", {"old.txt": SeenFile("stamp", old), "new.txt": SeenFile("stamp", new)}, ())
    bench.kept.close()
    monkeypatch.setattr(kept_module, "MAX_STORE_BYTES", 0)
    assert bench.kept.get(new) == b"content 9"
    with pytest.raises(NotFound):
        bench.kept.get(old)
    assert bench.kept.load_seen("place").keys() == {"new.txt"}


def test_many_threads_can_keep_at_once(bench: ToolBench) -> None:
    def keep(number: int) -> None:
        for other in range(20):
            bench.kept.put(f"{number} {other % 5}".encode())

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.kept.get(bench.kept.put(b"3 4")[0]) == b"3 4"


async def test_a_file_is_not_changed_when_its_old_content_cannot_be_kept(bench: ToolBench, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    blocked = ToolBench(tmp_path)
    blocked.kept.folder = tmp_path / "blocked" / "kept"
    blocked.put("a.txt", "old")
    with pytest.raises(StoreError, match="no file was changed"):
        await blocked.call("write_file", path="a.txt", content="new")
    assert (blocked.workspace / "a.txt").read_text() == "old"


async def test_what_was_made_changed_and_deleted_is_found_with_what_it_held(bench: ToolBench) -> None:
    for name in ("same", "changed", "deleted", "touched"):
        bench.put(f"sub/{name}.txt", name)
    taken = Snapshot(bench.kept, bench.workspace)
    assert taken.tree and taken.left_out == ()
    bench.put("sub/changed.txt", "Changed")
    bench.put("made/new.txt", "new")
    (bench.workspace / "sub/deleted.txt").unlink()
    os.utime(bench.workspace / "sub/touched.txt")
    assert changed(bench, taken.find_changes()) == {
        "sub/changed.txt": b"changed",
        "sub/deleted.txt": b"deleted",
        "made/new.txt": None,
    }
    assert taken.left.keys() == {"sub/changed.txt", "sub/deleted.txt", "made/new.txt"}


async def test_a_change_of_the_same_size_within_the_same_tick_is_found(
    bench: ToolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat_of = snapshot_module._read_stat

    def coarse(entry: os.DirEntry[str]) -> snapshot_module._FileStat | None:
        """As on a file system whose clock stood still."""
        about = stat_of(entry)
        return about and replace(about, stamp=str(about.size))

    monkeypatch.setattr(snapshot_module, "_read_stat", coarse)
    bench.put("a.txt", "one")
    for old, new in (("one", "two"), ("two", "six")):
        taken = Snapshot(bench.kept, bench.workspace)
        bench.put("a.txt", new)
        assert changed(bench, taken.find_changes()) == {"a.txt": old.encode()}


async def test_files_that_have_not_changed_are_not_read_again(
    bench: ToolBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put("a.txt", "a")
    bench.put("b.txt", "b")
    monkeypatch.setattr(snapshot_module, "_SETTLED_NS", 0)  # no need to wait until the files are old
    Snapshot(bench.kept, bench.workspace)
    reads: list[str] = []
    content = snapshot_module._OpenWorkspace.read_file

    def counted(self: snapshot_module._OpenWorkspace, path: str) -> bytes | None:
        reads.append(path)
        return content(self, path)

    monkeypatch.setattr(snapshot_module._OpenWorkspace, "read_file", counted)
    bench.put("b.txt", "changed")
    again = Snapshot(bench.kept, bench.workspace)
    assert reads == ["b.txt"]
    assert again.find_changes() == [] and reads == ["b.txt"]


async def test_links_machine_made_folders_and_secrets_are_left_alone(bench: ToolBench) -> None:
    outside = bench.workspace.parent / "outside"
    outside.mkdir()
    (outside / "victim.txt").write_text("canary")
    (bench.workspace / "link").symlink_to(outside)
    for path in (".git/config", "node_modules/x.js", "__pycache__/x.pyc", ".env", ".ssh/id_ed25519"):
        bench.put(path, "canary")
    taken = Snapshot(bench.kept, bench.workspace)
    for path in (".git/config", "node_modules/x.js", ".env"):
        bench.put(path, "changed")
    (outside / "victim.txt").write_text("changed")
    assert taken.find_changes() == []
    with bench.kept._open() as db:
        assert db.execute("SELECT id FROM contents").fetchall() == [(taken.tree,)]
    assert b"canary" not in bench.kept.get(taken.tree)


async def test_a_database_that_is_open_is_left_alone_whether_it_stays_open_or_not(bench: ToolBench) -> None:
    """The session's own store may lie in the workspace: it goes on while a command runs, and must never be put back."""
    database = sqlite3.connect(bench.workspace / "store.db")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE facts (seq)")
    taken = Snapshot(bench.kept, bench.workspace)
    database.execute("INSERT INTO facts VALUES (1)")
    database.commit()
    assert taken.find_changes() == [] and taken.left_out == ()
    database.close()
    assert taken.find_changes() == [] and taken.left_out == ()


async def test_what_is_too_large_or_too_many_is_said(bench: ToolBench, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(bench.put("huge.bin", ""), "wb") as file:
        file.truncate(11 * 1024 * 1024)
    bench.put("a.txt", "a")
    taken = Snapshot(bench.kept, bench.workspace)
    assert taken.left_out == ("huge.bin",)
    bench.put("huge.bin", "small now")
    assert taken.find_changes() == [] and taken.left_out == ("huge.bin",)
    bench.put("sub/b.txt", "b")
    monkeypatch.setattr(snapshot_module, "MAX_FILES", 1)
    taken = Snapshot(bench.kept, bench.workspace)
    assert "beyond the first 1 files" in taken.left_out[-1]
    assert taken.find_changes() == []


async def test_around_a_command_the_list_is_recorded_before_and_the_changes_after_even_when_it_fails(
    bench: ToolBench,
) -> None:
    bench.put("a.txt", "old")
    desk = bench.services
    context = ToolContext("session", "call_1", bench.workspace, services=desk)

    async def failing() -> None:
        async with record_changes(bench.kept, context):
            assert len(desk.trees) == 1 and bench.kept.get(desk.trees[0])
            bench.put("a.txt", "new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert changed(bench, desk.kept) == {"a.txt": b"old"} and desk.trees[1] == ""
    assert desk.notes["treadle.left"].keys() == {"a.txt"}
    with pytest.raises(NotFound):  # the list is not needed any more
        bench.kept.get(desk.trees[0])


async def test_a_name_that_is_not_utf_8_is_left_out_and_said_and_hinders_nothing_else(bench: ToolBench) -> None:
    bench.put("plain.txt", "old")
    odd = bench.workspace / os.fsdecode(b"odd\xff.txt")
    odd.write_text("old")
    taken = Snapshot(bench.kept, bench.workspace)
    assert taken.tree and taken.left_out == ("odd\ufffd.txt",)
    odd.unlink()
    folder = bench.workspace / os.fsdecode(b"made\xfe")
    folder.mkdir()
    (folder / "in.txt").touch()
    bench.put("plain.txt", "new")
    assert changed(bench, taken.find_changes()) == {"plain.txt": b"old"}
    assert taken.left_out == ("made\ufffd", "odd\ufffd.txt")
