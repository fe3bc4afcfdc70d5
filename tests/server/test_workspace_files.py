"""Files and custom commands of a session's workspace, and reverting one file."""

import asyncio
from pathlib import Path

import pytest

from tests.kit.server import Client, create_token, serve_script
from treadle.server import file_index
from treadle.server.file_index import FileIndex
from treadle.testing import call
from treadle.tools.builtin import build_default_tools


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    for name in ("src/main.py", "src/other.py", "notes.md", "page.txt"):
        (folder / name).write_text("one\n")
    return folder


async def test_files_are_found_by_some_letters(work: Path) -> None:
    async with serve_script(roots=(work,)) as client:
        path = f"/v1/sessions/{await client.session()}/files"
        assert await client.json("GET", f"{path}?q=mpy") == {"files": ["src/main.py"]}
        assert (await client.json("GET", f"{path}?q=src"))["files"][0] == "src/"
        assert len((await client.json("GET", f"{path}?q=&limit=2"))["files"]) == 2
        await client.problem("GET", f"{path}?limit=0", status=422)
        await client.problem("GET", "/v1/sessions/none/files", status=404)


async def test_a_workspace_that_is_gone_is_named(work: Path) -> None:
    async with serve_script(roots=(work,)) as client:
        session_id = await client.session(workspace="src")
        for file in (work / "src").iterdir():
            file.unlink()
        (work / "src").rmdir()
        problem = await client.problem("GET", f"/v1/sessions/{session_id}/files", status=404)
        assert "workspace" in problem["message"]


