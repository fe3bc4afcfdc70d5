"""What an MCP server's config must be, and that it does not show its secrets."""

from typing import Any

import msgspec
import pytest

from treadle.errors import BadInput
from treadle.tools.mcp.mcp_tool import build_tool_name
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.servers import McpServers


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a"}, "either a command to start or a url"),
        ({"name": "a", "command": "x", "url": "http://x/"}, "either a command to start or a url"),
        ({"name": "a__b", "command": "x"}, "no __"),
        ({"name": "", "command": "x"}, "a name has"),
        ({"name": "x" * 33, "command": "x"}, "at most 32"),
        ({"name": "a", "url": "ftp://x/"}, "https://"),
        ({"name": "a", "url": "http://me:secret@x/"}, "put them into headers"),
        ({"name": "a", "url": "http://x/", "env": {"A": "b"}}, "use headers"),
        ({"name": "a", "command": "x", "headers": {"A": "b"}}, "from env"),
        ({"name": "a", "command": "x", "timeout": 0}, "more than 0"),
    ],
)
def test_a_config_that_cannot_work_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        McpServer(**options)


def test_a_config_is_read_from_plain_values() -> None:
    given = {"name": "git", "command": "git-mcp", "args": ["--fast"], "env": {"TOKEN": "t"}, "safety": "caution"}
    server = msgspec.convert(given, McpServer)
    assert (server.args, server.safety) == (("--fast",), "caution")
    with pytest.raises(msgspec.ValidationError, match="unknown field `enviroment`"):
        msgspec.convert({"name": "git", "command": "x", "enviroment": {}}, McpServer)


def test_a_config_never_shows_its_secrets() -> None:
    local = McpServer(
        name="a", command="x", env={"TOKEN": "sk-secret-1", "DEBUG": "verbose", "DB": "pg://me:secret@db"}
    )
    remote = McpServer(
        name="b", url="https://x/", headers={"Authorization": "Bearer sk-secret-2", "Accept": "text/plain"}
    )
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
