"""Reasoning is separated from the answer wherever the text is cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from treadle.models.reply_reader import ThinkSplitter


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


def test_text_that_cannot_be_a_tag_is_not_held_back() -> None:
    splitter = ThinkSplitter()
    assert splitter.feed("H") == ("", "H")
    splitter = ThinkSplitter()
    assert splitter.feed("\n<think>a") == ("a", "")
    assert splitter.feed("b</th") == ("b", "")
    assert splitter.feed("ink>\n\nc") == ("", "c")
    assert splitter.feed("<think>d") == ("", "<think>d")