async def test_searches_at_the_same_time_share_one_listing(monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    listed: list[Path] = []

    def list_paths(folder: Path) -> list[str]:
        listed.append(folder)
        return [folder.name]

    monkeypatch.setattr(file_index, "list_paths", list_paths)
    index = FileIndex()
    assert await asyncio.gather(*(index.list_paths(work) for _ in range(5))) == [["work"]] * 5
    assert listed == [work]
    monkeypatch.setattr(file_index, "LISTING_SECONDS", -1.0)
    await index.list_paths(work)
    assert listed == [work, work]
    for number in range(file_index.MAX_LISTINGS):
        await index.list_paths(work / str(number))
    monkeypatch.setattr(file_index, "LISTING_SECONDS", 1000.0)
    await index.list_paths(work)
    assert listed.count(work) == 3, "the listing that was not used for the longest time is dropped"


async def test_a_custom_command_is_listed_and_sent(work: Path, tmp_path: Path) -> None:
    for folder, name, text in (
        (tmp_path / "config" / "treadle", "review", "---\ndescription: Review it\nargument-hint: FILE\n---\nRead $1."),
        (work / ".treadle", "ship", "Release."),
    ):
        (folder / "commands").mkdir(parents=True)
        (folder / "commands" / f"{name}.md").write_text(text)
    reader = create_token("reader", "view")
    async with serve_script("fine", roots=(work,), tokens=(create_token("all"), reader)) as anyone:
        async with Client(anyone.base, create_token("all").value) as client:
            session_id = await client.session()
            path = f"/v1/sessions/{session_id}/commands"
            assert await client.json("GET", path) == [
                {"name": "review", "description": "Review it", "arguments_hint": "FILE", "origin": "user"},
                {"name": "ship", "description": "Release.", "arguments_hint": "", "origin": "workspace"},
            ]
            await client.problem("POST", f"{path}/nothing", {}, 404)
            sent = await client.json("POST", f"{path}/review", {"arguments": " a.py "})
            await client.wait_for(session_id, "run_finished")
            (message,) = [one for one in await client.facts(session_id) if one["type"] == "message_received"]
            assert message["id"] == sent["message_id"] and message["parts"] == [{"type": "text", "text": "Read a.py."}]
        async with Client(anyone.base, reader.value) as watching:
            assert len(await watching.json("GET", path)) == 2
            await watching.problem("POST", f"{path}/review", {}, 403)


async def test_one_file_is_reverted_and_that_is_undone(work: Path, tmp_path: Path) -> None:
    script = [call("write_file", path=name, content="two\n") for name in ("page.txt", "notes.md")]
    script.append(call("write_file", path="page.txt", content="three\n"))
    tools = build_default_tools(kept=tmp_path / "kept")
    async with serve_script(*script, "ok", tools=tools, roots=(work,)) as client:
        session_id = await client.session()
        assert (await client.send(session_id, "go"))["reply"] == "ok"
        path = f"/v1/sessions/{session_id}"
        page, notes = work / "page.txt", work / "notes.md"
        shown = await client.json("POST", f"{path}/revert", {"path": "page.txt", "dry_run": True})
        assert [one["path"] for one in shown["changes"]] == ["page.txt"] and not shown["done"]
        assert "-three" in shown["changes"][0]["diff"] and page.read_text() == "three\n"
        before = await client.facts(session_id)
        done = await client.json("POST", f"{path}/revert", {"path": "page.txt"})
        assert done["done"] and (page.read_text(), notes.read_text()) == ("one\n", "two\n")
        (fact,) = (await client.facts(session_id))[len(before) :]
        assert fact["type"] == "rewound" and [file["path"] for file in fact["files"]] == ["page.txt"]
        assert [one["path"] for one in await client.json("GET", f"{path}/changes")] == ["notes.md"]
        await client.json("POST", f"{path}/rewind/undo")
        assert (page.read_text(), notes.read_text()) == ("three\n", "two\n")
        middle = next(one["seq"] for one in before if one["type"] == "call_finished")
        await client.json("POST", f"{path}/revert", {"path": "page.txt", "to": middle})
        assert (page.read_text(), notes.read_text()) == ("two\n", "two\n")
        assert [one["content"] for one in (await client.json("GET", path))["messages"]] == ["go", "ok"]


async def test_undoing_the_revert_of_a_file_leaves_what_a_later_run_changed(work: Path, tmp_path: Path) -> None:
    script = [call("write_file", path=name, content="two\n") for name in ("page.txt", "notes.md")]
    later = [call("write_file", path=name, content="four\n") for name in ("notes.md", "new.txt")]
    tools = build_default_tools(kept=tmp_path / "kept")
    async with serve_script(*script, "ok", *later, "ok", tools=tools, roots=(work,)) as client:
        session_id = await client.session()
        path = f"/v1/sessions/{session_id}"
        await client.send(session_id, "go")
        await client.json("POST", f"{path}/revert", {"path": "page.txt"})
        await client.send(session_id, "go on")
        for content in ("two\n", "one\n"):  # the second undo restores the revert
            undone = await client.json("POST", f"{path}/rewind/undo")
            assert [one["path"] for one in undone["changes"]] == ["page.txt"]
            assert (work / "page.txt").read_text() == content
            assert (work / "notes.md").read_text() == (work / "new.txt").read_text() == "four\n"


async def test_a_revert_of_a_file_that_the_session_did_not_change_or_somebody_else_did_is_refused(
    work: Path, tmp_path: Path
) -> None:
    tools = build_default_tools(kept=tmp_path / "kept")
    script = [call("write_file", path="page.txt", content="two\n"), "ok"]
    async with serve_script(*script, tools=tools, roots=(work,)) as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        path = f"/v1/sessions/{session_id}/revert"
        for other in ("notes.md", "../work/page.txt", "/etc/passwd", f"{work}/page.txt"):
            await client.problem("POST", path, {"path": other}, 404)
        assert (await client.problem("POST", path, {"path": "page.txt", "to": 9999}, 422))["param"] == "to"
        (work / "page.txt").write_text("mine\n")
        shown = await client.json("POST", path, {"path": "page.txt"})
        assert shown["changes"] == [] and [one["path"] for one in shown["skipped"]] == ["page.txt"]
        assert (work / "page.txt").read_text() == "mine\n"
        await client.json("POST", path, {"path": "page.txt", "force": True})
        assert (work / "page.txt").read_text() == "one\n"
