"""A response of any shape ends in a reply, or in an error that names the provider."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.fakes.clients import ADD, PROTOCOLS, ask, collect_events, collect_failure, read_failure, read_reply
from tests.kit.fakes.server import Odd, events
from treadle.errors import ModelError
from treadle.events import TextDelta
from treadle.messages import Reply
from treadle.models.failures import ReportedFailure
from treadle.models.reply_reader import MalformedStream
from treadle.models.wire_format import WireFormat

CALL = {"id": "c", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
CHAT: list[Any] = [
    {
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "so", "reasoning_details": [{"type": "t", "text": "a"}]}}],
    },
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, **CALL}]}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
]
ANTHROPIC: list[Any] = [
    {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "so"}},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "c", "name": "add"}},
    {"type": "content_block_delta", "index": 2, "delta": {"partial_json": '{"a":1,"b":2}'}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]
ITEMS: list[Any] = [
    {"type": "reasoning", "summary": [{"text": "hm"}], "encrypted_content": "e"},
    {"type": "message", "content": [{"type": "output_text", "text": "so"}]},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":1,"b":2}'},
]
BLOCKS = [{"type": "text", "text": "so"}, {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1, "b": 2}}]
RESPONSES: list[Any] = [
    {"type": "response.output_item.added", "output_index": 2, "item": ITEMS[2]},
    *({"type": "response.output_item.done", "output_index": place, "item": item} for place, item in enumerate(ITEMS)),
    {
        "type": "response.completed",
        "response": {"status": "completed", "output": ITEMS, "usage": {"input_tokens": 1, "output_tokens": 2}},
    },
]
OLLAMA: list[Any] = [
    {"message": {"content": "so", "thinking": "hm", "tool_calls": [CALL]}, "done": False},
    {"message": {"content": ""}, "done": True, "done_reason": "stop", "eval_count": 2, "prompt_eval_count": 1},
]


def lines(*items: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


WAYS: dict[str, tuple[list[Any], Callable[..., bytes]]] = {
    "chat": (CHAT, events),
    "anthropic": (ANTHROPIC, events),
    "responses": (RESPONSES, events),
    "ollama": (OLLAMA, lines),
}


def list_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document something stands."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from list_places(inner, (*path, key))


def replace_value(items: list[Any], path: tuple[Any, ...], instead: Any) -> list[Any]:
    copy = json.loads(json.dumps(items))
    target = copy
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = instead
    return copy


def read(wire: WireFormat, body: bytes) -> Reply | None:
    """Read a body without a network. None stands for the failures that a model turns into its own errors."""
    reader = wire.open_reader(ask("hi", tools=(ADD,)), 100)
    try:
        list(reader.feed(body))
        list(reader.finish())
        return reader.build_reply()
    except (ModelError, MalformedStream, ReportedFailure, msgspec.DecodeError, UnicodeDecodeError):
        return None


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=150)
@given(data=st.data())
def test_any_value_in_any_place_is_a_reply_or_a_failure(way: str, data: st.DataObject) -> None:
    items, write = WAYS[way]
    wire = PROTOCOLS[way].model("http://127.0.0.1:9")._wire
    assert read(wire, write(*items)) is not None
    instead = data.draw(st.sampled_from([None, 0, -1, 1.5, "", "x", [], {}, [None], {"a": 1}, True, 10**30]))
    read(wire, write(*replace_value(items, data.draw(st.sampled_from(list(list_places(items)))), instead)))


@pytest.mark.parametrize(
    ("way", "raw", "partial"),
    [
        ("anthropic", events(*replace_value(ANTHROPIC, (5, "content_block"), ["no block"])), "so"),
        ("anthropic", events(*replace_value(ANTHROPIC, (5, "content_block", "name"), 7)), "so"),
        ("anthropic", events(ANTHROPIC[0], ANTHROPIC[4]), ""),
        ("responses", events(*replace_value(RESPONSES, (1, "item"), "no item")), ""),
        ("responses", events(*replace_value(RESPONSES, (3, "item", "arguments"), 7)), "so"),
        ("chat", events(CHAT[0]) + b"data: [1]\n\n", "so"),
        ("chat", events(CHAT[0]) + b"data: {nonsense\n\ndata: {}\n\n", "so"),
    ],
)
async def test_a_wrong_value_is_the_providers_error_and_the_text_before_it_is_kept(
    way: str, raw: bytes, partial: str
) -> None:
    error = await read_failure(way, Odd(raw=raw), tools=(ADD,))
    assert "does not speak its protocol" in str(error)
    assert (error.kind, error.retryable, error.partial) == ("network", True, partial)


@pytest.mark.parametrize("way", WAYS)
async def test_usage_is_estimated_where_a_server_does_not_count(way: str) -> None:
    items, write = WAYS[way]
    raw = write(*items).replace(b'"usage"', b'"other"').replace(b"eval_count", b"other")
    usage = (await read_reply(way, Odd(raw=raw), tools=(ADD,))).usage
    assert usage.estimated and usage.input_tokens > 20 and usage.output_tokens > 1


@pytest.mark.parametrize(
    ("way", "path", "instead"),
    [
        ("chat", (0, "choices", 0, "index"), None),
        ("chat", (1, "choices", 0, "delta", "tool_calls", 0, "id"), 7),
        ("chat", (0, "choices", 0, "delta", "reasoning_details", 0), "odd"),
        ("chat", (2, "usage", "prompt_tokens"), 1.0),
        ("anthropic", (5, "content_block", "id"), None),
        ("responses", (0, "item", "arguments"), None),
        ("responses", (3, "item", "arguments"), {"a": 1, "b": 2}),
        ("responses", (1, "item", "summary", 0, "text"), None),
        ("responses", (4, "response", "usage", "input_tokens"), None),
        ("responses", (4, "response", "usage", "cost"), {"currency": "USD", "total_cost": 0.01}),
        ("responses", (2, "output_index"), None),
        ("anthropic", (7, "usage", "cost"), "0.01"),
        ("ollama", (0, "message", "tool_calls", 0, "id"), None),
        ("ollama", (0, "done"), None),
    ],
)
async def test_values_that_can_only_mean_one_thing_are_accepted(way: str, path: tuple[Any, ...], instead: Any) -> None:
    items, write = WAYS[way]
    reply = await read_reply(way, Odd(raw=write(*replace_value(items, path, instead))), tools=(ADD,))
    assert reply.text == "so"
    assert [(call.tool, json.loads(call.arguments)) for call in reply.calls] == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("way", WAYS)
async def test_invalid_utf8_is_replaced_and_no_error(way: str) -> None:
    items, write = WAYS[way]
    reply = await read_reply(way, Odd(raw=write(*items).replace(b'"so"', b'"s\xff\xe9o"')), tools=(ADD,))
    assert reply.text.startswith("s�")


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/plain"])
@pytest.mark.parametrize(
    ("way", "whole"),
    [
        ("chat", {"choices": [{"message": {"content": "so", "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]}),
        ("anthropic", {"type": "message", "content": BLOCKS, "stop_reason": "tool_use", "usage": {"input_tokens": 5}}),
        ("responses", {"status": "completed", "output": ITEMS, "error": None}),
    ],
)
async def test_a_stream_or_a_document_is_read_whatever_its_content_type(
    way: str, whole: Any, content_type: str
) -> None:
    items, write = WAYS[way]
    blank = b"\xef\xbb\xbf\r\n  "
    refused = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    bodies = [
        write(*items),
        b": a comment\n\n" + write(*items),
        blank + write(*items),
        blank + json.dumps(whole, indent=1).encode(),
        json.dumps(refused).encode(),
    ]
    async with PROTOCOLS[way].fake([Odd(raw=body, content_type=content_type) for body in bodies]) as server:
        model = PROTOCOLS[way].model(server)
        for body in bodies[:-1]:
            *deltas, reply = await collect_events(model, ask("hi", tools=(ADD,)))
            assert isinstance(reply, Reply)
            calls = [(call.id, call.tool, json.loads(call.arguments)) for call in reply.calls]
            assert (reply.text, calls, reply.finish) == ("so", [("c", "add", {"a": 1, "b": 2})], "calls")
            assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "so"
            assert reply.usage.estimated == (b'_tokens"' not in body)
        error = await collect_failure(model)
    assert "slow down" in str(error)
    assert (error.kind, error.retryable) == ("overloaded", True)


PROXY_ERROR = {"error": {"type": "invalid_request_error", "message": "what was wrong"}}


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("chat", PROXY_ERROR),
        ("anthropic", PROXY_ERROR),
        ("responses", PROXY_ERROR),
        ("chat", {"object": "error", "message": "what was wrong", "code": 400}),
    ],
)
async def test_a_proxys_own_error_is_reported_in_every_protocol(way: str, error: dict[str, Any]) -> None:
    items, write = WAYS[way]
    failure = await read_failure(way, Odd(raw=write(items[0], error)), tools=(ADD,))
    assert "what was wrong" in str(failure)
    assert (failure.kind, failure.retryable) == ("bad_request", False)


@pytest.mark.parametrize("way", ["anthropic", "responses"])
async def test_unknown_events_may_have_any_shape(way: str) -> None:
    items, write = WAYS[way]
    new = {"type": "shiny", "delta": "x", "index": "y", "message": 7, "output_index": [], "response": "z", "item": 1}
    assert (await read_reply(way, Odd(raw=write(items[0], new, *items[1:])), tools=(ADD,))).text == "so"


@pytest.mark.parametrize(("way", "count"), [("chat", 1), ("anthropic", 5), ("responses", 3), ("ollama", 1)])
async def test_a_stream_that_ends_early_is_no_reply(way: str, count: int) -> None:
    items, write = WAYS[way]
    error = await read_failure(way, Odd(raw=write(*items[:count])), tools=(ADD,))
    assert "before the reply was complete" in str(error)
    assert (error.kind, error.retryable, error.partial) == ("network", True, "so")
