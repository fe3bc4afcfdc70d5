"""Tool output: rendered as text or JSON, cleaned, cut, stored, and shown while the tool runs."""

import dataclasses
import datetime
import enum
import math
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.kit.sessions import FinishedRun, Store, build_agent, select_events
from treadle import CallFinished, CallStarted, ImagePart, ToolContext, ToolError, ToolResult, tool
from treadle.engine.tool_call import cut_output, remove_control_characters, render_result
from treadle.errors import BadInput
from treadle.events import OutputDelta, Progress
from treadle.testing import call

MEGABYTE = 1_000_000


class Point(BaseModel):
    x: int
    y: Path = Path("p")


@dataclasses.dataclass
class Pair:
    a: int
    b: Point


class Colour(enum.Enum):
    RED = "red"


# ── rendering ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("né 🎈", "né 🎈"),
        ("", ""),
        (None, ""),
        (42, "42"),
        (True, "true"),
        (2**80, str(2**80)),
        (math.nan, "null"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ({3: "x"}, '{"3":"x"}'),
        ((1, 2), "[1,2]"),
        (Point(x=1), '{"x":1,"y":"p"}'),
        ([Point(x=1)], '[{"x":1,"y":"p"}]'),
        (Pair(1, Point(x=2)), '{"a":1,"b":{"x":2,"y":"p"}}'),
        (Path("/w/x"), '"/w/x"'),
        (Colour.RED, '"red"'),
        (datetime.date(2026, 1, 2), '"2026-01-02"'),
        (b"hi", '"aGk="'),
    ],
)
def test_a_result_is_text_or_json(value: object, text: str) -> None:
    assert render_result(value) == (text, (), True)


def build_circle() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({1: object()}, "dict"),
        ({(1, 2): 3}, "dict"),
        (lambda: 1, "function"),
        ((number for number in range(3)), "generator"),
        (build_circle(), "list"),
        ({"text": "\ud800"}, "dict"),
        (Point, "ModelMetaclass"),
        (re.compile("x"), "Pattern"),
    ],
)
def test_a_result_that_is_not_json_is_refused_with_a_hint(value: object, kind: str) -> None:
    with pytest.raises(BadInput) as error:
        render_result(value)
    message = str(error.value)
    assert f"the tool returned a {kind}, which is not JSON" in message
    assert "It may have run." in message and "should return text" in message
    assert message.encode()


# ── cleaning ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;5;196mred\x1b[K", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0\x1b\\image", "image"),
        ("\x1b(Btext\x1bM", "text"),
        ("\x1b[?1049h\x1b[2Jscreen", "screen"),
        ("a\r\nb", "a\nb"),
        ("10%\r20%", "10%␍20%"),
        ("bell\x07 null\x00 back\x08", "bell␇ null␀ back␈"),
        ("\x7f", "␡"),
        ("\x9b31mred", "�31mred"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\ud800 né", "? né"),
        ("end\x1b", "end␛"),
        ("\x1b]0;never closed\nnext line", "\nnext line"),
        ("\x1b]one\x1b]two\x07text", "text"),
    ],
)
def test_escape_codes_are_removed_and_other_controls_are_made_visible(text: str, cleaned: str) -> None:
    assert remove_control_characters(text) == cleaned


ANY = st.text(alphabet=st.characters(codec=None) | st.sampled_from("\x1b[]\x07\\\r\n\x9bm;0"))


