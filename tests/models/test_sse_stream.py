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


def test_every_byte_may_arrive_alone() -> None:
    data = 'data: {"text":"größer ✓"}\n\ndata: [DONE]\n\n'.encode()
    assert read(data, list(range(len(data)))) == (["größer ✓"], True)


def test_comments_names_and_ids_are_skipped() -> None:
    data = b': OPENROUTER PROCESSING\n\nevent: x\nid: 7\nretry: 3\ndata:{"text":"a"}\n\n: ping\n\n'
    assert read(data) == (["a"], False)


def test_an_event_may_take_several_lines() -> None:
    assert read(b'data: {"text":\ndata: "a"}\n\ndata: {"text":"b"}\n\n') == (["a", "b"], False)
    assert read(b'data: {"text":\ndata: "a"}\n\n', [14, 15, 16]) == (["a"], False)


def test_data_after_the_end_is_not_read() -> None:
    assert read(b'data: {"text":"a"}\n\ndata: [DONE]\n\ndata: {"text":"b"}\n\n' + b"data: x\n\n" * 5) == (["a"], True)


def test_the_last_line_may_lack_its_line_break() -> None:
    assert read(b'data: {"text":"a"}') == (["a"], False)


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert read(rb'data: {"text":"\ud83d"}' + b"\n\n") == (["?"], False)


def test_a_byte_order_mark_does_not_hide_the_first_event() -> None:
    data = b'\xef\xbb\xbf\n data: {"text":"a"}\n\ndata: {"text":"b"}\n\n'
    assert read(data) == (["a", "b"], False)
    assert read(data, list(range(len(data)))) == (["a", "b"], False)


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
