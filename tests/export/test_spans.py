"""Tracing spans of a session: run, turns, model calls and tool calls."""

from treadle import Agent, Limits, tool
from treadle.errors import ModelError
from treadle.export.spans import build_spans
from treadle.testing import ScriptedModel, SteppingClock, call


@tool(safety="safe")
async def look(page: int) -> str:
    """Look at a page."""
    if page == 2:
        raise ValueError("no such page")
    return "text"


async def test_a_run_is_a_tree_of_spans_with_times_and_outcomes() -> None:
    model = ScriptedModel(
        ModelError("busy", kind="overloaded", retryable=True),
        [call("look", page=1, id="a"), call("look", page=2, id="b")],
        "Done.",
    )
    agent = Agent(model, tools=[look], limits=Limits(turns=5), clock=SteppingClock())
    async with agent.session() as session:
        await session.ask("Look.")
        spans = await session.spans()
    run, *rest = spans
    assert (run.kind, run.parent, run.attributes["treadle.reason"]) == ("run", "", "answered")
    turns = [span for span in rest if span.kind == "turn"]
    assert [span.parent for span in turns] == [run.id, run.id]
    models = [span for span in rest if span.kind == "model"]
    assert [span.ok for span in models] == [False, True, True]
    assert models[0].attributes["error.type"] == "overloaded"
    assert models[1].end is not None and models[1].end > models[1].start, "the wait before the retry is part of it"
    tools = {str(span.attributes["gen_ai.tool.call.id"]): span for span in rest if span.kind == "tool"}
    assert tools["a"].ok and not tools["b"].ok
    assert tools["a"].parent == turns[0].id
    assert all(span.end is not None for span in spans)


async def test_an_open_span_has_no_end() -> None:
    async with Agent(ScriptedModel("x")).session() as session:
        await session.ask("Hello.")
        facts = await session.facts()
    assert [span.kind for span in build_spans(facts[:4]) if span.end is None] == ["run", "turn", "model"]