@given(ANY)
def test_any_output_becomes_harmless_and_can_be_stored(text: str) -> None:
    cleaned = remove_control_characters(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", cleaned)
    assert msgspec.json.decode(msgspec.json.encode(cleaned)) == cleaned
    assert remove_control_characters(cleaned) == cleaned


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t")))
def test_plain_text_is_not_changed(text: str) -> None:
    assert remove_control_characters(text) == text


# ── cutting ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text(alphabet="aé中🎈\u0301", max_size=80) | st.text(max_size=80), st.integers(0, 100))
def test_text_is_cut_between_characters_and_dropped_characters_are_counted(text: str, cap: int) -> None:
    head, tail, dropped = cut_output(text, cap)
    assert text.startswith(head) and text.endswith(tail)
    assert len(head) + dropped + len(tail) == len(text)
    fits = len(text.encode()) <= cap
    assert (dropped == 0) is fits
    if fits:
        assert (head, tail) == (text, "")
    else:
        assert len(head.encode()) + len(tail.encode()) <= cap
        # Each cut drops at most one character that would fit, and a character has up to four bytes.
        assert len(head.encode()) > cap * 2 // 3 - 4 and len(tail.encode()) > cap // 3 - 4


def test_the_beginning_and_the_end_are_kept() -> None:
    assert cut_output("a" * 60 + "b" * 60, 30) == ("a" * 20, "b" * 10, 90)
    assert cut_output("🎈" * 10, 15) == ("🎈🎈", "🎈", 7)


@pytest.mark.parametrize("piece", ["né 🎈 plain text ", "\x1b[31mred\x1b[0m text that goes on \x1b]never closed\n"])
def test_fifty_megabytes_are_cut_fast(piece: str) -> None:
    text = piece * (50 * MEGABYTE // len(piece.encode()))
    began = time.process_time()
    head, tail, dropped = cut_output(remove_control_characters(text), 16 * 1024)
    assert time.process_time() - began < 10
    assert 16 * 1024 - 8 < len((head + tail).encode()) <= 16 * 1024 and dropped > MEGABYTE


# ── in a session ───────────────────────────────────────────────────────────────────────────────────────────────


async def run_tool(store: Store, value: object, **options: Any) -> FinishedRun:
    """Run one call of a tool that returns or raises a value."""

    @tool(**options)
    def give() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    run = await store.run_script(call("give", id="a"), "ok", tools=[give])
    assert run.reason == "answered"
    return run


@pytest.mark.parametrize(
    ("value", "options", "cap"),
    [
        ("".join(f"{number:06}·\n" for number in range(10_000)), {}, 16 * 1024),
        ("0123456789abcdef" * (50 * 1024 * 64), {}, 16 * 1024),
        (ToolError("é" * 1000), {"cap": 90}, 90),
    ],
    ids=["many lines", "fifty megabytes", "an error over the tool's own cap"],
)
async def test_long_output_is_cut_for_the_model_and_stored_whole(
    on_file: Store, value: Any, options: Any, cap: int
) -> None:
    run = await run_tool(on_file, value, **options)
    whole, done = str(value), run.results["a"]
    assert done.truncation is not None and run.messages["a"].text == done.output
    assert (await on_file.open().get_artifact(run.session_id, done.truncation.artifact)).data.decode() == whole
    assert len(done.output.encode()) < cap + 200 and "\ufffd" not in done.output
    assert done.output.startswith(whole[:30]) and done.output.endswith(whole[-8:])
    assert done.truncation.kept + done.truncation.dropped == len(whole)
    assert f"{done.truncation.dropped} characters left out" in done.output
    assert done.truncation.artifact in done.output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "(no output)"),
        ("ä\udcff", "ä?"),
        ([Point(x=1)], '[{"x":1,"y":"p"}]'),
        ({"a": "\x9b31m\x7f"}, '{"a":"\ufffd31m\u2421"}'),
    ],
    ids=["nothing", "surrogate", "model", "json with controls"],
)
async def test_the_model_reads_rendered_output(store: Store, value: object, text: str) -> None:
    run = await run_tool(store, value)
    assert (run.messages["a"].text, run.messages["a"].ok) == (text, True)
    assert run.results["a"].output == ("" if value is None else text)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "which is not JSON"),
        (ToolResult("a cat", ("cat.png",)), "not text, images or files"),  # type: ignore[arg-type]
    ],
    ids=["object", "parts"],
)
async def test_a_result_that_cannot_be_stored_is_an_error(store: Store, value: object, problem: str) -> None:
    run = await run_tool(store, value)
    done = run.results["a"]
    assert done.status == "error" and problem in done.output and "It may have run" in done.output
    assert run.messages["a"].text == done.output


async def test_a_result_can_have_images_and_say_that_it_failed(store: Store) -> None:
    picture = ImagePart(data="aGk=", media_type="image/png")
    run = await run_tool(store, ToolResult("a cat\x1b[1m", (picture,), ok=False))
    done = run.results["a"]
    assert (done.status, done.output, done.parts) == ("error", "a cat", (picture,))
    assert run.messages["a"].parts == (picture,)


async def test_a_tool_knows_its_call_and_can_show_progress(tmp_path: Path) -> None:
    contexts: list[ToolContext] = []

    @tool
    def work(context: ToolContext, steps: int) -> str:
        contexts.append(context)
        context.progress("halfway", 1, steps)
        context.output("line 1\n")
        return "done"

    agent, _ = build_agent(call("work", id="a", steps=2), "ok", tools=[work])
    async with agent.session(workspace=tmp_path) as session, session.run("go") as run:
        events = [event async for event in run]
    [context] = contexts
    assert (context.session_id, context.call_id, context.workspace) == (session.id, "a", tmp_path)
    assert context.key == f"{session.id}:a"
    progress, output = select_events(events, Progress)[0], select_events(events, OutputDelta)[0]
    assert (progress.message, progress.done, progress.total, progress.call_id) == ("halfway", 1, 2, "a")
    assert (output.text, output.call_id) == ("line 1\n", "a")
    started = select_events(events, CallStarted)[0]
    assert progress.after == output.after == started.seq
    assert work.spec.parameters["required"] == ["steps"] and set(work.spec.parameters["properties"]) == {"steps"}


async def test_the_last_progress_is_published_before_the_call_ends() -> None:
    @tool
    async def work(context: ToolContext) -> str:
        context.progress("nearly there")
        return "done"

    work.ends_when_cancelled = True  # so that nothing comes between its end and the result
    agent, _ = build_agent(call("work", id="a"), "ok", tools=[work])
    async with agent.session() as session, session.run("go") as run:
        kinds = [type(event) async for event in run if isinstance(event, Progress | CallFinished)]
    assert kinds == [Progress, CallFinished]
