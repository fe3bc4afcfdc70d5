"""Marks and leaked reasoning in a model's text, whole or streamed, and repeated calls."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.engine.reply import MarkSplitter, SplitReply, find_cycle, split_marks

_TAGS = "<think> </think> <thinking> </thinking> <reasoning> </reasoning> <think/> <answer> </answer> <uncertain>"
_PARTS = "<stuck> <yield/> </stuck> < </ <a <answers> > /> é"
_LONG = ["<answer " + "x" * 130 + ">", *(f"<answer a='{'b' * length}'>" for length in (107, 108, 150))]
PIECES = st.sampled_from(
    [
        *f"{_TAGS} {_PARTS}".split(),
        *('<answer confidence="0.9">', "<answer confidence=0.5 />", "1 < 2", "x\n", " so 🎈 "),
        *_LONG,
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(alphabet="<>/answer think='\n", max_size=40)


def split_pieces(pieces: list[str]) -> tuple[str, str, list[str], float | None]:
    splitter = MarkSplitter()
    fed = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    answer, reasoning = ("".join(part) for part in zip(*fed, strict=True))
    return answer, reasoning, list(splitter.signals), splitter.confidence


# ── pieces ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(TEXTS, st.lists(st.integers(0, 300), max_size=12))
@example("<answer>42</answer>", [4, 12])
@example("<think>hm</think>42", [1, 2, 3, 4, 5, 6, 7, 11, 16])
def test_a_streamed_text_is_split_like_the_whole_text(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert split_pieces(pieces) == split_pieces(list(text)) == split_pieces([text])


@given(st.text())
def test_a_text_without_marks_is_not_changed(text: str) -> None:
    text = text.replace("<", "")
    assert split_pieces(list(text)) == (text, "", [], None)
    assert split_marks(text) == SplitReply(text if text.strip() else "", "", (), None)


def test_text_that_cannot_be_a_mark_is_not_held_back() -> None:
    splitter = MarkSplitter()
    assert splitter.feed("if a < b and a <b") == ("if a < b and a <b", "")
    assert splitter.feed(" <an") == (" ", "")
    assert splitter.feed("d") == ("<and", "")


def test_text_that_may_become_a_mark_is_held_back_until_it_is_certain() -> None:
    splitter = MarkSplitter()
    assert splitter.feed("So: <answer confid") == ("So: ", "")
    assert splitter.feed('ence="0.75"') == ("", "")
    assert splitter.feed(">42") == ("42", "")
    assert (splitter.signals, splitter.confidence) == (["answered"], 0.75)


def test_held_back_text_is_returned_at_the_end() -> None:
    splitter = MarkSplitter()
    assert splitter.feed("1 <") == ("1 ", "")
    assert splitter.finish() == ("<", "")
    assert splitter.finish() == ("", "")


def test_a_tag_without_an_end_is_not_held_back_forever() -> None:
    splitter = MarkSplitter()
    returned = "".join(splitter.feed(piece)[0] for piece in ["<answer ", *["word "] * 100])
    assert len(returned) > 300


# ── marks ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "said", "signals", "confidence"),
    [
        ('<answer confidence="0.9">42</answer>', "42", ("answered",), 0.9),
        ("<answer confidence='0.9'>42</answer>", "42", ("answered",), 0.9),
        ("<answer confidence=0.9>42</answer>", "42", ("answered",), 0.9),
        ('<answer confidence="7">42</answer>', "42", ("answered",), 1.0),
        ('<answer confidence="0.9.1">42</answer>', "42", ("answered",), None),
        ('<answer confidence="high">42</answer>', "42", ("answered",), None),
        ("<answer>42", "42", ("answered",), None),
        ("<stuck>No key.</stuck>", "No key.", ("stuck",), None),
        ("<yield/>Your turn.", "Your turn.", ("yielded",), None),
        ("<uncertain>Perhaps.</uncertain> <uncertain>Or not.</uncertain>", "Perhaps. Or not.", ("uncertain",), None),
        ("<stuck></stuck>", "", ("stuck",), None),
        ("A <b>bold</b> <answers> tag", "A <b>bold</b> <answers> tag", (), None),
        ("  two spaces < kept  ", "  two spaces < kept  ", (), None),
        ("</answer>", "", (), None),
    ],
)
def test_marks_are_read_and_removed(text: str, said: str, signals: tuple[str, ...], confidence: float | None) -> None:
    assert split_marks(text) == SplitReply(said, "", signals, confidence)  # type: ignore[arg-type]


# ── reasoning ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "said", "reasoning"),
    [
        ("<think>hm</think>42", "42", "hm"),
        ("<thinking>\nhm\n</thinking>\n\n42", "42", "hm"),
        ("<reasoning>hm</reasoning> 42", "42", "hm"),
        ("a<think>hm</think>b<think>ha</think>c", "abc", "hmha"),
        ("<think>never closed", "", "never closed"),
        ("<think>half a tag </thi", "", "half a tag </thi"),
        ("<think/>42", "42", ""),
        ('<think depth="2">hm</think>42', "42", "hm"),
        ("hm, let me see</think>42", "42", "hm, let me see"),
        ("hm</think>4<think>ha</think>2", "42", "hm\nha"),
        ("<think>one <think>two</think>42", "42", "one two"),
        ('<think>Say <stuck> or <answer confidence="1">?</think>42', "42", 'Say <stuck> or <answer confidence="1">?'),
        ("I could say <stuck>.</think>42", "42", "I could say <stuck>."),
    ],
)
def test_reasoning_is_separated_from_the_answer_and_its_marks_are_no_signals(
    text: str, said: str, reasoning: str
) -> None:
    assert split_marks(text) == SplitReply(said, reasoning, (), None)


@pytest.mark.parametrize("text", ["", " ", "\n\n", " <answer> </answer> ", "<think>hm</think>\n"])
def test_a_blank_text_becomes_empty(text: str) -> None:
    assert split_marks(text).text == ""


@given(TEXTS)
def test_any_text_can_be_split_and_does_not_grow(text: str) -> None:
    split = split_marks(text)
    assert len(split.text) + len(split.reasoning) <= len(text)


def test_a_hostile_text_is_split_fast() -> None:
    began = time.process_time()
    words = ("<answer ", "<", "</think", "<answer a=")
    for text in ("<think" + " " * 100_000, *(word * (100_000 // len(word)) for word in words)):
        split_marks(text)
        split_pieces([text[:1000], text[1000:]])
    assert time.process_time() - began < 5


# ── cycles ─────────────────────────────────────────────────────────────────────────────────────────────────

TRAILS = {
    0: ["", "aa", "aaab", "aba", "ababc", "abcab", "abcdabcd"],
    1: ["aaa", "baaa"],
    2: ["abab", "xabab"],
    3: ["abcabc", "aabaab"],
}


@pytest.mark.parametrize(("trail", "period"), [(trail, period) for period in TRAILS for trail in TRAILS[period]])
def test_a_cycle_of_calls_is_found(trail: str, period: int) -> None:
    assert find_cycle([(letter, "{}") for letter in trail]) == period


def test_the_same_tool_with_other_arguments_is_no_cycle() -> None:
    assert find_cycle([("look", str(number)) for number in range(12)]) == 0
