"""What an MCP server's config must be, and that it does not show its secrets."""

from typing import Any

import pytest
from mcp.types import Tool as ListedTool

from treadle.errors import BadInput
from treadle.tools.mcp.connection import Connection
from treadle.tools.mcp.known_tools import KnownTools
from treadle.tools.mcp.mcp_tool import McpTool, build_tool_name
from treadle.tools.mcp.server_config import McpServer, read_mcp_servers
from treadle.tools.mcp.servers import McpServers


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("a", {}, "MCP server 'a': give either a command to start or a url"),
        ("a", {"command": "x", "url": "http://x/"}, "either a command to start or a url"),
        ("a__b", {"command": "x"}, "no __"),
        ("", {"command": "x"}, "a name has"),
        ("x" * 33, {"command": "x"}, "at most 32"),
        ("a", {"url": "ftp://x/"}, "https://"),
        ("a", {"url": "http://me:secret@x/"}, "put them into headers"),
        ("a", {"url": "http://x/", "env": {"A": "b"}}, "use headers"),
        ("a", {"command": "x", "headers": {"A": "b"}}, "from env"),
        ("a", {"command": "x", "timeout": 0}, "more than 0"),
        ("git", {"command": "x", "arg": []}, "MCP server 'git'.*unknown field `arg`.*It takes command, args"),
        ("git", {"command": ["x"]}, "MCP server 'git'.*Expected `str`"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_the_reason(name: str, options: dict[str, Any], error: str) -> None:
    with pytest.raises(BadInput, match=error):
        read_mcp_servers({name: options})


def test_a_config_is_read_from_plain_values() -> None:
    started = {"command": "git-mcp", "args": ["--fast"], "env": {"TOKEN": "t"}, "timeout": 60, "safety": "caution"}
    remote = {"url": "https://tracker.example/mcp", "headers": {"Authorization": "Bearer t"}}
    git, tracker = read_mcp_servers({"git": started, "tracker": remote})
    assert (git.name, git.command, git.args, git.timeout) == ("git", "git-mcp", ("--fast",), 60.0)
    assert git.safety == "caution" and tracker.url == "https://tracker.example/mcp"


def test_a_config_never_shows_its_secrets() -> None:
    variables = {"TOKEN": "sk-secret-1", "DEBUG": "verbose", "DB": "pg://me:secret@db"}
    local = McpServer(name="a", command="x", env=variables)
    headers = {"Authorization": "Bearer sk-secret-2", "Accept": "text/plain"}
    remote = McpServer(name="b", url="https://x/", headers=headers)
    assert "secret" not in repr(local) + repr(remote) + str([local, remote])
    assert local.find_secrets() == ("pg://me:secret@db", "sk-secret-1")
    assert remote.find_secrets() == ("Bearer sk-secret-2", "sk-secret-2")


def test_two_servers_of_one_name_are_refused() -> None:
    server = McpServer(name="a", command="x")
    with pytest.raises(BadInput, match="same name"):
        McpServers([server, server])


@pytest.mark.parametrize("tool", ["plain", "with space", "ü", "x" * 200, "a/b", "a.b"])
def test_a_tools_name_fits_every_provider_and_stays_the_same(tool: str) -> None:
    name = build_tool_name("server", tool)
    assert name == build_tool_name("server", tool)
    assert name.startswith("server__") and len(name) <= 64
    assert all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in name)
    assert name != build_tool_name("server", tool + "!")


def test_servers_that_write_no_parameters_as_a_list_get_their_arguments() -> None:
    listed = ListedTool(name="now", input_schema={"type": "object", "properties": []})
    tool = McpTool(Connection(McpServer(name="clock", command="x"), KnownTools()), listed)
    assert tool.parse('{"zone": "UTC"}').arguments == {"zone": "UTC"}
