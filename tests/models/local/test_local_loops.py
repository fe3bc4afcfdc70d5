"""A model that repeats itself: the reply ends, and what only looks alike goes on. Without a real model."""

import json
from collections.abc import AsyncGenerator, Sequence

import pytest

from tests.kit.fakes.clients import user
from tests.models.local.test_local_drivers import ASKED, READ, Scripted, drive_json, pieces
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import ModelMessage, Reply, Request
from treadle.models.base import ModelEvent
from treadle.models.local.loop_detector import BROKEN_CALL, BROKEN_REASONING, LoopDetector, end_at_loop
from treadle.models.local.plain_reply import HINT, SentenceReader, asks_for_fact, needs_hint

VERSE = "The rain falls on the hill and the river runs to the sea, as it did before.\n"


def count_until_loop(pieces: Sequence[str]) -> int | None:
    """How many pieces it takes until the text counts as a loop."""
    detector = LoopDetector()
    return next((number for number, piece in enumerate(pieces) if detector.feed(piece)), None)


@pytest.mark.parametrize(
    "again",
    [
        "I am here to help. ",
        "ha",
        "-",
        "\n",
        " ",
        "_",
        "東京",
        "| a | b |\n",
        VERSE * 3,
        "I'm sorry, I can't do that.\n\n",
        "申し訳ありませんが、それはできません。",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_text_that_comes_again_and_again_is_a_loop(again: str, size: int) -> None:
    text = "Well. " + again * (20_000 // len(again) + 1)
    assert count_until_loop([text[start : start + size] for start in range(0, len(text), size)]) is not None


def test_numbered_lines_of_the_same_words_are_a_loop() -> None:
    assert count_until_loop([f"{number}. Ask a friend for help.\n" for number in range(200)]) is not None


@pytest.mark.parametrize(
    "text",
    [
        VERSE * 3,
        "".join(f"{number}, " for number in range(3000)),
        "".join(f"def test_{number}():\n    assert add({number}, 1) == {number + 1}\n\n" for number in range(200)),
        ("[" + "0, " * 8 + "],\n") * 8,
        "| a | b |\n|---|---|\n" + "".join(f"| row {number} | {number * 7} |\n" for number in range(200)),
        "".join(f"{number}. Item {number}\n" for number in range(200)),
        json.dumps([{"name": "", "value": 0}] * 40, indent=2),
        json.dumps({"content": '<div class="cell"></div>\n' * 42}),
        "<tr>" + "<td></td>" * 8 + "</tr>\n" * 8,
        "    [0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 9,
        ("+---" * 8 + "+\n" + "|   " * 8 + "|\n") * 8,
        "".join("* " * width + "\n" for width in range(1, 30)),
        "00 " * 256,
        "| yes | yes | no |\n" * 60,
    ],
    ids=[
        "refrain", "numbers", "code", "zeros", "table", "numbered lines", "objects", "markup in a call", "empty table",
        "sudoku", "grid", "triangle", "bytes", "equal rows",
    ],
)  # fmt: skip
def test_a_text_that_goes_on_is_no_loop(text: str) -> None:
    assert count_until_loop([text[start : start + 5] for start in range(0, len(text), 5)]) is None


async def pass_through(*events: ModelEvent) -> list[ModelEvent]:
    async def stream() -> AsyncGenerator[ModelEvent, None]:
        for event in events:
            yield event

    return [event async for event in end_at_loop(stream(), "local")]


async def test_a_reply_that_is_no_loop_passes_unchanged() -> None:
    events = (ReasoningDelta(text="hm"), TextDelta(text="Yes."), Reply("Yes.", "hm"))
    assert await pass_through(*events) == list(events)


async def test_a_loop_in_the_text_ends_the_reply_without_an_error() -> None:
    events = await pass_through(*[TextDelta(text=VERSE)] * 100, Reply(VERSE * 100, finish="length"))
    reply = events[-1]
    assert isinstance(reply, Reply) and reply.finish == "other"
    assert len(events) < 30 and reply.text == VERSE * (len(events) - 1)


@pytest.mark.parametrize(
    ("delta", "note"),
    [(ReasoningDelta(text=VERSE), BROKEN_REASONING), (CallDelta(index=0, tool="read", arguments=VERSE), BROKEN_CALL)],
)
async def test_a_loop_in_thoughts_or_in_a_call_says_so(delta: ModelEvent, note: str) -> None:
    *_, told, reply = await pass_through(*[delta] * 100)
    assert told == TextDelta(text=note)
    assert isinstance(reply, Reply)
    assert (reply.text, reply.calls, reply.finish) == (note, (), "other")


async def test_a_loop_under_a_grammar_ends_the_call() -> None:
    engine = Scripted(pieces('{"tool": "read", "arguments": {"path": "', *["so on and "] * 200))
    _, reply = await drive_json(engine, Request("", ASKED, (READ,)))
    assert (reply.text, reply.calls, reply.finish) == (BROKEN_CALL, (), "other")


def read_sentences(text: str, *, is_cut_off: bool = False) -> str:
    reader = SentenceReader()
    return "".join(reader.feed(letter) for letter in text) + reader.finish(is_cut_off=is_cut_off)


def test_a_reply_ends_at_a_sentence() -> None:
    assert read_sentences("Hi! It costs 2.50 euros. And th", is_cut_off=True) == "Hi! It costs 2.50 euros."
    assert read_sentences("Hi! It costs 2.50 euros") == "Hi! It costs 2.50 euros"
    assert read_sentences("one two", is_cut_off=True) == "one two…"
    assert read_sentences("Happy shopping! #Hugs #Best_Friends") == "Happy shopping!"
    assert read_sentences("Just ask! ‐‐‐ -") == "Just ask!"
    assert read_sentences(":-") == ":-"


def test_a_reply_ends_before_a_sentence_that_was_there() -> None:
    assert read_sentences("I can help. How? I can help! More.").rstrip() == "I can help. How?"


def test_the_hint_is_given_once_in_a_session() -> None:
    hinted = ModelMessage(f"Hello!\n\n{HINT}")
    assert needs_hint([user("hi"), ModelMessage("Hello!"), user("hi")])
    assert not needs_hint([user("hi"), hinted, user("thanks"), ModelMessage("Bye."), user("hi")])
    assert not needs_hint([user("What happened before, in short (the full transcript is kept):\n\nhi"), user("hi")])


def test_questions_about_the_world_differ_from_small_talk() -> None:
    assert all(map(asks_for_fact, ("What is the capital of Spain?", "who wrote Hamlet?")))
    assert not any(map(asks_for_fact, ("What is your name?", "what's up?", "who are you?", "hello")))
