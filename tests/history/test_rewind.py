"""Rewinding a session: its files, its conversation or both; undone, repeated, cut off, and never over others' work."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.rewinding import Contents, Place, positions, rewindable, write
from tests.kit.sessions import (
    PATIENCE,
    HeldTool,
    Store,
    either_store,
    list_user_texts,
    resume_run,
    run_to_end,
    select_events,
    wait_for,
)
from treadle import RunFinished, TextPart
from treadle.engine.coordinator import Coordinator
from treadle.engine.tool_call import LogToolServices
from treadle.errors import BadInput, Conflict
from treadle.events import CallFinished, CallStarted, Custom, FilesKept, MessageReceived, Rewound
from treadle.history.content_store import ContentStore
from treadle.log.in_memory import InMemoryLog
from treadle.log.sqlite import SqliteLog
from treadle.testing import call, crash_points
from treadle.workspace.folder import Folder

store = either_store
place = rewindable


async def test_changes_tells_what_the_calls_did_to_each_file(place: Place, store: Store) -> None:
    place.fill({"a.txt": "one\n", "b.txt": "gone\n"})
    delete = call("apply_patch", patch="--- a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n")
    script = (
        write("a.txt", "two\n"),
        [write("c.txt", "new\n"), delete],
        call("edit_file", path="a.txt", old="two", new="2"),
        "ok",
    )
    async with place.run(store, *script) as session:
        changes = {change.path: change for change in await session.changes()}
    kinds = {path: change.kind for path, change in changes.items()}
    assert kinds == {"a.txt": "modified", "b.txt": "deleted", "c.txt": "added"}
    assert "-one\n+2" in changes["a.txt"].diff and len(changes["a.txt"].calls) == 2
    assert not any(change.others for change in changes.values())


async def test_changes_can_start_from_a_position(place: Place, store: Store) -> None:
    async with place.run(store, write("a.txt", "1"), "ok", write("b.txt", "2"), "ok") as session:
        await run_to_end(session)
        _, second = await positions(session)
        assert [change.path for change in await session.changes(after=second)] == ["b.txt"]
        assert [change.path for change in await session.changes()] == ["a.txt", "b.txt"]


async def test_a_rewind_shows_its_diff_then_restores_files_and_conversation(place: Place, store: Store) -> None:
    place.put("a.txt", "one\n")
    async with place.session(
        store, write("a.txt", "two\n"), "first", write("new/b.txt", "b\n"), "second", "third"
    ) as session:
        await run_to_end(session, "one")
        between = place.holds()
        last = len(await session.facts())
        await run_to_end(session, "two")
        after = place.holds()
        shown = await session.rewind(last, dry_run=True)
        assert [(change.path, change.kind) for change in shown.changes] == [("new/b.txt", "deleted")]
        assert "-b" in shown.changes[0].diff and not shown.done and place.holds() == after
        assert (await session.rewind(last)).done
        assert place.holds() == between and not (place.workspace / "new").exists()
        await run_to_end(session, "three")
        assert list_user_texts(place.model.requests[-1]) == ["one", "three"]


async def test_files_alone_or_the_conversation_alone_can_be_rewound(place: Place, store: Store) -> None:
    async with place.session(store, write("a.txt", "1"), "one", "two", "three") as session:
        await run_to_end(session, "first")
        await session.rewind(1, "files")
        assert place.holds() == {}
        await run_to_end(session, "second")
        assert list_user_texts(place.model.requests[-1]) == ["first", "second"]
        place.put("a.txt", "kept")
        await session.rewind(1, "conversation")
        assert place.holds() == {"a.txt": "kept"}
        await run_to_end(session, "third")
        assert list_user_texts(place.model.requests[-1]) == ["third"]


async def test_a_rewind_can_be_undone_and_the_undoing_too(place: Place, store: Store) -> None:
    place.put("a.txt", "zero")
    async with place.session(store, write("a.txt", "1"), write("b.txt", "2"), "one", "two") as session:
        await run_to_end(session, "first")
        after = place.holds()
        await session.rewind(1)
        before = place.holds()
        assert before == {"a.txt": "zero"} and after == {"a.txt": "1", "b.txt": "2"}
        for expected in (after, before, after):
            await session.undo_rewind()
            assert place.holds() == expected
        await run_to_end(session, "second")
        assert list_user_texts(place.model.requests[-1]) == ["first", "second"]


async def test_without_a_rewind_there_is_nothing_to_undo(place: Place, store: Store) -> None:
    async with place.session(store) as session:
        with pytest.raises(BadInput, match="never rewound"):
            await session.undo_rewind()
        with pytest.raises(BadInput, match="positions 1 to 1, not 7"):
            await session.rewind(7)


async def test_the_mode_of_a_file_comes_back_with_it(place: Place, store: Store) -> None:
    place.put("run.sh", "one")
    (place.workspace / "run.sh").chmod(0o755)
    async with place.run_command(store, lambda: (place.workspace / "run.sh").chmod(0o600)) as session:
        (change,) = await session.changes()
        assert change.diff == "run.sh: mode 755 before, 600 now"
        await session.rewind(1)
    assert (place.workspace / "run.sh").stat().st_mode & 0o777 == 0o755


async def test_what_others_changed_since_is_left_alone_unless_forced(place: Place, store: Store) -> None:
    old, theirs = {"a.txt": "old", "b.txt": "old"}, {"a.txt": "the user's", "b.txt": "the user's too"}
    place.fill(old)
    place.commands["run"] = lambda: place.put("b.txt", "from the command")
    async with place.run(store, write("a.txt", "from the call"), call("command", name="run"), "ok") as session:
        place.fill(theirs)
        assert all(change.others for change in await session.changes())
        done = await session.rewind(1, "files")
        assert [one.path for one in done.skipped] == ["a.txt", "b.txt"] and "force" in done.skipped[0].why
        assert place.holds() == theirs
        await session.rewind(1, "files", force=True)
        assert place.holds() == old
        await session.undo_rewind()
        assert place.holds() == theirs


async def test_what_others_wrote_while_a_call_was_about_to_is_theirs(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("a.txt", "old")
    keep = LogToolServices.record_kept_files

    async def record_and_change(self: LogToolServices, files: Any, **given: Any) -> None:
        await keep(self, files, **given)
        place.put("a.txt", "the user's")

    monkeypatch.setattr(LogToolServices, "record_kept_files", record_and_change)
    async with place.run(store, write("a.txt", "mine"), "ok") as session:
        (done,) = select_events(await session.facts(), CallFinished)
        assert done.status == "error" and "changed by somebody else just now" in done.output
        await session.rewind(1, "files")
    assert place.holds() == {"a.txt": "the user's"}


async def test_a_rewind_is_refused_while_a_run_is_unfinished(place: Place, store: Store) -> None:
    held = HeldTool()
    async with place.session(store, write("a.txt", "1"), call("wait"), "ok", tools=[held.tool]) as session:
        running = asyncio.ensure_future(run_to_end(session))
        await wait_for(session, CallStarted, lambda fact: fact.tool == "wait")
        with pytest.raises(Conflict, match="unfinished run"):
            await session.rewind(1)
        assert place.holds() == {"a.txt": "1"}
        held.free.set()
        await running
        assert (await session.rewind(1)).done and place.holds() == {}


async def test_a_message_that_comes_just_before_a_rewind_makes_it_wait(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.run(store, write("a.txt", "1"), "ok", "answer") as session:
        idle = Coordinator.wait_until_idle

        async def late(self: Coordinator, session_id: str) -> None:
            await idle(self, session_id)
            await self.log.post(session_id, [MessageReceived(id="late", parts=(TextPart("go"),))], wake=False)

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "wait_until_idle", late)
            with pytest.raises(Conflict, match="unfinished run"):
                await session.rewind(1)
        assert place.holds() == {"a.txt": "1"}


async def test_nothing_is_restored_through_a_link(place: Place, store: Store) -> None:
    place.put("sub/a.txt", "old")
    outside = place.workspace.parent / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("untouched")
    async with place.run(store, write("sub/a.txt", "new"), "ok") as session:
        shutil.rmtree(place.workspace / "sub")
        (place.workspace / "sub").symlink_to(outside)
        done = await session.rewind(1, "files", force=True)
        assert [one.path for one in done.skipped] == ["sub/a.txt"] and "symbolic link" in done.skipped[0].why
    assert (outside / "a.txt").read_text() == "untouched"


async def test_a_rewind_cut_off_half_way_is_repeated_and_undone(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {f"{name}.txt": f"old {name}" for name in "abc"}
    place.fill(before)
    async with place.run(store, [write(f"{name}.txt", f"new {name}") for name in "abc"], "ok") as session:
        after, real = place.holds(), Folder.write
        for survivors in range(3):
            left = [survivors]

            def write_or_die(self: Folder, *given: Any, left: list[int] = left) -> None:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
                real(self, *given)

            with monkeypatch.context() as patch:
                patch.setattr(Folder, "write", write_or_die)
                with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
                    await session.rewind(1, "files")
            assert sum(place.holds()[name] == before[name] for name in before) == survivors
            done = await session.rewind(1, "files")
            assert place.holds() == before and not done.skipped
            await session.undo_rewind()
            assert place.holds() == after


@pytest.mark.parametrize("written", [False, True])
async def test_a_session_cut_off_anywhere_can_be_rewound_to_where_it_began(
    place: Place, written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after every fact; of a change whose keeping is the last fact it is open whether it was made."""
    start = {"a.txt": "one\n", "b.txt": "two\n"}
    place.fill(start)
    place.commands["run"] = lambda: place.fill({"b.txt": "by command\n", "made.txt": "made\n"})
    script = (
        write("a.txt", "1\n"),
        call("edit_file", path="b.txt", old="two", new="2"),
        call("command", name="run"),
        call("apply_patch", patch="--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"),
        "ok",
    )
    states: list[Contents] = []
    keep = LogToolServices.record_kept_files

    async def record_states(self: LogToolServices, files: Any, **given: Any) -> None:
        await keep(self, files, **given)
        states.append(place.holds())

    monkeypatch.setattr(LogToolServices, "record_kept_files", record_states)
    monkeypatch.setattr(ContentStore, "drop", lambda self, name: None)  # a process that dies drops nothing
    async with place.agent(*script).session(InMemoryLog(), workspace=place.workspace) as session:
        await run_to_end(session)
        points = await crash_points(session)
    states.append(place.holds())
    monkeypatch.undo()
    for point in points:
        recorded = [fact for fact in point.facts if isinstance(fact, FilesKept | Custom)]
        kept = len(select_events(recorded, FilesKept))
        open_still = bool(recorded) and isinstance(recorded[-1], FilesKept)
        disk = states[kept - 1 if open_still and not written else kept] if kept else start
        shutil.rmtree(place.workspace)
        place.workspace.mkdir()
        place.fill(disk)
        log = InMemoryLog()
        session_id = await point.plant(log)
        async with place.agent(*["done"] * 9).session(log, id=session_id) as session:
            await resume_run(session)  # a call that had not started runs now
            found = place.holds()
            done = await session.rewind(1, "files")
            assert place.holds() == start and not done.skipped, f"{point}, {done}"
            if done.changes:
                await session.undo_rewind()
            assert place.holds() == found, str(point)
        await log.close()


