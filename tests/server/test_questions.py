"""Open questions over HTTP: what a preview shows and hides, and answers that are kept for good."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import OWNER, Client, create_token, serve_agents, serve_script
from treadle import Agent, Grant
from treadle.events import Parent, SessionCreated
from treadle.log.in_memory import InMemoryLog
from treadle.permissions.saved_rules import RuleBook, load_all_rules, save_rule
from treadle.server.questions import find_rule_folder
from treadle.testing import ScriptedModel, call
from treadle.tools.builtin import build_default_tools

CAUTIOUS = Grant(tier="read-only")


@asynccontextmanager
async def serve_call(
    folder: Path, tool: str, network: bool = False, rules: RuleBook | None = None, **arguments: Any
) -> AsyncGenerator[Client]:
    """A server whose agent makes one call of a ready-made tool in this folder."""
    model = ScriptedModel(call(tool, id="c", **arguments), "done")
    tools = build_default_tools(network=("example.org",) if network else ())
    agent = Agent(model, tools=tools, name="agent", grant=Grant(cautious=True))
    async with serve_agents(agent, roots=(folder,), rules=rules) as client:
        yield client


async def ask(client: Client, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Send a message to a new session, and wait for its question. Returns both."""
    session_id = await client.session(**fields)
    await client.send(session_id, "go", params={"wait": "0"})
    asked = (await client.wait_for(session_id, "approval_requested"))[-1]
    return session_id, asked


async def preview(client: Client) -> tuple[str, dict[str, Any]]:
    """Ask, and return the session and the preview of its question."""
    session_id, asked = await ask(client)
    return session_id, await client.json("GET", f"/v1/sessions/{session_id}/approvals/{asked['call_id']}")


async def test_a_preview_shows_the_parts_of_a_command(tmp_path: Path) -> None:
    command = "echo hi && git push --force && \u202emake"
    async with serve_call(tmp_path, "shell", network=True, command=command) as client:
        session_id, shown = await preview(client)
        question = (await client.json("GET", "/v1/approvals"))[0]
        assert shown["question"] == question and question["arguments"]["command"] == command
        assert [part["text"] for part in shown["parts"]] == ["echo hi", "git push --force", "\u202emake"]
        first, second, third = shown["parts"]
        assert (first["verdict"], first["safety"]) == ("allowed", "safe")
        assert (second["verdict"], second["safety"]) == ("asks", "destructive") and second["why"]
        assert third["verdict"] == "asks"
        assert (shown["folder"], shown["network"], shown["diff"]) == (str(tmp_path), "named hosts example.org", "")
        assert shown["hidden"]
        await client.problem("GET", f"/v1/sessions/{session_id}/approvals/nothing", status=404)
        await client.json("POST", f"/v1/sessions/{session_id}/approvals/c", {"decision": "deny"})
        await client.problem("GET", f"/v1/sessions/{session_id}/approvals/c", status=404)


async def test_a_preview_shows_the_diff_of_a_change(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    async with serve_call(tmp_path, "edit_file", path="a.txt", old="two", new="2") as client:
        _, shown = await preview(client)
        assert shown["diff"].splitlines()[-3:] == [" one", "-two", "+2"] and shown["parts"] == []
        assert (shown["network"], shown["hidden"]) == ("", False)


@pytest.mark.parametrize("path", ["../other/secret.txt", "{other}/secret.txt", ".env", "link.txt"])
async def test_a_preview_never_reads_a_secret_or_a_file_outside_the_workspace(tmp_path: Path, path: str) -> None:
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "secret.txt").write_text("hunter22\n")
    (work / ".env").write_text("KEY=hunter22\n")
    (work / "link.txt").symlink_to(other / "secret.txt")
    arguments: dict[str, Any] = {"path": path.format(other=other), "content": "new\n"}
    async with serve_call(work, "write_file", **arguments) as client:
        session_id = await client.session()
        await client.send(session_id, "go", params={"wait": "0"})
        seen = await client.wait_for(session_id, "approval_requested")
        async with client.request("GET", f"/v1/sessions/{session_id}/approvals/c") as shown:
            text = await shown.text()
        assert shown.status == 200 and "hunter22" not in text + str(seen) and "+new" in text


@asynccontextmanager
async def serve_notes(data: Path, *script: Any, **options: Any) -> AsyncGenerator[Client]:
    """A server that asks before each note, and keeps rules in a folder."""
    book = RuleBook(data, ())
    async with serve_script(*script, grant=CAUTIOUS, rules=book, **options) as client:
        client.app.state.service.runtime.apply_rules = book.apply
        yield client


