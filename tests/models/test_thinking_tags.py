"""Reasoning is separated from the answer wherever the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.models.reply_reader import ThinkSplitter, split_unopened_block


def split(pieces: list[str]) -> tuple[str, str]:
    splitter = ThinkSplitter()
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    return "".join(thought for thought, _ in parts), "".join(said for _, said in parts)


@given(st.text(alphabet="ab<>/think \n", max_size=30), st.lists(st.integers(0, 60), max_size=8), st.booleans())
def test_the_parts_are_the_same_wherever_the_text_is_cut(text: str, cuts: list[int], tagged: bool) -> None:
    whole = f"<think>{text}</think>{text}" if tagged else text
    edges = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(edges)]
    assert split(pieces) == split([whole])
    if not whole.lstrip().startswith("<think>"):
        assert split(pieces) == ("", whole)


@pytest.mark.parametrize(
    ("pieces", "reasoning", "text"),
    [
        pytest.param(["<think>a</think>", "\n", "\n\nb", "\nc"], "a", "b\nc", id="empty lines after a block"),
        pytest.param(["<think>all of it</thi"], "all of it</thi", "", id="a block without its end"),
        pytest.param(["<thi"], "", "<thi", id="a tag without its end"),
        pytest.param(["\n<think>"], "", "", id="a tag with nothing behind it"),
    ],
)
def test_a_block_is_separated(pieces: list[str], reasoning: str, text: str) -> None:
    assert split(pieces) == (reasoning, text)


def test_text_that_cannot_be_a_tag_is_not_held_back() -> None:
    splitter = ThinkSplitter()
    assert splitter.feed("H") == ("", "H")
    splitter = ThinkSplitter()
    assert splitter.feed("\n<think>a") == ("a", "")
    assert splitter.feed("b</th") == ("b", "")
    assert splitter.feed("ink>\n\nc") == ("", "c")
    assert splitter.feed("<think>d") == ("", "<think>d")


def test_a_missing_opening_tag_is_assumed() -> None:
    assert split_unopened_block("hm\n</think>\n\nyes") == ("hm", "yes")
    assert split_unopened_block("no tags") == ("", "no tags")
    assert split_unopened_block("see <think>x</think>") == ("", "see <think>x</think>")
