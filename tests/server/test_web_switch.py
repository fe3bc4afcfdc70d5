"""The web tools can be switched off for a session and for a project, and never on beyond what the operator allows."""

from pathlib import Path
from typing import Any

from tests.kit.server import Client, serve_agents
from tests.kit.sessions import run_to_end
from tests.kit.strict import StrictModel
from tests.tools.test_delegate import build_parent, call_then_answer, get_helper
from treadle import Agent, Runtime, tool
from treadle.app.workspace_knowledge import AgentOptions, WorkspaceKnowledge
from treadle.testing import ScriptedModel, call


@tool(safety="safe")
def fetch_url(url: str) -> str:
    """Read a page."""
    return f"the page {url}"


@tool(safety="safe")
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


FETCH = call("fetch_url", url="https://example.org/")


def build_web_agent(*script: Any) -> Agent:
    return Agent(StrictModel(ScriptedModel(*script)), tools=[fetch_url, look])


def list_offered(agent: Agent) -> list[list[str]]:
    return [[spec.name for spec in request.tools] for request in agent.model.requests]  # type: ignore[union-attr]


async def get_web(client: Client, session_id: str) -> bool:
    return (await client.json("GET", f"/v1/sessions/{session_id}"))["web"]


async def test_web_is_a_switch_of_the_session_that_survives_a_restart(tmp_path: Path) -> None:
    agent = build_web_agent(FETCH, "one", FETCH, "two")
    async with serve_agents(agent, store=tmp_path / "store.db") as client:
        session_id = await client.session(web=False)
        assert await get_web(client, session_id) is False
        await client.send(session_id, "go")
        [denied] = [fact for fact in await client.facts(session_id) if fact["type"] == "call_finished"]
        assert (denied["status"], "the web is switched off" in denied["output"]) == ("denied", True)
    assert list_offered(agent) == [["look"], ["look"]], "a web tool is not offered"
    async with serve_agents(agent, store=tmp_path / "store.db") as client:
        assert await get_web(client, session_id) is False
        await client.json("PATCH", f"/v1/sessions/{session_id}", {"name": "Still off"})
        assert await get_web(client, session_id) is False
        await client.json("PATCH", f"/v1/sessions/{session_id}", {"web": True})
        assert await get_web(client, session_id) is True
        await client.send(session_id, "go")
        fetched = [fact for fact in await client.facts(session_id) if fact["type"] == "call_finished"][-1]
        assert (fetched["status"], fetched["output"]) == ("ok", "the page https://example.org/")
        await client.json("PATCH", f"/v1/sessions/{session_id}", {"web": False})
        assert await get_web(client, session_id) is False


async def test_a_session_cannot_switch_on_the_web_that_the_operator_denies() -> None:
    async with serve_agents(Agent(ScriptedModel("hi"), tools=[look])) as client:
        session_id = await client.session(web=True)
        assert await get_web(client, session_id) is False
        assert "web" in (await client.problem("POST", "/v1/sessions", {"web": "maybe"}, 422))["message"]


async def test_web_false_in_the_projects_file_switches_it_off_for_every_session(tmp_path: Path) -> None:
    (tmp_path / ".treadle").mkdir()
    file = tmp_path / ".treadle" / "config.toml"
    agent = WorkspaceKnowledge(tmp_path).build_agent("default", AgentOptions(ScriptedModel("hi"), [fetch_url, look]))
    async with agent.session(workspace=tmp_path) as session:
        for text, wanted in (("", True), ("web = true", True), ("web = false", False), ("web = [", False)):
            file.write_text(text)
            assert await session.has_web() is wanted
        await session.configure(web=True)
        assert await session.has_web() is False
        file.unlink()
        assert await session.has_web() is True


async def test_a_helper_of_a_session_without_the_web_has_no_web() -> None:
    parent = build_parent(
        call("delegate", id="d", task="task read"), "Done.", helper=call_then_answer(FETCH, "tried"), tools=[fetch_url]
    )
    async with Runtime(":memory:", [parent], recover=False) as runtime, runtime.session() as session:
        await session.configure(web=False)
        await run_to_end(session)
        helper = get_helper(session)
        assert not await helper.has_web()
        [result] = [call.finished for call in (await helper.state()).calls.values()]
        assert result is not None and (result.status, "switched off" in result.output) == ("denied", True)
