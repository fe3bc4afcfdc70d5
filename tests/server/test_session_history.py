"""The past of a session over HTTP: checkpoints, resuming from one, rewinding files, and partial text."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fake_model import FakeModel
from tests.kit.git_rewinding import create_repository
from tests.kit.host_git import run_git
from tests.kit.sandbox import needs_bubblewrap
from tests.kit.server import Client, create_token, serve_agents, serve_script
from treadle import Agent, Grant, Limits, TextDelta
from treadle.errors import ModelError
from treadle.events import Tier
from treadle.messages import Reply, Request
from treadle.models.base import ModelEvent
from treadle.testing import call
from treadle.tools.builtin import build_default_tools


async def list_checkpoints(client: Client, session_id: str, query: str = "") -> list[dict[str, Any]]:
    return (await client.json("GET", f"/v1/sessions/{session_id}/checkpoints{query}"))["checkpoints"]


async def test_checkpoints_are_listed_page_by_page_with_their_content() -> None:
    async with serve_script(call("note", id="a", text="x"), "done") as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        points = await list_checkpoints(client, session_id)
        kinds = "after_user_input before_llm before_tool_calls after_tool_calls before_llm"
        assert [point["kind"] for point in points] == kinds.split()
        assert points[0]["user_input"] == [{"type": "text", "text": "go"}]
        assert points[1]["messages"] == [{"role": "user", "parts": [{"type": "text", "text": "go"}]}]
        assert "note" in [tool["name"] for tool in points[1]["tools"]] and points[1]["turns"] == 1
        assert [one["tool"] for one in points[2]["calls"]] == ["note"]
        assert [(one["call_id"], one["status"]) for one in points[3]["results"]] == [("a", "ok")]
        assert [message["role"] for message in points[4]["messages"]] == ["user", "model", "result"]
        paged: list[dict[str, Any]] = []
        while True:
            after = paged[-1]["seq"] if paged else 0
            page = await client.json("GET", f"/v1/sessions/{session_id}/checkpoints?limit=2&after={after}")
            paged += page["checkpoints"]
            if not page["more"]:
                break
        assert paged == points


async def test_the_state_of_a_session_is_shown_now_and_at_a_position() -> None:
    async with serve_script(call("note", id="a", text="x"), "done") as client:
        session_id = await client.session(name="work")
        await client.send(session_id, "go")
        path = f"/v1/sessions/{session_id}/state"
        now = await client.json("GET", path)
        assert [message["text"] for message in now["messages"]] == ["go", "done"] and now["status"] == "idle"
        assert now["calls"] == [{"id": "a", "tool": "note", "status": "ok"}] and now["name"] == "work"
        then = await client.json("GET", f"{path}?at={now['seq'] - 3}")
        assert (then["seq"], then["status"], then["last"]) == (now["seq"] - 3, "running", None)
        problem = await client.problem("GET", f"{path}?at={now['seq'] + 1}", status=422)
        assert f"positions 1 to {now['seq']}" in str(problem)


@pytest.mark.parametrize("fork", [False, True])
async def test_a_run_goes_on_from_a_checkpoint_in_place_and_in_a_fork(fork: bool) -> None:
    async with serve_script(call("note", id="a", text="x"), "first", "second") as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        before = await client.facts(session_id)
        point = (await list_checkpoints(client, session_id))[2]
        body = {"after": point["seq"], "fork": fork}
        accepted = await client.json("POST", f"/v1/sessions/{session_id}/resume", body)
        assert (accepted["session_id"] != session_id) is fork
        await client.wait_for(accepted["session_id"], "run_finished", accepted["after"])
        shown = await client.json("GET", f"/v1/sessions/{accepted['session_id']}")
        assert [message["content"] for message in shown["messages"]] == ["go", "second"]
        assert client.tables.done == ["x", "x"]
        if fork:
            assert await client.facts(session_id) == before


async def test_resuming_is_refused_during_a_run_and_at_a_position_that_is_no_checkpoint() -> None:
    async with serve_script(call("wait", id="a"), "done") as client:
        session_id, sending, _ = await client.start_run("call_started")
        path = f"/v1/sessions/{session_id}"
        await client.problem("POST", f"{path}/resume", {"after": 2}, 409)
        await client.problem("POST", f"{path}/rewind", {"seq": 1}, 409)
        client.held.free.set()
        await sending
        for fork in (False, True):
            problem = await client.problem("POST", f"{path}/resume", {"after": 1, "fork": fork}, 422)
            assert problem["message"].startswith("after: position 1 is no checkpoint")
        for body in ({}, {"after": 0}, {"after": "x"}, {"after": True}, {"after": 2, "fork": True, "files": True}):
            await client.problem("POST", f"{path}/resume", body, 422)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "page.txt").write_text("one\n")
    return tmp_path


async def test_a_rewind_over_http_returns_the_diffs_and_can_be_undone(folder: Path) -> None:
    page = folder / "work" / "page.txt"
    script = [
        call("write_file", path="page.txt", content="two\n"),
        call("write_file", path="new.txt", content="n"),
        "ok",
    ]
    tools = build_default_tools(kept=folder / "kept")
    async with serve_script(*script, tools=tools, roots=(folder / "work",)) as client:
        session_id = await client.session()
        assert (await client.send(session_id, "go"))["reply"] == "ok"
        path = f"/v1/sessions/{session_id}"
        changes = await client.json("GET", f"{path}/changes")
        assert [(one["path"], one["kind"]) for one in changes] == [("new.txt", "added"), ("page.txt", "modified")]
        assert all(one["calls"] for one in changes) and "+two" in changes[1]["diff"]
        assert len(await client.json("GET", f"{path}/changes?after={(await client.facts(session_id))[-1]['seq']}")) == 0
        shown = await client.json("POST", f"{path}/rewind", {"seq": 1, "what": "files", "dry_run": True})
        assert not shown["done"] and page.read_text() == "two\n"
        assert {one["path"]: one["kind"] for one in shown["changes"]} == {"new.txt": "deleted", "page.txt": "modified"}
        assert "-two" in shown["changes"][1]["diff"] and "+one" in shown["changes"][1]["diff"]
        done = await client.json("POST", f"{path}/rewind", {"seq": 1})
        assert done["done"] and done["changes"] == shown["changes"]
        assert page.read_text() == "one\n" and not (folder / "work" / "new.txt").exists()
        assert (await client.json("GET", path))["messages"] == []
        undone = await client.json("POST", f"{path}/rewind/undo")
        assert undone["done"] and page.read_text() == "two\n" and (folder / "work" / "new.txt").exists()
        assert [one["content"] for one in (await client.json("GET", path))["messages"]] == ["go", "ok"]


@needs_bubblewrap
async def test_commits_appear_over_http_and_go_back(folder: Path) -> None:
    create_repository(folder / "work")
    tools = build_default_tools(kept=folder / "kept")
    commit = call("shell", command="echo two > a.txt; git commit -qam 'Write two'")
    async with serve_script(commit, "ok", tools=tools, roots=(folder / "work",)) as client:
        session_id = await client.session()
        assert (await client.send(session_id, "go"))["reply"] == "ok"
        path = f"/v1/sessions/{session_id}"
        changes = {one["path"]: one for one in await client.json("GET", f"{path}/changes")}
        assert {name: one["kind"] for name, one in changes.items()} == {
            "a.txt": "modified",
            ".git/refs/heads/main": "committed",
            ".git/index": "staged",
        }
        assert changes[".git/refs/heads/main"]["diff"].endswith(" Write two")
        done = await client.json("POST", f"{path}/rewind", {"seq": 1})
        assert [one["path"] for one in done["changes"]] == list(changes) and not done["skipped"]
    assert run_git(folder / "work", "log", "--format=%s") == "First"


async def test_a_rewind_to_a_position_that_does_not_exist_and_an_undo_of_nothing_are_refused() -> None:
    async with serve_script("done") as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        path = f"/v1/sessions/{session_id}/rewind"
        problem = await client.problem("POST", path, {"seq": 1000}, 422)
        assert problem["message"].startswith("seq: ") and "positions 1 to" in problem["message"]
        await client.problem("POST", path, {"seq": 1, "what": "everything"}, 422)
        await client.problem("POST", f"{path}/undo", status=409)
        await client.problem("POST", "/v1/sessions/none/rewind", {"seq": 1}, 404)


@pytest.mark.parametrize("tier", ["read-only", "plan"])
async def test_a_token_that_may_not_approve_cannot_rewind_the_files_of_a_read_only_session(
    folder: Path, tier: Tier
) -> None:
    viewer, sender = create_token("viewer", "view"), create_token("sender", "view", "send")
    tools = build_default_tools(kept=folder / "kept")
    options = {"tools": tools, "grant": Grant(tier=tier), "roots": (folder / "work",)}
    async with (
        serve_script("done", tokens=(viewer, sender), **options) as client,
        Client(client.base, viewer.value) as watching,
        Client(client.base, sender.value) as sending,
    ):
        session_id = await sending.session()
        path = f"/v1/sessions/{session_id}/rewind"
        await watching.problem("POST", path, {"seq": 1}, 403)
        await sending.problem("POST", path, {"seq": 1}, 403)
        await sending.json("POST", path, {"seq": 1, "what": "conversation"})
        await sending.problem("POST", f"{path}/undo", status=403)


class BrokenOffModel(FakeModel):
    """A model that says two words, and then waits or fails."""

    name, window = "broken off", None

    def __init__(self, error: ModelError | None = None) -> None:
        self.error, self.said = error, asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        if request.tool_choice == "none":
            yield Reply("in short")
            return
        yield TextDelta(text="half an")
        self.said.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["cancelled", "interrupted", "failed", "time_limit"])
async def test_the_partial_text_of_a_stopped_run_is_in_the_session_also_after_a_restart(
    tmp_path: Path, how: str
) -> None:
    model = BrokenOffModel(ModelError("no route", kind="auth") if how == "failed" else None)
    agent = Agent(model, limits=Limits(seconds=0.2 if how == "time_limit" else None))
    shown: dict[str, Any] = {}
    async with serve_agents(agent, store=tmp_path / "log.db") as client:
        session_id = await client.session()
        sending = asyncio.create_task(client.send(session_id, "go"))
        await model.said.wait()
        if how == "cancelled":
            await client.json("POST", f"/v1/sessions/{session_id}/cancel")
        elif how == "interrupted":
            model.said.clear()
            body = {"content": "stop", "mode": "interrupt"}
            await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", body)
            await model.said.wait()
            await client.json("POST", f"/v1/sessions/{session_id}/cancel")
        await sending
        shown = await client.json("GET", f"/v1/sessions/{session_id}")
    last = shown["last_run"]
    status = {"failed": "failed", "time_limit": "stopped"}.get(how, "cancelled")
    assert (last["status"], last["reason"]) == (status, how if how != "interrupted" else "cancelled")
    assert last["partial_answer"] == ("in short" if how == "time_limit" else "half an")
    partial = [one["content"] for one in shown["messages"] if one["partial"]]
    assert partial == {"failed": [], "interrupted": ["half an"] * 2}.get(how, ["half an"])
    async with serve_agents(agent, store=tmp_path / "log.db") as client:
        again = await client.json("GET", f"/v1/sessions/{session_id}")
        assert (again["last_run"], again["messages"]) == (last, shown["messages"])


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"calls": False}, "limits.calls"),
        ({"turns": True}, "limits.turns"),
        ({"turns": "5"}, "limits.turns"),
        ({"seconds": True}, "limits.seconds"),
        ({"turns": 300}, "limits.turns"),
        ({"turns": -1}, "limits.turns"),
    ],
)
async def test_a_limit_of_a_wrong_type_or_above_the_ceiling_is_refused_by_its_name(limits: Any, field: str) -> None:
    async with serve_script() as client:
        problem = await client.problem("POST", "/v1/sessions", {"limits": limits}, 422)
        assert problem["message"].startswith(f"{field}: ")
        if limits == {"turns": 300}:
            assert "at most 200" in problem["message"]


async def test_a_ceiling_that_the_operator_set_holds_on_every_route() -> None:
    async with serve_script("done", limits=Limits(turns=5, ceiling=5)) as client:
        assert await client.session(limits={"turns": 5})
        await client.problem("POST", "/v1/sessions", {"limits": {"turns": 6}}, 422)
        problem = await client.problem("POST", "/api/agent/run", {"objective": "go", "maxIterations": 6}, 422)
        assert problem["message"].startswith("maxIterations: must be at most 5")


@pytest.mark.parametrize("body", [{"undo": 1}, {"undo": "yes"}])
async def test_a_number_or_a_text_is_not_taken_for_true(body: Any) -> None:
    async with serve_script() as client:
        await client.problem("POST", f"/v1/sessions/{await client.session()}/compact", body, 422)
