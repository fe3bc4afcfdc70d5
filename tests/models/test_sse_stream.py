"""Streams are cut into the same messages wherever the network cuts them."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from treadle.models import reply_reader
from treadle.models.reply_reader import MalformedStream, MessageDecoder, MessageStream


class Note(Struct):
    text: str = ""
    error: Any = None


NOTES = MessageDecoder(Note)
texts = st.lists(st.text(max_size=30), max_size=12)


def read(data: bytes, cuts: list[int] = [], **options: bool) -> tuple[list[str], bool]:  # noqa: B006
    stream = MessageStream(NOTES, **options)
    found: list[Note] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        if start < end:
            found += stream.feed(data[start:end])
    return [note.text for note in found + stream.finish()], stream.is_done


@given(texts, st.lists(st.integers(0, 5000), max_size=40), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_messages_are_the_same_wherever_the_bytes_are_cut(
    said: list[str], cuts: list[int], end: str, escaped: bool
) -> None:
    data = "".join(f"data: {json.dumps({'text': text}, ensure_ascii=escaped)}{end}{end}" for text in said).encode(
        "utf-8", "replace"
    )
    expected = [text.encode("utf-8", "replace").decode() for text in said]
    if any("\ud800" <= c <= "\udfff" for text in said for c in text):
        return
    assert read(data, cuts) == (expected, False)


@given(texts, st.lists(st.integers(0, 5000), max_size=40))
def test_json_lines_are_read_without_frames(said: list[str], cuts: list[int]) -> None:
    data = "\n".join(json.dumps({"text": text}) for text in said).encode()
    assert read(data, cuts, is_framed=False) == (said, False)


def test_a_message_over_many_lines_is_decoded_once() -> None:
    data = b'data:{"text":"a","error":[\n' + b"data:1,\n" * 100_000 + b"data:1]}\n\n"
    assert read(data) == (["a"], False)


A, B, DONE = b'data: {"text":"a"}\n\n', b'data: {"text":"b"}\n\n', b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("data", "expected", "is_done"),
    [
        pytest.param('data: {"text":"größer ✓"}\n\n'.encode() + DONE, ["größer ✓"], True, id="long characters"),
        pytest.param(b": WAIT\n\nevent: x\nid: 7\nretry: 3\n" + A + b": ping\n\n", ["a"], False, id="other fields"),
        pytest.param(b'data: {"text":\ndata: "a"}\n\n' + B, ["a", "b"], False, id="an event over several lines"),
        pytest.param(A.strip(), ["a"], False, id="no line break at the end"),
        pytest.param(rb'data: {"text":"\ud83d"}' + b"\n\n", ["?"], False, id="half a surrogate pair"),
        pytest.param(b"\xef\xbb\xbf\n " + A + B, ["a", "b"], False, id="a byte order mark"),
    ],
)
def test_a_stream_is_read_whole_and_byte_by_byte(data: bytes, expected: list[str], is_done: bool) -> None:
    assert read(data) == (expected, is_done)
    assert read(data, list(range(len(data)))) == (expected, is_done)


def test_data_after_the_end_is_not_read() -> None:
    assert read(A + DONE + B + b"data: x\n\n" * 5) == (["a"], True)


def test_a_document_instead_of_events_is_returned() -> None:
    stream = MessageStream(NOTES)
    for piece in (b" \n", b'{"text":\n', b'"a"}\n'):
        assert list(stream.feed(piece)) == []
    assert stream.finish() == []
    assert json.loads(stream.join_document() or b"") == {"text": "a"}
    events = MessageStream(NOTES)
    list(events.feed(b'data: {"text":"a"}\n\n{"text":"b"}'))
    assert events.join_document() is None


@pytest.mark.parametrize("start", [b"data: ", b'{"text":"'])
def test_a_message_without_end_is_an_error(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_reader, "_MOST_HELD", 1000)
    stream = MessageStream(NOTES)
    for _ in range(9):
        assert list(stream.feed(start + b"x" * 100)) == []
    with pytest.raises(MalformedStream, match="without the end of a message"):
        stream.feed(b"x" * 100)


@pytest.mark.parametrize(
    "data",
    [b'data: {"text": 7}\n\n', b'data: {"text": \n\n', b'data: {"text"\n\ndata: {"text":"b"}\n\n', b"data: <html>\n\n"],
)
def test_an_invalid_message_is_quoted_in_the_error(data: bytes) -> None:
    with pytest.raises(MalformedStream, match=r"text|html"):
        read(data)
