"""A started MCP server runs in the sandbox: a real hostile server tries to read, write and connect."""

import asyncio
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp.types import Tool as ListedTool

from tests.kit.sandbox import needs_bubblewrap, until
from tests.kit.sessions import PATIENCE, build_agent, run_message, select_events
from tests.tools.mcp.conftest import HERE, McpClient, connect, reserve_port
from treadle import CallStarted
from treadle.errors import BadInput
from treadle.events import Grant
from treadle.sandbox.shown_paths import choose_visible
from treadle.sandbox.toolchains import find_program_files
from treadle.testing import call
from treadle.tools.mcp.connection import Connection
from treadle.tools.mcp.known_tools import KnownTools
from treadle.tools.mcp.mcp_tool import McpTool
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.servers import McpServers

pytestmark = needs_bubblewrap


def hostile(name: str = "hostile", **options: Any) -> McpServer:
    return McpServer(
        name=name, command=sys.executable, args=(str(HERE / "hostile.py"),), start_timeout=PATIENCE, **options
    )


async def attempt(mcp: McpClient, what: str, target: object, server: str = "hostile") -> str:
    return (await mcp.call(f"{server}__attempt", what=what, target=str(target))).text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key, and a project beside it."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("the key")
    (home / "project").mkdir()
    (home / "project" / "notes.txt").write_text("the notes")
    monkeypatch.setenv("HOME", str(home))
    return home


async def test_a_started_server_reads_no_key_writes_nowhere_else_and_connects_to_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    with closing(reserve_port()) as listener:
        listener.listen()
        async with connect(hostile(env={"MODE": "fast"})) as mcp:
            assert "No such file" in await attempt(mcp, "read", home / ".ssh" / "id")
            assert "No such file" in await attempt(mcp, "list", home / "project")
            for target in (home / "project" / "new", HERE / "new.py", Path("/usr/new"), Path("/etc/new")):
                assert (await attempt(mcp, "write", target)).startswith("failed") and not target.exists()
            assert await attempt(mcp, "write", "here.txt") == "done", "it has a folder of its own"
            port = listener.getsockname()[1]
            assert (await attempt(mcp, "connect", f"127.0.0.1:{port}")).startswith("failed")
            assert (await attempt(mcp, "connect", "1.1.1.1:443")).startswith("failed")
            assert await attempt(mcp, "environment", "OPENAI_API_KEY") == "done: "
            assert await attempt(mcp, "environment", "MODE") == "done: fast"
            seen = json.loads(await attempt(mcp, "see", ""))
            assert seen["processes"] < 10 and seen["uid"] != 0
            assert Path(seen["cwd"], "here.txt").read_text() == "hostile" and not Path(seen["cwd"]).is_relative_to(home)


async def test_a_server_sees_the_folders_that_its_configuration_names(home: Path) -> None:
    project = str(home / "project")
    reading, writing = hostile("reading", folders=(project,)), hostile("writing", cwd="~/project", writable=True)
    async with connect(reading, writing, hostile("starting", cwd=project)) as mcp:
        notes = home / "project" / "notes.txt"
        for server in ("reading", "writing", "starting"):
            assert await attempt(mcp, "read", notes, server) == "done: the notes"
            assert (await attempt(mcp, "read", home / ".ssh" / "id", server)).startswith("failed")
        assert "Read-only" in await attempt(mcp, "write", notes, "reading")
        assert "Read-only" in await attempt(mcp, "write", notes, "starting")
        assert await attempt(mcp, "write", "notes.txt", "writing") == "done" and notes.read_text() == "hostile"
        assert (await attempt(mcp, "write", ".git/config", "writing")).startswith("failed")


async def test_a_server_reaches_the_hosts_that_its_configuration_names_and_no_loopback() -> None:
    async with connect(hostile(hosts=("example.org",))) as mcp:
        assert "403" in await attempt(mcp, "fetch", "http://not-named.example/")
        assert (await attempt(mcp, "connect", "1.1.1.1:443")).startswith("failed")


@pytest.mark.parametrize(
    ("options", "traits"),
    [
        ({}, ()),
        ({"sandbox": False}, ("way_out",)),
        ({"hosts": ("docs.example",)}, ("way_out",)),
        ({"folders": ("~/notes",)}, ("private",)),
        ({"env": {"API_TOKEN": "t-123"}}, ("private",)),
        ({"cwd": "~/notes", "writable": True, "hosts": ("docs.example",)}, ("private", "lasting", "way_out")),
    ],
)
def test_the_labels_of_a_server_follow_from_what_its_sandbox_shows_it(
    options: dict[str, Any], traits: tuple[str, ...]
) -> None:
    tool = McpTool(Connection(hostile(**options), KnownTools()), ListedTool(name="attempt", input_schema={}))
    assert tool.list_traits("sandbox") == {"untrusted", *traits}


