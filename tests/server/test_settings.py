"""What the page shows as settings: what the server allows, MCP servers, and models that cannot be reached."""

import socket
from pathlib import Path

from tests.kit.server import serve_agents, serve_script
from treadle import Agent, Grant
from treadle.app.compose import McpStatus
from treadle.models.catalog import resolve_model
from treadle.testing import ScriptedModel
from treadle.tools.builtin import build_default_tools


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
