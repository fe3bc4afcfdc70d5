"""What a model is shown of a tool's output: head and tail, text or JSON, images; and what a tool knows of its call."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.kit.sessions import (
    Store,
    agent_of,
    either_store,
    ended,
    file_store,
    finished_calls,
    of,
    results,
)
from treadle import (
    CallFinished,
    CallStarted,
    ImagePart,
    ToolContext,
    ToolError,
    ToolResult,
    tool,
)
from treadle.events import OutputDelta, Progress
from treadle.testing import call

store = either_store
on_file = file_store


async def test_long_output_is_shown_head_and_tail_and_kept_whole(store: Store) -> None:
    whole = "".join(f"{n:06}·\n" for n in range(10_000))

    @tool(safety="safe")
    def dump() -> str:
        return whole

    agent, model = agent_of(call("dump", id="a"), "ok", tools=[dump])
    async with agent.session(store.open()) as session:
        await ended(session)
        done = (await finished_calls(session))["a"]
        assert done.truncation is not None
        kept = await session.artifact(done.truncation.artifact)
    assert kept.data.decode() == whole
    shown = results(model.requests[1])["a"].text
    assert shown == done.output and len(shown.encode()) < 16 * 1024 + 200
    assert shown.startswith("000000·\n") and shown.endswith("009999·\n")
    assert done.truncation.kept + done.truncation.dropped == len(whole)
    assert f"{done.truncation.dropped} characters left out" in shown and done.truncation.artifact in shown


async def test_the_cap_is_the_tools_own_and_errors_are_capped_too() -> None:
    @tool(cap=90)
    def small() -> str:
        raise ToolError("é" * 1000)

    agent, model = agent_of(call("small", id="a"), "ok", tools=[small])
    async with agent.session() as session:
        await ended(session)
        done = (await finished_calls(session))["a"]
        assert done.truncation is not None and done.status == "error"
        assert (await session.artifact(done.truncation.artifact)).data.decode() == "é" * 1000
    assert done.truncation.dropped == 1000 - done.truncation.kept > 900
    assert "\ufffd" not in done.output
    assert results(model.requests[1])["a"].text.startswith("é" * 30)


async def test_escape_codes_and_control_characters_do_not_reach_the_model_or_the_log() -> None:
    @tool
    def paint() -> str:
        return "\x1b[1;31mred\x1b[0m \x1b]0;title\x07bell\x07 back\x08 nul\x00 tab\t line\r\n\x1b]8;;http://x\x1b\\link"

    agent, _ = agent_of(call("paint", id="a"), "ok", tools=[paint])
    async with agent.session() as session:
        await ended(session)
        done = (await finished_calls(session))["a"]
    assert done.output == "red bell\u2407 back\u2408 nul\u2400 tab\t line\nlink"


class Point(BaseModel):
    x: int
    y: int = 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(no output)"),
        ("", "(no output)"),
        ("ä\udcff", "ä?"),
        (True, "true"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(x=1), '{"x":1,"y":2}'),
        ([Point(x=1)], '[{"x":1,"y":2}]'),
        (Path("/tmp/x"), '"/tmp/x"'),
        (b"abc", '"YWJj"'),
        ({"a": "\x9b31m\x7f"}, '{"a":"\ufffd31m\u2421"}'),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_tool_returns_is_shown_as_text_or_json(value: object, text: str) -> None:
    @tool
    def give() -> Any:
        return value

    agent, model = agent_of(call("give", id="a"), "ok", tools=[give])
    async with agent.session() as session:
        assert (await ended(session)).reason == "answered"
    shown = results(model.requests[1])["a"]
    assert (shown.text, shown.ok) == (text, True)


async def test_a_result_may_carry_images_and_say_that_it_failed(store: Store) -> None:
    picture = ImagePart(data="aGk=", media_type="image/png")

    @tool
    def draw() -> ToolResult:
        return ToolResult("a cat", (picture,), ok=False)

    agent, model = agent_of(call("draw", id="a"), call("draw", id="b"), "ok", tools=[draw])
    async with agent.session(store.open()) as session:
        await ended(session)
        done = (await finished_calls(session))["a"]
    assert (done.status, done.output, done.parts) == ("error", "a cat", (picture,))
    for request in model.requests[1:]:
        assert results(request)["a"].parts == (picture,)


async def test_a_tool_knows_its_call_and_can_show_how_far_it_is(tmp_path: Path) -> None:
    seen: list[ToolContext] = []

    @tool
    def work(context: ToolContext, steps: int) -> str:
        seen.append(context)
        context.progress("halfway", 1, steps)
        context.output("line 1\n")
        return "done"

    agent, _ = agent_of(call("work", id="a", steps=2), "ok", tools=[work])
    async with agent.session(workspace=tmp_path) as session, session.run("go") as run:
        events = [event async for event in run]
    assert (seen[0].session_id, seen[0].call_id, seen[0].workspace) == (session.id, "a", tmp_path)
    assert seen[0].key == f"{session.id}:a"
    progress, output = of(events, Progress)[0], of(events, OutputDelta)[0]
    assert (progress.message, progress.done, progress.total, progress.call_id) == ("halfway", 1, 2, "a")
    assert (output.text, output.call_id) == ("line 1\n", "a")
    started = of(events, CallStarted)[0]
    assert progress.after == output.after == started.seq
    assert work.spec.parameters["required"] == ["steps"] and set(work.spec.parameters["properties"]) == {"steps"}


async def test_what_a_tool_says_last_is_heard_before_its_call_ends() -> None:
    @tool
    async def work(context: ToolContext) -> str:
        context.progress("nearly there")
        return "done"

    work.ends_when_cancelled = True  # so that nothing comes between its end and the result
    agent, _ = agent_of(call("work", id="a"), "ok", tools=[work])
    async with agent.session() as session, session.run("go") as run:
        heard = [type(event) for event in [event async for event in run] if isinstance(event, Progress | CallFinished)]
    assert heard == [Progress, CallFinished]