async def test_a_process_killed_between_keeping_and_writing_leaves_a_session_that_can_be_rewound(
    place: Place, tmp_path: Path
) -> None:
    place.put("a.txt", "old")
    database = tmp_path / "store.db"
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.history.killed", str(database), str(place.workspace), str(place.kept.folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=PATIENCE * 3,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert place.holds() == {"a.txt": "old", "b.txt": "made"}
    async with SqliteLog(database) as log, place.agent("I see.").session(log) as session:
        await resume_run(session)
        facts = await session.facts()
        assert [file.path for fact in select_events(facts, FilesKept) for file in fact.files] == ["b.txt", "a.txt"]
        await session.rewind(1, "files")
        assert place.holds() == {"a.txt": "old"}
        assert len(select_events(await session.facts(), Rewound)) == 1


async def test_a_store_in_the_workspace_itself_survives_a_rewind(place: Place) -> None:
    place.put("a.txt", "old")
    place.commands["run"] = lambda: place.put("a.txt", "new")
    agent = place.agent(call("command", name="run"), "ok", "still here")
    async with agent.session(place.workspace / "store.db", workspace=place.workspace) as session:
        await run_to_end(session)
        done = await session.rewind(1, "files")
        assert [change.path for change in done.changes] == ["a.txt"] and not done.skipped
        assert (await run_to_end(session)).answer == "still here"
    assert (place.workspace / "a.txt").read_text() == "old"


