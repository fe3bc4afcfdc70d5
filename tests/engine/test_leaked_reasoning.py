"""Reasoning that leaked into an answer, in every form, whole or streamed in any pieces."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.engine.leaked_reasoning import FORMS, ReasoningSplitter, split_reasoning
from treadle.engine.reply import MarkSplitter, split_marks

HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42"
LEAKS = {
    "<think>hm</think>42": ("42", "hm"),
    "\n <think>\nhm\n</think>\n\n42": ("42", "hm"),
    "<thinking>hm</thinking>42": ("42", "hm"),
    "<reasoning>hm</reasoning>42": ("42", "hm"),
    "<thought>hm</thought>42": ("42", "hm"),
    "◁think▷hm◁/think▷42": ("42", "hm"),
    "[THINK]hm[/THINK]42": ("42", "hm"),
    HARMONY: ("42", "hm"),
    f"<|start|>assistant{HARMONY}<|return|>": ("42", "hm"),
    "<|channel|>commentary<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42": ("42", "hm"),
    "<|channel|>commentary to=functions.x <|constrain|>json<|message|>hm<|call|>42": ("42", "hm"),
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>b<|end|>42": ("42", "ab"),
    "<|channel|>analysis<|message|>hm<|channel|>final<|message|>42": ("42", "hm"),
    "<|channel|>analysis<|message|>hm<|end|>42": ("42", "hm"),
    "analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>42": ("42", "hm"),
    f"assistant{HARMONY}": ("42", "hm"),
    "<|channel|>final<|message|>42<|return|>": ("42", ""),
    "hm<|channel|>final<|message|>42": ("42", "hm"),
    "analysisWe need 42.assistantfinal42": ("42", "We need 42."),
    "<|channel>thought\nhm<channel|>42": ("42", "hm"),
    "<|channel>thought\n<channel|>42": ("42", ""),
    "thought\nThe user greets me.\nI greet back.\n\nHello!\n\nHow are you?": (
        "Hello!\n\nHow are you?",
        "The user greets me.\nI greet back.",
    ),
    "thought\r\nhm<channel|>42": ("42", "hm"),
    "thought\nHello!": ("Hello!", ""),
    "hm</think>42": ("42", "hm"),
    "hm◁/think▷\n42": ("42", "hm"),
    "hm[/THINK]42": ("42", "hm"),
    "<think>all of it": ("", "all of it"),
    "◁think▷all of it": ("", "all of it"),
    "[THINK]all of it": ("", "all of it"),
    "<|channel|>analysis<|message|>all of it": ("", "all of it"),
    "<think>hm</thinking>4<thought>ha</thought>2": ("42", "hmha"),
    "Before ◁think▷hm◁/think▷after": ("Before after", "hm"),
}
ANSWERS = [
    "Thought experiments are useful.",
    "thought so.",
    "thoughtful people agree",
    "thought",
    "analysis of the data shows 3",
    "analysisResult = 5",
    "analysis",
    "final",
    "  indented",
    "Use `<think>` and `</think>`.",
    "Use <think> and </think> tags.",
    'It prints "<think>" and "</think>".',
    "See:\n```xml\n<think>\nhm\n</think>\n```\nDone.",
    "See:\n````\n```\n[THINK]x[/THINK]\n```\n````\nDone.",
    "Harmony uses `<|channel|>analysis<|message|>` and `<|end|>`.",
    "Tokens like <|end|> end a message.",
    '{"text": "a <think> b </think> c"}',
    "a < b, a[0], <thin> and ◁ stay",
    "[THIN] [/THINK",
    "<b>bold</b> <thinker>",
]
_MARKS = "◁think▷ ◁/think▷ [THINK] [/THINK] <think> </think> <think/> <thought a='b'> </reasoning>"
_TOKENS = "<|channel|> <|message|> <|start|> <|end|> <|constrain|> <|channel> <channel|> analysis final"
_WORDS = "assistant assistantfinal thought analysisA { \" ' ( < [ ◁ é x ` ```"
_SPACES = [" ", "\n", "\n\n", "thought\n"]
PIECES = st.sampled_from([*f"{_MARKS} {_TOKENS} {_WORDS}".split(), *_SPACES, *LEAKS, *ANSWERS])
TEXTS = st.lists(PIECES, max_size=8).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=12)


def cut_text(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def split_pieces(pieces: list[str], splitter: ReasoningSplitter) -> tuple[str, str]:
    fed = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    answer, reasoning = ("".join(part) for part in zip(*fed, strict=True))
    return answer, reasoning


@pytest.mark.parametrize("text", LEAKS)
def test_leaked_reasoning_is_kept_as_reasoning_and_not_in_the_answer(text: str) -> None:
    assert split_reasoning(text) == LEAKS[text]
    split = split_marks(text)
    assert (split.text, split.reasoning) == LEAKS[text]


@pytest.mark.parametrize("text", LEAKS)
def test_leaked_reasoning_is_no_answer_when_it_comes_letter_by_letter(text: str) -> None:
    splitter = ReasoningSplitter()
    assert splitter.correct(*split_pieces(list(text), splitter)) == LEAKS[text]
    live = MarkSplitter()
    said = "".join(live.feed(letter)[0] for letter in text) + live.finish()[0]
    assert said.endswith(LEAKS[text][0])
    if splitter.misread == 0:  # otherwise nothing tells before the end that it is reasoning
        assert said == LEAKS[text][0]


@pytest.mark.parametrize("text", ANSWERS)
def test_an_answer_about_marks_is_not_changed(text: str) -> None:
    assert split_reasoning(text) == (text, "")
    assert split_pieces(list(text), ReasoningSplitter()) == (text, "")


@given(TEXTS, CUTS)
@example(HARMONY, [5, 20, 27, 41, 47])
@example("analysis\n<think>", [8])
@example("x <think>", [2])
def test_reasoning_is_split_alike_wherever_the_text_is_cut(text: str, cuts: list[int]) -> None:
    whole = ReasoningSplitter()
    expected = whole.correct(*split_pieces([text], whole))
    for pieces in (cut_text(text, cuts), list(text)):
        splitter = ReasoningSplitter()
        assert splitter.correct(*split_pieces(pieces, splitter)) == expected == split_reasoning(text)


@given(st.text(alphabet="ab {}\n.'", max_size=60))
def test_a_text_without_marks_is_the_answer(text: str) -> None:
    assert split_reasoning(text) == (text, "")


def test_every_form_of_the_table_is_shown_here() -> None:
    import re

    for form in FORMS:
        assert any(re.search(form.opening, text) and re.search(form.closing, text) for text in LEAKS), form.name


def test_plain_text_is_not_held_back() -> None:
    splitter = ReasoningSplitter()
    for piece in ("Hello", " wor", "ld", " 1 < 2", " [x]", " so"):
        assert splitter.feed(piece) == (piece, "")
    assert splitter.finish() == ("", "")


def test_a_hostile_text_is_split_in_little_time() -> None:
    began = time.process_time()
    bodies = ("<", "<think>", "</think>", "<|channel|>", "`", "\n", " ", "\n \n", "[THINK]", "thought\n", "<think a ")
    for head in ("", "thought\n", "analysisA", "<|start|>", "<think>"):
        for body in bodies:
            text = head + body * (30_000 // len(body))  # quadratic work would take minutes
            split_reasoning(text)
            split_pieces([text[:1000], text[1000:]], ReasoningSplitter())
    assert time.process_time() - began < 10