async def test_the_log_says_that_a_call_ran_in_the_sandbox() -> None:
    async with connect(hostile(), hostile("free", sandbox=False)) as mcp:
        see = {"what": "see", "target": ""}
        script = call("hostile__attempt", id="a", **see), call("free__attempt", id="b", **see), "done"
        agent, _ = build_agent(*script, tools=mcp.tools, grant=Grant(yes=True))
        async with agent.session() as session:
            await run_message(session)
            started = {fact.call_id: fact.sandbox for fact in select_events(await session.facts(), CallStarted)}
    assert started == {"a": "bubblewrap", "b": "none"}


async def test_a_server_that_cannot_start_in_the_sandbox_is_told_what_to_set(home: Path) -> None:
    script = home / "server.py"
    script.write_text("raise SystemExit('cannot find its files')")
    broken = McpServer(name="broken", command="sh", args=("-c", f"exec cat {home}/project/notes.txt"))
    ours = hostile("ours", folders=(str(home / ".local" / "share" / "treadle"),))
    async with connect(broken, ours) as mcp:
        health = {one.server: one for one in mcp.servers.get_health()}
    assert health["broken"].state == health["ours"].state == "down"
    assert "No such file" in health["broken"].error and "sandbox = false" in health["broken"].error
    assert "[mcp.broken] of your config.toml" in health["broken"].error
    assert "holds files of treadle" in health["ours"].error


async def test_closing_a_sandboxed_server_at_any_moment_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{name}", 0.1)
    stubborn = "trap '' TERM; sleep 0.05; (setsid sleep 4711 &); echo garbage; exec sleep 4711"
    server = McpServer(name="stubborn", command="sh", args=("-c", stubborn), start_timeout=0.5, protocol="legacy")
    before = set(os.listdir("/proc/self/fd"))
    for moment in (0.0, 0.05, 0.2, 0.8):
        async with McpServers([server]):
            await asyncio.sleep(moment)

    def find_left() -> list[str]:
        found = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return [line.decode() for line in found if b"sleep\x004711" in line]

    await until(lambda: not find_left())
    await until(lambda: len(set(os.listdir("/proc/self/fd"))) <= len(before))


async def test_a_sandboxed_server_that_is_killed_starts_again() -> None:
    async with connect(hostile()) as mcp:
        assert await attempt(mcp, "write", "here.txt") == "done"
        (child,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1:]
        os.kill(int(child), 9)
        await until(lambda: mcp.health.state != "up")
        assert (await attempt(mcp, "read", "here.txt")).startswith("failed"), "its folder went with it"


def test_what_a_program_needs_is_its_prefix_and_never_the_home(home: Path) -> None:
    tool, interpreter = home / "tools" / "v1" / "bin" / "serve", home / "runtimes" / "x" / "bin" / "run"
    link, local = home / "bin" / "serve", home / ".local" / "bin" / "serve"
    for path in (tool, interpreter, link, local):
        path.parent.mkdir(parents=True)
    interpreter.write_text("")
    tool.write_text(f"#!{interpreter} -x\n")
    link.symlink_to(tool)
    local.symlink_to(tool)
    for path in (tool, interpreter):
        path.chmod(0o755)
    wanted = {home / "tools" / "v1", home / "runtimes" / "x"}
    assert set(find_program_files(tool)) == wanted
    assert set(find_program_files(link)) == {link, *wanted}, "not the home, which has its bin"
    assert set(find_program_files(local)) == {local, *wanted}, "not ~/.local, which has keys"
    assert find_program_files(Path("/usr/bin/env")) == ()
    assert choose_visible(home / "a.py", home) == home / "a.py"
    assert choose_visible(home / "project" / "a.py", home / "project") == home / "project"


def test_writable_is_about_the_folder_of_a_server() -> None:
    with pytest.raises(BadInput, match="writable is about cwd"):
        McpServer(name="a", command="x", writable=True)
    with pytest.raises(BadInput, match="are for a server that is started"):
        McpServer(name="a", url="https://x/", hosts=("y",))
