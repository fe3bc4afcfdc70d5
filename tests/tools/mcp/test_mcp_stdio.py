"""MCP servers: listing, calling, dying, coming back, and what they are allowed to see. Most are child processes."""

import asyncio
import gc
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sandbox import until
from tests.tools.mcp.conftest import child, connect, odd
from treadle.messages import FilePart, ImagePart
from treadle.tools.base import ToolError, ToolInputError
from treadle.tools.mcp import connection
from treadle.tools.mcp.connection import Connection, McpHealth
from treadle.tools.mcp.server_config import McpServer
from treadle.tools.mcp.servers import McpServers


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers start again, and end those that do not end by themselves, without much waiting."""
    monkeypatch.setattr(connection, "BACKOFF", 0.01)
    for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{name}", 0.1)


async def read_lines(path: Path, count: int) -> list[str]:
    """Wait until a server has written so many lines to a file, and return them."""
    await until(lambda: path.exists() and len(path.read_text().splitlines()) >= count)
    return path.read_text().splitlines()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_tools_are_listed_and_called_over_each_transport_and_in_both_eras(any_server: McpServer) -> None:
    async with connect(any_server) as mcp:
        assert [tool.name for tool in mcp.tools][:3] == ["served__add", "served__append", "served__die"]
        assert (mcp.health.state, mcp.health.tools, mcp.health.error) == ("up", 8, "")
        assert (mcp.health.protocol >= "2026") == (any_server.protocol == "auto")
        assert await mcp.add(1, 2) == "3"
        failed = await mcp.call("served__fail", why="no such table")
        assert (failed.text, failed.ok) == ("Error executing tool fail: no such table", False)
        picture = await mcp.call("served__picture")
        (image,) = picture.parts
        assert picture.text == "here it is" and isinstance(image, ImagePart) and image.media_type == "image/png"
        with pytest.raises(ToolInputError, match="b: is missing"):
            await mcp.call("served__add", a=1)
        with pytest.raises(ToolInputError, match="a: must be integer"):
            await mcp.call("served__add", a="one", b=2)


async def test_a_call_in_which_the_server_dies_is_not_repeated(any_server: McpServer, tmp_path: Path) -> None:
    async with connect(any_server) as mcp:
        with pytest.raises(ToolError, match="outcome unknown, it may have run"):
            await mcp.call("served__die", path=str(tmp_path / "trace"))
        assert (tmp_path / "trace").read_text() == "died\n"


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_started_server_that_dies_or_is_killed_is_back_for_the_next_call(era: Any, tmp_path: Path) -> None:
    async with connect(child(protocol=era)) as mcp:
        pids = [(await mcp.look_around())["pid"]]
        with pytest.raises(ToolError, match="outcome unknown"):
            await mcp.call("served__die", path=str(tmp_path / "trace"))
        assert await mcp.add(1, 2) == "3"
        pids.append((await mcp.look_around())["pid"])
        os.kill(pids[1], 9)
        await until(lambda: mcp.health.state != "up")
        assert await mcp.add(1, 2) == "3"
        pids.append((await mcp.look_around())["pid"])
        assert len(set(pids)) == 3 and not is_alive(pids[0]) and not is_alive(pids[1])
    await until(lambda: not is_alive(pids[2]))


async def test_a_server_sees_its_own_secrets_and_none_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password@proxy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('the workspace ran')")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    given = {"MODE": "fast", "TOKEN": "hunter2-hunter2"}
    one, two = child("one", env=given), child("two", env={"MODE": "slow"}, cwd=str(elsewhere))
    async with connect(one, two) as mcp:
        first, second = await mcp.look_around("one"), await mcp.look_around("two")
    assert (first["env"]["MODE"], second["env"]["MODE"]) == ("fast", "slow")
    assert first["env"]["TOKEN"] == "[secret]" and "TOKEN" not in second["env"], "it has it, and cannot show it"
    assert first["env"]["PATH"] == os.environ["PATH"]
    usual = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TERM", "USER", "TZ", "TMPDIR"}
    assert set(first["env"]) <= usual | set(given)
    assert first["files"] == [] and not first["cwd"].startswith(str(tmp_path))
    assert not Path(first["cwd"]).exists(), "its folder goes with it"
    assert second["cwd"] == str(elsewhere) and elsewhere.exists(), "its config says where it begins"


async def test_a_server_that_cannot_start_is_down_with_its_own_words_and_the_others_work() -> None:
    absent = McpServer(name="absent", command="there-is-no-such-command")
    async with connect(odd("exit"), absent, odd("plain", "fine")) as mcp:
        health = {one.server: one for one in mcp.servers.get_health()}
        assert {name: one.state for name, one in health.items()} == {"odd": "down", "absent": "down", "fine": "up"}
        assert "cannot find the database" in health["odd"].error
        assert "there-is-no-such-command" in health["absent"].error
        assert (await mcp.call("fine__ok", n=1)).text == '{"sum":3}'


@pytest.mark.usefixtures("short_waits")
async def test_a_server_that_always_dies_is_not_started_for_ever() -> None:
    async with connect(odd("fleeting")) as mcp:
        await until(lambda: mcp.health.state == "down")
        assert "gone again" in mcp.health.error
        with pytest.raises(ToolError, match=r"outcome unknown|is down.*gone again.*Not run"):
            await mcp.call("odd__ok", n=1)


@pytest.mark.usefixtures("short_waits")
async def test_a_server_that_was_down_is_tried_again_when_it_is_called(tmp_path: Path) -> None:
    command = tmp_path / "server"

    def install(how: str) -> None:
        words = [sys.executable, str(Path(__file__).parent / "odd.py"), how]
        command.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
        command.chmod(0o755)

    install("fleeting")
    async with connect(McpServer(name="odd", command=str(command), sandbox=False)) as mcp:
        await until(lambda: mcp.health.state == "down")
        install("plain")
        assert (await mcp.call("odd__ok", n=1)).text == '{"sum":3}'
        assert mcp.servers.get_health() == [McpHealth("odd", "up", 5, "", "2025-11-25")]
        assert list(mcp.servers.list_tool_names()) == ["odd"] and len(mcp.servers.list_tool_names()["odd"]) == 5


async def test_hints_of_a_server_are_believed_only_as_warnings_unless_it_is_trusted() -> None:
    strict, other = odd("plain", "strict", safety="destructive"), child("other", trusted=False)
    async with connect(odd("plain"), child(), strict, other, max_bytes=10**6) as mcp:
        classes = {tool.name: tool.assess_safety({}) for tool in mcp.tools}
    for name in ("odd__ok", "served__add", "served__append"):
        assert classes[name] == "caution", "it says that it reads only or does not destroy"
    for name in ("served__wipe", "served__fail", "strict__ok"):
        assert classes[name] == "destructive", "it says so, it says nothing, or its config says so"
    assert {safety for name, safety in classes.items() if name.startswith("other__")} == {"destructive"}


async def test_names_and_texts_of_a_hostile_server_are_made_harmless() -> None:
    async with connect(odd("plain")) as mcp:
        names = [tool.name for tool in mcp.tools]
    assert len(set(names)) == len(names) == 5, "the same tool twice is one"
    assert all(len(name) <= 64 and name.isascii() and "/" not in name for name in names)
    spec = mcp.tools[0].spec
    assert len(spec.description) <= 2000 and spec.description.isprintable()
    assert spec.parameters["properties"]["n"]["description"].isprintable()


@pytest.mark.usefixtures("short_waits")
async def test_a_tool_with_a_changed_description_is_destructive_until_a_call_was_allowed() -> None:
    async with connect(odd("turncoat")) as mcp:
        (tool,), parsed = mcp.tools, mcp.tools[0].parse('{"n": 1}')
        first, description, version = tool.assess(parsed, Path()), tool.spec.description, tool.version
        assert (first.safety, first.is_changed) == ("caution", False)
        await mcp.call("odd__ok", n=1)  # after which it starts again
        await until(lambda: tool.assess(parsed, Path()).is_changed)
        assert tool.assess(parsed, Path()).safety == "destructive" and tool.spec.description == description
        assert tool.version != version, "an earlier approval and an earlier question are for the tool as it was"


async def test_a_list_that_never_ends_is_cut_off() -> None:
    async with connect(odd("endless")) as mcp:
        assert mcp.health.tools == 100


async def test_parts_that_would_spoil_the_next_request_are_left_out() -> None:
    async with connect(odd("broken")) as mcp:
        result = await mcp.call("odd__ok", n=1)
    left_out = "[image, image/png: left out, it cannot be read]"
    assert result.text == f"{left_out}\n[memo://a/b.txt]\nthe memo\n[more: memo://a/c]"
    assert result.parts == (
        FilePart("image", "AAAA", "image/svg+xml"),
        FilePart("audio", "AAAA", "audio/wav"),
        FilePart("b.bin", "AAAA", "x/y"),
    )


async def test_an_error_of_the_server_is_shown_without_its_secrets() -> None:
    async with connect(odd("error"), odd("secret", "safe", env={"PASSWORD": "hunter2-hunter2"})) as mcp:
        with pytest.raises(ToolError, match=r"^odd: quota used up$"):
            await mcp.call("odd__ok", n=1)
        with pytest.raises(ToolError, match=r"^safe: cannot log in with \[secret\]$"):
            await mcp.call("safe__ok", n=1)


@pytest.mark.usefixtures("short_waits")
async def test_closing_ends_a_server_that_is_still_starting(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    async with McpServers([McpServer(name="mute", command="sh", args=("-c", script), sandbox=False)]) as servers:
        (pid,) = await read_lines(tmp_path / "pid", 1)
        assert servers.get_health()[0].state == "starting" and is_alive(int(pid))
    assert servers.get_health()[0].state == "closed" and not is_alive(int(pid))


@pytest.mark.usefixtures("short_waits")
async def test_a_server_that_never_answers_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, connect_once = list[Connection](), Connection._connect

    async def count_tries(self: Connection) -> None:
        tries.append(self)
        await connect_once(self)

    monkeypatch.setattr(Connection, "_connect", count_tries)
    server = McpServer(name="mute", command="sleep", args=("600",), start_timeout=0.2, protocol="legacy")
    async with connect(server) as mcp:
        assert mcp.tools == [] and mcp.health.state == "down" and "timed out" in mcp.health.error
    assert len(tries) == 1


@pytest.mark.usefixtures("short_waits")
async def test_closing_at_any_moment_leaves_no_process(tmp_path: Path) -> None:
    script = f"echo $$ >> {tmp_path}/pids; trap '' TERM; sleep 0.05; echo garbage; exec sleep 600"
    words: dict[str, Any] = {"command": "sh", "args": ("-c", script), "start_timeout": 0.2, "protocol": "legacy"}
    server = McpServer(name="stubborn", **words, sandbox=False)
    for moment in (0.1, 0.6):
        async with McpServers([server]):
            await asyncio.sleep(moment)
            if moment > 0.5:
                await read_lines(tmp_path / "pids", 1)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_opening_and_closing_leaves_nothing_behind() -> None:
    async def open_and_close() -> None:
        async with connect(odd("plain"), odd("exit", "sick")) as mcp:
            await mcp.call("odd__ok", n=1)

    await open_and_close()
    gc.collect()  # what earlier tests left would be counted
    before, tasks = set(os.listdir("/proc/self/fd")), asyncio.all_tasks()
    for _ in range(5):
        await open_and_close()
    await until(lambda: len(set(os.listdir("/proc/self/fd"))) <= len(before))
    assert asyncio.all_tasks() == tasks
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):
            assert "odd.py" not in Path(f"/proc/{pid}/cmdline").read_text()


async def test_many_calls_at_once_share_one_connection() -> None:
    async with connect(child()) as mcp:
        sums = await asyncio.gather(*(mcp.add(number, 1) for number in range(50)))
        assert sums == [str(number + 1) for number in range(50)]
        pid = (await mcp.look_around())["pid"]
        os.kill(pid, 9)
        outcomes = await asyncio.gather(*(mcp.add(number, 1) for number in range(20)), return_exceptions=True)
    for number, outcome in enumerate(outcomes):
        is_unknown = isinstance(outcome, ToolError) and "outcome unknown" in str(outcome)
        assert is_unknown or outcome == str(number + 1)
