"""MCP servers that are started by us: listing, calling, dying, coming back, and what they are let see."""

import asyncio
import gc
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.tools.mcp.conftest import Caller, child, odd, until
from treadle.messages import FilePart, ImagePart
from treadle.tools.base import ToolError, ToolInputError
from treadle.tools.mcp import connection
from treadle.tools.mcp.connection import Connection, McpHealth
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.servers import McpServers

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are started again without much waiting."""
    monkeypatch.setattr(connection, "BACKOFF", 0.01)


async def lines_of(path: Path, count: int) -> list[str]:
    """What a server wrote to a file, as soon as it is so many lines."""
    await until(lambda: path.exists() and len(path.read_text().splitlines()) >= count)
    return path.read_text().splitlines()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_odd(pid: int) -> bool:
    try:
        return "odd.py" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@ERAS
async def test_tools_are_listed_and_called_in_both_eras(era: str, call: Caller, tmp_path: Path) -> None:
    async with McpServers([child(protocol=era)]) as servers:
        tools = await servers.list_tools()
        assert [tool.name for tool in tools][:3] == ["served__add", "served__append", "served__die"]
        (health,) = servers.get_health()
        assert (health.state, health.tools, health.error) == ("up", 8, "")
        assert (health.protocol >= "2026") == (era == "auto")
        added = await call(tools, "served__add", a=1, b=2)
        assert (added.text, added.ok) == ("3", True)
        failed = await call(tools, "served__fail", why="no such table")
        assert (failed.text, failed.ok) == ("Error executing tool fail: no such table", False)
        picture = await call(tools, "served__picture")
        assert picture.text == "here it is"
        (image,) = picture.parts
        assert isinstance(image, ImagePart) and image.media_type == "image/png"
        with pytest.raises(ToolInputError, match="b: is missing"):
            await call(tools, "served__add", a=1)
        with pytest.raises(ToolInputError, match="a: must be integer"):
            await call(tools, "served__add", a="one", b=2)


@ERAS
async def test_cancelling_a_call_cancels_it_at_the_server_and_progress_is_heard(
    era: str, call: Caller, tmp_path: Path
) -> None:
    async with McpServers([child(protocol=era)]) as servers:
        tools = await servers.list_tools()
        waiting = asyncio.create_task(call(tools, "served__wait", path=str(tmp_path / "trace")))
        await lines_of(tmp_path / "trace", 1)
        await until(lambda: bool(call.heard))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await lines_of(tmp_path / "trace", 2) == ["waiting", "cancelled"]
        assert call.heard == [("a quarter", 1.0, 4.0)]
        assert (await call(tools, "served__add", a=2, b=2)).text == "4"


@ERAS
async def test_a_server_that_dies_in_a_call_is_started_again_and_the_call_is_not_repeated(
    era: str, call: Caller, tmp_path: Path
) -> None:
    async with McpServers([child(protocol=era)]) as servers:
        tools = await servers.list_tools()
        first = json.loads((await call(tools, "served__surroundings")).text)["pid"]
        with pytest.raises(ToolError, match="outcome unknown, it may have run"):
            await call(tools, "served__die", path=str(tmp_path / "trace"))
        assert (await call(tools, "served__add", a=1, b=2)).text == "3"
        second = json.loads((await call(tools, "served__surroundings")).text)["pid"]
        assert second != first and not alive(first)
        assert (tmp_path / "trace").read_text() == "died\n"
    await until(lambda: not alive(second))


async def test_a_server_that_was_killed_between_calls_is_back_for_the_next_one(call: Caller) -> None:
    async with McpServers([child()]) as servers:
        tools = await servers.list_tools()
        pid = json.loads((await call(tools, "served__surroundings")).text)["pid"]
        os.kill(pid, 9)
        await until(lambda: servers.get_health()[0].state != "up")
        assert (await call(tools, "served__add", a=1, b=2)).text == "3"


async def test_a_server_sees_its_own_secrets_and_none_of_ours(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('the workspace ran')")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    given = {"MODE": "fast", "TOKEN": "hunter2-hunter2"}
    one, two = child("one", env=given), child("two", env={"MODE": "slow"}, cwd=str(elsewhere))
    async with McpServers([one, two]) as servers:
        tools = await servers.list_tools()
        told = json.loads((await call(tools, "one__surroundings")).text)
        other = json.loads((await call(tools, "two__surroundings")).text)
    assert (told["env"]["MODE"], other["env"]["MODE"]) == ("fast", "slow")
    assert told["env"]["TOKEN"] == "[secret]" and "TOKEN" not in other["env"], "it has it, and cannot show it"
    assert told["env"]["PATH"] == os.environ["PATH"]
    usual = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TERM", "USER", "TZ", "TMPDIR"}
    assert set(told["env"]) <= usual | set(given)
    assert told["files"] == [] and not told["cwd"].startswith(str(tmp_path))
    assert not Path(told["cwd"]).exists(), "its folder goes with it"
    assert other["cwd"] == str(elsewhere) and elsewhere.exists(), "its config says where it begins"


async def test_a_server_that_cannot_start_is_down_with_its_own_words_and_the_others_work(call: Caller) -> None:
    absent = McpServer(name="absent", command="there-is-no-such-command")
    async with McpServers([odd("exit"), absent, odd("plain", "fine")]) as servers:
        tools = await servers.list_tools()
        health = {one.server: one for one in servers.get_health()}
        assert {name: one.state for name, one in health.items()} == {"odd": "down", "absent": "down", "fine": "up"}
        assert "cannot find the database" in health["odd"].error
        assert "there-is-no-such-command" in health["absent"].error
        assert (await call(tools, "fine__ok", n=1)).text == '{"sum":3}'


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_server_that_always_dies_is_not_started_for_ever(call: Caller) -> None:
    async with McpServers([odd("fleeting")]) as servers:
        tools = await servers.list_tools()
        await until(lambda: servers.get_health()[0].state == "down")
        assert "gone again" in servers.get_health()[0].error
        with pytest.raises(ToolError, match=r"outcome unknown|is down.*gone again.*Not run"):
            await call(tools, "odd__ok", n=1)


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_server_that_was_down_is_tried_again_when_it_is_called(call: Caller, tmp_path: Path) -> None:
    command = tmp_path / "server"

    def install(how: str) -> None:
        words = [sys.executable, str(Path(__file__).parent / "odd.py"), how]
        command.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
        command.chmod(0o755)

    install("fleeting")
    async with McpServers([McpServer(name="odd", command=str(command))]) as servers:
        tools = await servers.list_tools()
        await until(lambda: servers.get_health()[0].state == "down")
        install("plain")
        assert (await call(tools, "odd__ok", n=1)).text == '{"sum":3}'
        assert servers.get_health() == [McpHealth("odd", "up", 5, "", "2025-11-25")]


async def test_what_a_server_says_of_itself_is_believed_only_as_a_warning(call: Caller) -> None:
    async with McpServers([odd("plain"), child(), odd("plain", "strict", safety="destructive")]) as servers:
        classes = {tool.name: tool.assess_safety({}) for tool in await servers.list_tools()}
    assert classes["odd__ok"] == "caution", "it says that it reads only"
    assert classes["served__add"] == "caution"
    assert classes["served__append"] == "caution"
    assert classes["served__wipe"] == "destructive"
    assert classes["served__fail"] == "destructive", "it says nothing"
    assert classes["strict__ok"] == "destructive", "its config says so"


async def test_names_and_texts_of_a_hostile_server_are_made_harmless() -> None:
    async with McpServers([odd("plain")]) as servers:
        tools = await servers.list_tools()
    names = [tool.name for tool in tools]
    assert len(set(names)) == len(names) == 5, "the same tool twice is one"
    assert all(len(name) <= 64 and name.isascii() and "/" not in name for name in names)
    said = tools[0].spec.description
    assert len(said) <= 2000 and said.isprintable()
    assert tools[0].spec.parameters["properties"]["n"]["description"].isprintable()


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_tool_of_which_its_server_says_something_else_later_is_asked_for_each_time(call: Caller) -> None:
    async with McpServers([odd("turncoat")]) as servers:
        tools = await servers.list_tools()
        parsed = tools[0].parse('{"n": 1}')
        first, told = tools[0].assess(parsed, Path()), tools[0].spec.description
        assert (first.safety, first.is_once_only) == ("caution", False)
        await call(tools, "odd__ok", n=1)  # after which it starts again
        await until(lambda: tools[0].assess(parsed, Path()).is_once_only)
        assert tools[0].assess(parsed, Path()).safety == "destructive" and tools[0].spec.description == told


async def test_a_list_that_never_ends_is_cut_off() -> None:
    async with McpServers([odd("endless")]) as servers:
        await servers.list_tools()
        assert servers.get_health()[0].tools == 100


async def test_parts_that_would_spoil_the_next_request_are_left_out(call: Caller) -> None:
    async with McpServers([odd("broken")]) as servers:
        result = await call(await servers.list_tools(), "odd__ok", n=1)
    assert (
        result.text == "[image, image/png: left out, it cannot be read]\n[memo://a/b.txt]\nthe memo\n[more: memo://a/c]"
    )
    assert result.parts == (
        FilePart("image", "AAAA", "image/svg+xml"),
        FilePart("audio", "AAAA", "audio/wav"),
        FilePart("b.bin", "AAAA", "x/y"),
    )


async def test_an_error_of_the_server_is_told_as_it_is_and_without_its_secrets(call: Caller) -> None:
    async with McpServers([odd("error"), odd("secret", "safe", env={"PASSWORD": "hunter2-hunter2"})]) as servers:
        tools = await servers.list_tools()
        with pytest.raises(ToolError, match=r"^odd: quota used up$"):
            await call(tools, "odd__ok", n=1)
        with pytest.raises(ToolError, match=r"^safe: cannot log in with \[secret\]$"):
            await call(tools, "safe__ok", n=1)


async def test_closing_ends_a_server_that_is_still_starting(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    async with McpServers([McpServer(name="mute", command="sh", args=("-c", script))]) as servers:
        (pid,) = await lines_of(tmp_path / "pid", 1)
        assert servers.get_health()[0].state == "starting" and alive(int(pid))
    assert servers.get_health()[0].state == "closed" and not alive(int(pid))


async def test_a_server_that_never_answers_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held, hold = list[Connection](), Connection._connect

    async def counted(self: Connection) -> None:
        held.append(self)
        await hold(self)

    monkeypatch.setattr(Connection, "_connect", counted)
    server = McpServer(name="mute", command="sleep", args=("600",), start_timeout=0.2, protocol="legacy")
    async with McpServers([server]) as servers:
        assert await servers.list_tools() == []
        assert servers.get_health()[0].state == "down" and "timed out" in servers.get_health()[0].error
    assert len(held) == 1


@pytest.mark.usefixtures("in_a_hurry")
async def test_closing_at_any_moment_leaves_no_process(tmp_path: Path) -> None:
    script = f"echo $$ >> {tmp_path}/pids; trap '' TERM; sleep 0.05; echo garbage; exec sleep 600"
    server = McpServer(name="stubborn", command="sh", args=("-c", script), start_timeout=0.2, protocol="legacy")
    for moment in (0.1, 0.6):
        async with McpServers([server]):
            await asyncio.sleep(moment)
            if moment > 0.5:
                await lines_of(tmp_path / "pids", 1)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [pid for pid in pids if alive(pid)] == []


async def test_opening_and_closing_leaves_nothing_behind(call: Caller) -> None:
    async def once() -> None:
        async with McpServers([odd("plain"), odd("exit", "sick")]) as servers:
            await call(await servers.list_tools(), "odd__ok", n=1)

    await once()
    gc.collect()  # what earlier tests left would be counted
    before, tasks = set(os.listdir("/proc/self/fd")), asyncio.all_tasks()
    for _ in range(5):
        await once()
    await until(lambda: len(set(os.listdir("/proc/self/fd"))) <= len(before))
    assert asyncio.all_tasks() == tasks
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert [child for child in children if is_odd(int(child))] == []


async def test_many_calls_at_once_share_one_connection(call: Caller) -> None:
    async with McpServers([child()]) as servers:
        tools = await servers.list_tools()
        sums = await asyncio.gather(*(call(tools, "served__add", a=number, b=1) for number in range(50)))
        assert [int(one.text) for one in sums] == list(range(1, 51))
        pid = json.loads((await call(tools, "served__surroundings")).text)["pid"]
        os.kill(pid, 9)
        outcomes = await asyncio.gather(
            *(call(tools, "served__add", a=number, b=1) for number in range(20)), return_exceptions=True
        )
    for number, outcome in enumerate(outcomes):
        if isinstance(outcome, ToolError):
            assert "outcome unknown" in str(outcome)
        else:
            assert not isinstance(outcome, BaseException) and outcome.text == str(number + 1)
