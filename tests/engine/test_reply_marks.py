"""Marks and leaked reasoning in a model's text, the same whole or in pieces; calls that go round in circles."""

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.engine.reply_marks import MarkSplitter, SplitReply, find_cycle, split_marks

PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<thinking>",
        "</thinking>",
        "<reasoning>",
        "</reasoning>",
        "<think/>",
        "<answer>",
        "</answer>",
        '<answer confidence="0.9">',
        "<answer confidence=0.5 />",
        "<uncertain>",
        "<stuck>",
        "<yield/>",
        "</stuck>",
        "<",
        "</",
        "<a",
        "<answers>",
        "<answer " + "x" * 130 + ">",
        "<answer a='" + "b" * 107 + "'>",
        "<answer a='" + "b" * 108 + "'>",
        "<answer a='" + "b" * 150 + "'>",
        ">",
        "/>",
        "1 < 2",
        "x\n",
        " so 🎈 ",
        "é",
    ]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join) | st.text(alphabet="<>/answer think='\n", max_size=40)


def in_pieces(pieces: list[str]) -> tuple[str, str, list[str], float | None]:
    strainer = MarkSplitter()
    fed = [strainer.feed(piece) for piece in pieces] + [strainer.finish()]
    answer, reasoning = ("".join(part) for part in zip(*fed, strict=True))
    return answer, reasoning, list(strainer.signals), strainer.confidence


# ── pieces ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(TEXTS, st.lists(st.integers(0, 300), max_size=12))
@example("<answer>42</answer>", [4, 12])
@example("<think>hm</think>42", [1, 2, 3, 4, 5, 6, 7, 11, 16])
def test_a_text_in_pieces_is_strained_as_the_whole(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert in_pieces(pieces) == in_pieces([text])


@given(TEXTS)
def test_a_text_in_single_characters_is_strained_as_the_whole(text: str) -> None:
    assert in_pieces(list(text)) == in_pieces([text])


@given(st.text())
def test_a_text_without_marks_is_passed_on_to_the_letter(text: str) -> None:
    text = text.replace("<", "")
    assert in_pieces(list(text)) == (text, "", [], None)
    assert split_marks(text) == SplitReply(text if text.strip() else "", "", (), None)


def test_what_cannot_be_a_mark_is_passed_on_at_once() -> None:
    strainer = MarkSplitter()
    assert strainer.feed("if a < b and a <b") == ("if a < b and a <b", "")
    assert strainer.feed(" <an") == (" ", "")
    assert strainer.feed("d") == ("<and", "")


def test_what_may_become_a_mark_is_held_back_until_it_is_clear() -> None:
    strainer = MarkSplitter()
    assert strainer.feed("So: <answer confid") == ("So: ", "")
    assert strainer.feed('ence="0.75"') == ("", "")
    assert strainer.feed(">42") == ("42", "")
    assert (strainer.signals, strainer.confidence) == (["answered"], 0.75)


def test_what_was_held_back_at_the_end_is_given_back() -> None:
    strainer = MarkSplitter()
    assert strainer.feed("1 <") == ("1 ", "")
    assert strainer.finish() == ("<", "")
    assert strainer.finish() == ("", "")


def test_a_tag_that_is_never_closed_is_not_held_back_for_ever() -> None:
    strainer = MarkSplitter()
    given_back = "".join(strainer.feed(piece)[0] for piece in ["<answer ", *["word "] * 100])
    assert len(given_back) > 300


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
def test_marks_are_read_and_taken_out(text: str, said: str, signals: tuple[str, ...], confidence: float | None) -> None:
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
    ],
)
def test_leaked_reasoning_is_kept_apart_from_the_answer(text: str, said: str, reasoning: str) -> None:
    assert split_marks(text) == SplitReply(said, reasoning, (), None)


def test_a_mark_inside_reasoning_is_only_talked_about() -> None:
    text = '<think>Should I say <stuck> or <answer confidence="0.1">?</think>42'
    assert split_marks(text) == SplitReply("42", 'Should I say <stuck> or <answer confidence="0.1">?', (), None)


def test_a_mark_in_a_leaked_prefix_is_only_talked_about() -> None:
    assert split_marks("I could say <stuck>.</think>42") == SplitReply("42", "I could say <stuck>.", (), None)


@pytest.mark.parametrize("text", ["", " ", "\n\n", " <answer> </answer> ", "<think>hm</think>\n"])
def test_a_text_of_blanks_says_nothing(text: str) -> None:
    assert split_marks(text).text == ""


@given(TEXTS)
def test_any_text_can_be_strained_and_gains_nothing(text: str) -> None:
    strained = split_marks(text)
    assert len(strained.text) + len(strained.reasoning) <= len(text)


def test_straining_a_hostile_text_takes_no_time_to_speak_of() -> None:
    began = time.process_time()
    for text in (
        "<answer " * 20_000,
        "<think" + " " * 200_000,
        "<" * 200_000,
        "</think" * 30_000,
        "<answer a=" * 20_000,
    ):
        split_marks(text)
        in_pieces([text[:1000], text[1000:]])
    assert time.process_time() - began < 5


# ── circles ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("trail", "period"),
    [
        ("", 0),
        ("aa", 0),
        ("aaa", 1),
        ("baaa", 1),
        ("aaab", 0),
        ("aba", 0),
        ("abab", 2),
        ("xabab", 2),
        ("ababc", 0),
        ("abcabc", 3),
        ("abcab", 0),
        ("aabaab", 3),
        ("abcdabcd", 0),
    ],
)
def test_calls_that_go_round_in_circles_are_seen(trail: str, period: int) -> None:
    assert find_cycle([(letter, "{}") for letter in trail]) == period


def test_the_same_tool_with_other_arguments_is_no_circle() -> None:
    assert find_cycle([("look", str(number)) for number in range(12)]) == 0
