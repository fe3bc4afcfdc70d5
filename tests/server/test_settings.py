"""What the page shows as settings: what the server allows, MCP servers, and models that cannot be reached."""

import socket
from pathlib import Path

from tests.kit.server import serve_agents, serve_script
from treadle import Agent, Grant
from treadle.app.compose import McpStatus
from treadle.messages import Reply, Usage
from treadle.models.catalog import resolve_model
from treadle.testing import ScriptedModel, call
from treadle.tools.builtin import build_default_tools
from treadle.tools.delegate import build_delegate_tool


async def test_the_configuration_says_what_the_server_allows(tmp_path: Path) -> None:
    tools = build_default_tools(web=True, network=("example.org",))
    agent = Agent(ScriptedModel("x"), tools=tools, name="default", grant=Grant(tier="read-only"))
    async with serve_agents(agent, roots=(tmp_path,)) as client:
        config = await client.json("GET", "/v1/config")
        assert config["workspaces"] == [str(tmp_path.resolve())]
        assert (config["access"], config["web"], config["hosts"]) == ("read-only", True, ["example.org"])
    agent.grant = Grant(forbid=("fetch_url", "web_*", "search_web"))
    async with serve_agents(agent) as client:
        assert not (await client.json("GET", "/v1/config"))["web"]


async def test_the_health_of_mcp_servers_is_shown() -> None:
    states = [McpStatus("issues", "up", "", ("issues__list",)), McpStatus("odd", "down", "exit code 1", ())]
    async with serve_script(list_mcp=lambda: states) as client:
        assert await client.json("GET", "/v1/mcp") == [
            {"name": "issues", "status": "up", "error": "", "tools": ["issues__list"]},
            {"name": "odd", "status": "down", "error": "exit code 1", "tools": []},
        ]
    async with serve_script() as client:
        assert await client.json("GET", "/v1/mcp") == []


async def test_a_model_that_cannot_be_reached_says_why() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nothing listens here
        model = resolve_model("some-model", base_url=f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        async with serve_agents(Agent(model, name="default")) as client:
            before = (await client.json("GET", "/v1/models"))["data"][0]
            assert (before["reachable"], before["why"]) == (True, "")
            checked = (await client.json("GET", "/v1/models?check=true"))["data"][0]
            assert (checked["reachable"], checked["why"]) == (False, "cannot be reached")
            assert (await client.json("GET", "/v1/models"))["data"][0] == checked


async def test_the_usage_of_all_sessions_counts_helpers_and_forks_once() -> None:
    replies = [
        Reply(calls=(call("delegate", task="Help."),), finish="calls", usage=Usage(cost=0.25)),
        Reply("helped", usage=Usage(cost=0.5)),
        Reply("done", usage=Usage(cost=1.0)),
        Reply("more", usage=Usage(cost=2.0)),
    ]
    agent = Agent(ScriptedModel(*replies), tools=[build_delegate_tool()], name="default")
    async with serve_agents(agent) as client:
        session_id = await client.session()
        await client.send(session_id, "go")
        assert (await client.json("GET", "/v1/usage"))["cost"] == 1.75
        fork = (await client.json("POST", f"/v1/sessions/{session_id}/fork", {}, 201))["id"]
        await client.send(fork, "go on")
        usage = await client.json("GET", "/v1/usage")
        assert (usage["sessions"], usage["turns"], usage["cost"]) == (2, 3, 3.75)
        assert usage["models"] == [{"model": usage["models"][0]["model"], "sessions": 2, "turns": 3, "cost": 3.75}]