async def test_an_answer_that_is_kept_is_saved_for_the_workspace_and_holds_in_later_sessions(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    notes = [turn for name in "abc" for turn in (call("note", id=name, text="x"), "done")]
    async with serve_notes(tmp_path / "data", *notes, call("note", id="d", text="x"), roots=(here, there)) as client:
        session_id, asked = await ask(client)
        path = f"/v1/sessions/{session_id}/approvals/a"
        await client.problem("POST", path, {"decision": "allow", "keep": True, "digest": "stale"}, 409)
        assert load_all_rules(tmp_path / "data") == ()
        await client.json("POST", path, {"decision": "allow", "keep": True, "digest": asked["digest"]})
        await client.wait_for(session_id, "run_finished")
        (rule,) = await client.json("GET", "/v1/rules")
        assert (rule["pattern"], rule["decision"], rule["by"]) == (asked["rule"], "allow", "owner")
        assert rule["workspace"] == str(here) and rule["saved_at"] > 0
        assert (await client.send(await client.session(), "again"))["reply"] == "done"
        elsewhere, _ = await ask(client, workspace=str(there))
        await client.json("POST", f"/v1/sessions/{elsewhere}/approvals/c", {"decision": "allow"})
        await client.wait_for(elsewhere, "run_finished")
        await client.json("DELETE", f"/v1/rules/{rule['id']}", status=204)
        assert await client.json("GET", "/v1/rules") == []
        await client.problem("DELETE", f"/v1/rules/{rule['id']}", status=404)
        await ask(client)


async def test_only_a_yes_that_has_a_rule_can_be_kept(tmp_path: Path) -> None:
    reader, narrow = create_token("reader", "view", "send"), create_token("narrow", grant=CAUTIOUS)
    options: dict[str, Any] = {"tokens": (OWNER, reader, narrow)}
    async with serve_notes(tmp_path, call("note", id="a", text="x"), **options) as client:
        session_id, _ = await ask(client)
        path = f"/v1/sessions/{session_id}/approvals/a"
        keep = {"decision": "allow", "keep": True}
        assert (await client.problem("POST", path, {"decision": "deny", "keep": True}, 422))["param"] == "keep"
        rule = save_rule(tmp_path, "drop", "deny")
        for token in (reader, narrow):
            async with Client(client.base, token.value) as other:
                await other.problem("POST", path, keep, 403)
                assert len(await other.json("GET", "/v1/rules")) == 1
                async with other.request("DELETE", f"/v1/rules/{rule.id}") as answer:
                    assert answer.status == 403
        assert [one["id"] for one in await client.json("GET", "/v1/approvals")] == [f"{session_id}.a"]
    async with serve_call(tmp_path, "shell", rules=RuleBook(tmp_path / "other", ()), command="git push -f") as client:
        session_id, asked = await ask(client)
        problem = await client.problem("POST", f"/v1/sessions/{session_id}/approvals/c", keep, 422)
        assert asked["once"] and problem["param"] == "keep" and await client.json("GET", "/v1/rules") == []


async def test_a_server_without_rules_keeps_none() -> None:
    async with serve_script(call("note", id="a", text="x"), grant=CAUTIOUS) as client:
        session_id, _ = await ask(client)
        assert await client.json("GET", "/v1/rules") == []
        body = {"decision": "allow", "keep": True}
        await client.problem("POST", f"/v1/sessions/{session_id}/approvals/a", body, 409)
        await client.problem("DELETE", "/v1/rules/x", status=409)


async def test_a_rule_that_is_kept_for_a_helper_is_for_the_workspace_of_who_started_it() -> None:
    log = InMemoryLog()
    helper = Parent("1" * 32, 4, call_id="call_1")
    for number, folder, parent in (
        ("1", "/project", None),
        ("2", "/worktree", helper),
        ("3", "/lost", Parent("9" * 32, 1, "x")),
    ):
        created = SessionCreated(session_id=number * 32, workspace=folder, parent=parent)
        await log.create(created.session_id, [created])
    assert await find_rule_folder(log, "1" * 32) == await find_rule_folder(log, "2" * 32) == Path("/project")
    assert await find_rule_folder(log, "3" * 32) == Path("/lost")


async def test_a_session_of_an_agent_of_another_server_is_answered_read_and_put_in_order(tmp_path: Path) -> None:
    script = ScriptedModel(call("write_file", id="c", path="a.txt", content="new\n"), "done")
    there = Agent(script, tools=build_default_tools(), name="there", grant=Grant(cautious=True))
    here = Agent(ScriptedModel("hello"), name="here")
    store = tmp_path / "store.db"
    async with serve_agents(there, store=store, roots=(tmp_path,)) as first, serve_agents(here, store=store) as client:
        session_id, _ = await ask(first)
        path = f"/v1/sessions/{session_id}"
        (asked,) = await client.json("GET", "/v1/approvals")
        assert asked["session_id"] == session_id
        await client.json("POST", f"{path}/approvals/c", {"decision": "allow", "digest": asked["digest"]})
        assert (await client.wait_for(session_id, "run_finished"))[-1]["answer"] == "done"
        assert (await client.json("GET", path))["agent"] == "there"
        assert (await client.json("GET", f"{path}/state"))["last"]["answer"] == "done"
        assert (await client.json("PATCH", path, {"archived": True, "name": "old"}))["archived"]
        for change in ({"access": "plan", "name": "x"}, {"limits": {"turns": 3}}):
            assert "no agent named 'there'" in (await client.problem("PATCH", path, change, 404))["message"]
        problem = await client.problem("POST", f"{path}/messages", {"content": "go on"}, 404)
        assert "no agent named 'there'" in problem["message"]
        assert (await client.json("PATCH", path, {"agent": "here"}))["agent"] == "here"
        assert (await client.send(session_id, "go on"))["reply"] == "hello"
        await client.json("DELETE", path, status=204)
