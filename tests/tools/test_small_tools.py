"""The clock, the plan and the reader of long output: alone, and in a session with a real log."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.file_tools import RecordingServices
from tests.kit.sessions import build_agent, run_agent, run_script
from treadle import tool
from treadle.engine.compaction import TODO
from treadle.errors import NotFound
from treadle.testing import call
from treadle.tools.base import ToolContext, ToolError, ToolInputError
from treadle.tools.current_time import current_time, format_moment
from treadle.tools.function import FunctionTool
from treadle.tools.read_output import MAX_LINE_CHARACTERS, fold_lines, read_output
from treadle.tools.todo import todo

ID = "9f86d081884c7d659a2feaa0c55ad015"
NOON = datetime(2026, 7, 1, 12, 0, 5, tzinfo=UTC)


async def run_tool(tool: FunctionTool, context: ToolContext, **arguments: Any) -> Any:
    return await tool.run(tool.parse(json.dumps(arguments)), context)


@pytest.fixture
def read(tool_context: ToolContext, services: RecordingServices) -> Callable[..., Awaitable[str]]:
    """Read from an output with `read_output`."""

    async def read_from(output: str, **arguments: Any) -> str:
        services.artifacts[ID] = output.encode()
        return await run_tool(read_output, tool_context, artifact=ID, **arguments)

    return read_from


# --- current_time


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Europe/Paris", "Wednesday 2026-07-01 14:00:05 CEST (UTC+02:00)"),
        ("utc", "Wednesday 2026-07-01 12:00:05 UTC (UTC+00:00)"),
        ("america/new york", "Wednesday 2026-07-01 08:00:05 EDT (UTC-04:00)"),
        ("+05:30", "Wednesday 2026-07-01 17:30:05 UTC+05:30"),
        ("UTC-3", "Wednesday 2026-07-01 09:00:05 UTC-03:00"),
    ],
)
def test_the_time_is_written_in_the_zone_that_is_asked_for(zone: str, text: str) -> None:
    assert format_moment(NOON, zone) == text


@pytest.mark.parametrize(
    ("zone", "error"),
    [
        ("Pariss", "Did you mean Europe/Paris"),
        ("../../etc/passwd", r"no time zone '.*/etc/passwd'"),
        ("+24", "no time"),
    ],
)
def test_an_unknown_zone_is_refused_with_a_similar_one(zone: str, error: str) -> None:
    with pytest.raises(ToolError, match=error):
        format_moment(NOON, zone)


@given(st.text(max_size=30))
def test_any_zone_has_a_time_or_an_error(zone: str) -> None:
    try:
        text = format_moment(NOON, zone)
    except ToolError as error:
        text = str(error)
    assert "time zone" in text or text.startswith(("Tuesday 2026", "Wednesday 2026", "Thursday 2026"))


async def test_without_a_zone_it_is_the_time_now(tool_context: ToolContext) -> None:
    before = datetime.now().astimezone().replace(microsecond=0)
    words = (await run_tool(current_time, tool_context)).split()
    then = datetime.fromisoformat(f"{words[1]} {words[2]}").astimezone()
    assert before <= then <= datetime.now().astimezone()


# --- todo


async def test_a_plan_is_shown_with_marks_and_kept_until_it_is_cleared(
    tool_context: ToolContext, services: RecordingServices
) -> None:
    items = [{"text": "test", "status": "done"}, {"text": "fix", "status": "doing"}, "tell"]
    assert await run_tool(todo, tool_context, items=items) == "[x] test\n[>] fix\n[ ] tell\n1 of 3 done."
    assert services.notes[TODO] == [*items[:2], {"text": "tell", "status": "pending"}]
    assert await run_tool(todo, tool_context, items=[]) == "The plan is empty."
    assert services.notes[TODO] == []


@pytest.mark.parametrize("items", [["x"] * 101, [" "], ["x" * 501]])
async def test_a_plan_that_is_too_long_or_empty_changes_nothing(
    items: list[str], tool_context: ToolContext, services: RecordingServices
) -> None:
    with pytest.raises(ToolError, match="Nothing was changed"):
        await run_tool(todo, tool_context, items=items)
    assert services.notes == {}


async def test_a_plan_outlives_its_process(tmp_path: Path) -> None:
    agent, _ = build_agent(call("todo", items=["one", "two"]), "planned", tools=[todo])
    await run_agent(agent, log=tmp_path / "s.db")
    async with agent.session(tmp_path / "s.db") as session:
        assert [item["text"] for item in (await session.state()).notes[TODO]] == ["one", "two"]


# --- read_output


@given(st.text(max_size=6000))
def test_folding_keeps_every_character(text: str) -> None:
    lines = fold_lines(text)
    assert all(len(line) <= MAX_LINE_CHARACTERS for line in lines)
    assert "".join(lines) == text.removesuffix("\n").replace("\n", "")


NUMBERED = "".join(f"line {number}\n" for number in range(1, 501))
MIXED = "all well\nERROR one\nall well\nerror: two error\n"


@pytest.mark.parametrize(
    ("output", "arguments", "shown"),
    [
        (NUMBERED, {"offset": 499}, "499: line 499\n500: line 500\n[500 lines.]"),
        (NUMBERED, {"offset": 10, "limit": 2}, "10: line 10\n11: line 11\n[500 lines. Go on with offset=12.]"),
        (NUMBERED, {"offset": 501}, "Nothing to show: the output has 500 lines from line 501 on."),
        (MIXED, {"pattern": "(?i)error"}, "2: ERROR one\n4: error: two error\n[2 of 4 lines match.]"),
        (MIXED, {"pattern": "nowhere"}, "Nothing to show: the output has 0 of 4 lines match."),
        ("a" * 1900 + "b", {"pattern": "^(a+)+$"}, "Nothing to show: the output has 0 of 1 lines match."),
        ("x" * 50_000 + "the end", {"pattern": "the end"}, "26: the end\n[1 of 26 lines match.]"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_output_is_read_by_line_numbers_or_a_pattern(read: Any, output: str, arguments: Any, shown: str) -> None:
    assert await read(output, **arguments) == shown


async def test_a_long_line_can_be_read_to_its_end(read: Any) -> None:
    page, text = 1, ""
    while page:
        shown = await read("x" * 50_000 + "the end", offset=page)
        text += "".join(line.partition(": ")[2] for line in shown.splitlines()[:-1])
        page = int(shown.rpartition("offset=")[2].rstrip(".]")) if "offset=" in shown else 0
    assert text == "x" * 50_000 + "the end"


async def test_a_part_of_an_output_is_never_too_large_itself(read: Any) -> None:
    assert len((await read(("ü" * 1990 + "\n") * 300, limit=300)).encode()) <= read_output.cap


@pytest.mark.parametrize(
    ("kind", "error", "arguments"),
    [
        *((ToolInputError, "offset starts at 1", part) for part in ({"offset": 0}, {"limit": 0}, {"limit": 10**6})),
        *((ToolError, "pattern cannot be used", {"pattern": one}) for one in ("(unclosed", "[", "(?P<a>x)(?P<a>y)")),
    ],
)
async def test_a_part_or_a_pattern_that_cannot_be_is_refused(kind: Any, error: str, arguments: Any, read: Any) -> None:
    with pytest.raises(kind, match=error):
        await read("text", **arguments)


async def test_an_unknown_artifact_is_an_error(tool_context: ToolContext) -> None:
    with pytest.raises(NotFound, match="no artifact '000"):
        await run_tool(read_output, tool_context, artifact="0" * 32)


async def test_the_model_reads_what_was_cut_from_its_own_calls_output() -> None:
    @tool(safety="safe")
    def much() -> str:
        return "\n".join(f"row {number}" for number in range(20_000))

    def read_rest(request: Any) -> Any:
        artifact = request.messages[-1].text.partition("the whole is artifact ")[2].split()[0]
        return call("read_output", id="rest", artifact=artifact, pattern="row 1234$")

    done = await run_script(call("much"), read_rest, "done", tools=[much, read_output])
    assert done.results["rest"].output == "1235: row 1234\n[1 of 20000 lines match.]"
