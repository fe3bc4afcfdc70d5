"""What a model is shown of a tool's output: text or JSON, without control codes, cut between characters."""

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

from treadle.engine.observation import cut_output, remove_control_characters, render_result
from treadle.errors import BadInput
from treadle.messages import ImagePart
from treadle.tools.base import ToolResult

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


# ── results ────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_a_result_with_parts_keeps_them_and_says_how_it_went() -> None:
    image = ImagePart("aGk=")
    assert render_result(ToolResult("see\x1b[1m", (image,), ok=False)) == ("see", (image,), False)


def circle() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        ({(1, 2): 3}, "dict"),
        (lambda: 1, "function"),
        ((number for number in range(3)), "generator"),
        (circle(), "list"),
        ({"text": "\ud800"}, "dict"),
        (Point, "ModelMetaclass"),
        (re.compile("x"), "Pattern"),
    ],
)
def test_a_result_that_is_not_json_is_refused_with_what_to_return(value: object, kind: str) -> None:
    with pytest.raises(BadInput) as error:
        render_result(value)
    told = str(error.value)
    assert f"the tool returned a {kind}, which is not JSON" in told
    assert "It may have run." in told and "should return text" in told
    assert told.encode()


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
def test_escape_codes_are_taken_out_and_other_controls_are_shown(text: str, cleaned: str) -> None:
    assert remove_control_characters(text) == cleaned


ANY = st.text(alphabet=st.characters(codec=None) | st.sampled_from("\x1b[]\x07\\\r\n\x9bm;0"))


@given(ANY)
def test_whatever_a_tool_prints_comes_out_harmless_and_can_be_stored(text: str) -> None:
    cleaned = remove_control_characters(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", cleaned)
    assert msgspec.json.decode(msgspec.json.encode(cleaned)) == cleaned
    assert remove_control_characters(cleaned) == cleaned


@given(st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t")))
def test_plain_text_is_left_to_the_letter(text: str) -> None:
    assert remove_control_characters(text) == text


# ── cutting ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text(alphabet="aé中🎈\u0301", max_size=80) | st.text(max_size=80), st.integers(0, 100))
def test_text_is_cut_between_characters_and_what_is_left_out_is_counted(text: str, cap: int) -> None:
    head, tail, dropped = cut_output(text, cap)
    assert text.startswith(head) and text.endswith(tail)
    assert len(head) + dropped + len(tail) == len(text)
    fits = len(text.encode()) <= cap
    assert (dropped == 0) is fits
    if fits:
        assert (head, tail) == (text, "")
    else:
        assert len(head.encode()) + len(tail.encode()) <= cap
        # Nothing that would fit is left out: at most one character, of up to four bytes, at each cut.
        assert len(head.encode()) > cap * 2 // 3 - 4 and len(tail.encode()) > cap // 3 - 4


def test_the_beginning_and_the_end_are_kept() -> None:
    assert cut_output("a" * 60 + "b" * 60, 30) == ("a" * 20, "b" * 10, 90)
    assert cut_output("🎈" * 10, 15) == ("🎈🎈", "🎈", 7)


@pytest.mark.parametrize("piece", ["né 🎈 plain text ", "\x1b[31mred\x1b[0m text that goes on \x1b]never closed\n"])
def test_fifty_megabytes_are_dealt_with_in_a_moment(piece: str) -> None:
    text = piece * (50 * MEGABYTE // len(piece.encode()))
    began = time.process_time()
    head, tail, dropped = cut_output(remove_control_characters(text), 16 * 1024)
    assert time.process_time() - began < 10
    assert 16 * 1024 - 8 < len((head + tail).encode()) <= 16 * 1024 and dropped > MEGABYTE