async def test_two_sessions_on_one_workspace_see_each_other_as_others(place: Place, store: Store) -> None:
    log = store.open()
    agent = place.agent(write("a.txt", "first"), "ok", write("a.txt", "second"), "ok")
    async with agent.session(log, new=True, workspace=place.workspace) as one:
        await run_to_end(one)
        async with agent.session(log, new=True, workspace=place.workspace) as two:
            await run_to_end(two)
        (change,) = await one.changes()
        assert change.others
        assert [skipped.path for skipped in (await one.rewind(1, "files")).skipped] == ["a.txt"]
    assert place.holds() == {"a.txt": "second"}


async def test_a_message_that_comes_during_a_rewind_is_worked_on_after_it(
    place: Place, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.run(store, write("a.txt", "1"), "ok", "answer") as session:
        loop, real = asyncio.get_running_loop(), Folder.remove

        def slow(self: Folder, path: str) -> None:
            asyncio.run_coroutine_threadsafe(session.send("meanwhile"), loop).result(PATIENCE)
            real(self, path)

        monkeypatch.setattr(Folder, "remove", slow)
        position = len(await session.facts())
        await session.rewind(1, "files")
        assert place.holds() == {}
        outcome = await wait_for(session, RunFinished, after=position)
        assert outcome.answer == "answer"


def test_the_environment_chooses_where_old_contents_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    assert ContentStore().folder == tmp_path / "data" / "kept"
    monkeypatch.delenv("TREADLE_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert ContentStore().folder == tmp_path / "share" / "treadle" / "kept"
    assert not os.path.exists(tmp_path / "share")


async def test_what_a_command_made_changed_deleted_or_exchanged_for_a_folder_comes_back_and_goes_again(
    place: Place, store: Store
) -> None:
    before = {path: path for path in ("one", "two/a", "two/deep/b", "changed", "deleted")}
    place.fill(before)

    def change() -> None:
        (place.workspace / "deleted").unlink()
        (place.workspace / "one").unlink()
        shutil.rmtree(place.workspace / "two")
        place.fill({"one/in": "new", "two": "new", "changed": "new", "made/c.txt": "new"})

    async with place.run_command(store, change) as session:
        after = place.holds()
        kinds = {change.path: change.kind for change in await session.changes()}
        added = dict.fromkeys(("one/in", "two", "made/c.txt"), "added")
        assert kinds == {**dict.fromkeys(before, "deleted"), "changed": "modified", **added}
        assert (await session.rewind(1, "files")).skipped == () and place.holds() == before
        assert (await session.undo_rewind()).skipped == () and place.holds() == after


async def test_a_file_that_became_a_link_is_among_the_changes_and_a_rewind_leaves_the_link(
    place: Place, store: Store
) -> None:
    place.fill({"file": "old", "other": "other"})

    def link() -> None:
        (place.workspace / "file").unlink()
        (place.workspace / "file").symlink_to("other")

    async with place.run_command(store, link) as session:
        (change,) = await session.changes()
        assert (change.path, change.kind) == ("file", "modified") and "symbolic link" in change.diff and change.calls
        assert [one.path for one in (await session.rewind(1, "files")).skipped] == ["file"]
        assert (place.workspace / "file").is_symlink()


@pytest.mark.parametrize(
    ("what", "undone", "status", "content"),
    [
        ("both", False, "ok", "three"),
        ("conversation", False, "error", "two"),
        ("files", False, "error", "one"),
        ("both", True, "ok", "three"),
    ],
)
async def test_what_was_seen_of_a_file_goes_back_and_comes_back_with_the_conversation(
    place: Place, store: Store, what: Any, undone: bool, status: str, content: str
) -> None:
    """Where both go back, the file is again what the model remembers; where one does, it is not."""
    script = (write("a.txt", "one"), "ok", write("a.txt", "two"), "ok", write("a.txt", "three"), "ok")
    async with place.run(store, *script) as session:
        await run_to_end(session)
        await session.rewind((await positions(session))[1] - 1, what)
        for _ in range(undone):
            await session.undo_rewind()
        await run_to_end(session)
        last = select_events(await session.facts(), CallFinished)[-1]
    assert (last.status, place.holds()["a.txt"]) == (status, content)
