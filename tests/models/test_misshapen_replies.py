"""What a server sends may have any shape: it ends in a reply, or in a failure that says whose it was."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ADD, PROTOCOLS, ask, chat_model, collect_reply
from tests.kit.fakes.server import Odd, events
from treadle.errors import ModelError
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


WAYS: dict[str, tuple[list[Any], Callable[..., bytes], Any, Any]] = {
    "chat": (CHAT, events, *PROTOCOLS["chat"]),
    "anthropic": (ANTHROPIC, events, *PROTOCOLS["anthropic"]),
    "responses": (RESPONSES, events, *PROTOCOLS["responses"]),
    "ollama": (OLLAMA, lines, *PROTOCOLS["ollama"]),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document something stands."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def spoilt(items: list[Any], path: tuple[Any, ...], instead: Any) -> list[Any]:
    copy = json.loads(json.dumps(items))
    target = copy
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = instead
    return copy


def read(wire: WireFormat, body: bytes) -> Reply | None:
    """What a reader makes of a body, without a network; None for the failures that a model tells as its own."""
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
    items, write, _, make = WAYS[way]
    wire = make("http://127.0.0.1:9")._wire
    assert read(wire, write(*items)) is not None
    instead = data.draw(st.sampled_from([None, 0, -1, 1.5, "", "x", [], {}, [None], {"a": 1}, True, 10**30]))
    read(wire, write(*spoilt(items, data.draw(st.sampled_from(list(places(items)))), instead)))


@pytest.mark.parametrize(
    ("way", "path", "instead"),
    [
        ("anthropic", (5, "content_block"), ["no block"]),
        ("anthropic", (5, "content_block", "name"), 7),
        ("responses", (1, "item"), "no item"),
        ("responses", (3, "item", "arguments"), 7),
    ],
)
async def test_a_wrong_value_deeper_in_a_message_is_the_providers_error(
    way: str, path: tuple[Any, ...], instead: Any
) -> None:
    items, write, fake, make = WAYS[way]
    async with fake([Odd(raw=write(*spoilt(items, path, instead)))]) as server:
        with pytest.raises(ModelError, match="does not speak its protocol") as caught:
            await collect_reply(make(server), ask("hi", tools=(ADD,)))
    assert (caught.value.kind, caught.value.retryable) == ("network", True)


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
        ("responses", (2, "output_index"), None),
        ("ollama", (0, "message", "tool_calls", 0, "id"), None),
        ("ollama", (0, "done"), None),
    ],
)
async def test_values_that_can_only_mean_one_thing_are_accepted(way: str, path: tuple[Any, ...], instead: Any) -> None:
    items, write, fake, make = WAYS[way]
    async with fake([Odd(raw=write(*spoilt(items, path, instead)))]) as server:
        reply = await collect_reply(make(server), ask("hi", tools=(ADD,)))
    assert reply.text == "so"
    assert [(call.tool, json.loads(call.arguments)) for call in reply.calls] == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("way", WAYS)
async def test_invalid_utf8_is_replaced_and_no_error(way: str) -> None:
    items, write, fake, make = WAYS[way]
    async with fake([Odd(raw=write(*items).replace(b'"so"', b'"s\xff\xe9o"'))]) as server:
        reply = await collect_reply(make(server), ask("hi", tools=(ADD,)))
    assert reply.text.startswith("s�")


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/plain"])
@pytest.mark.parametrize(
    ("way", "whole"),
    [
        ("chat", {"choices": [{"index": 0, "message": {"content": "so"}, "finish_reason": "stop"}]}),
        ("anthropic", {"type": "message", "content": [{"type": "text", "text": "so"}], "stop_reason": "end_turn"}),
        ("responses", {"status": "completed", "output": [ITEMS[1]]}),
    ],
)
async def test_the_content_type_of_a_response_does_not_matter(way: str, whole: Any, content_type: str) -> None:
    items, write, fake, make = WAYS[way]
    blank = b"\xef\xbb\xbf\r\n  "
    refused = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    bodies = [
        write(*items),
        b": a comment\n\n" + write(*items),
        blank + write(*items),
        blank + json.dumps(whole, indent=1).encode(),
        json.dumps(refused).encode(),
    ]
    async with fake([Odd(raw=body, content_type=content_type) for body in bodies]) as server:
        model = make(server)
        for _ in bodies[:-1]:
            assert (await collect_reply(model, ask("hi", tools=(ADD,)))).text == "so"
        with pytest.raises(ModelError, match="slow down") as caught:
            await collect_reply(model, ask("hi"))
    assert (caught.value.kind, caught.value.retryable) == ("overloaded", True)


PROXYS = {"error": {"type": "invalid_request_error", "message": "what was wrong"}}


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("chat", PROXYS),
        ("anthropic", PROXYS),
        ("responses", PROXYS),
        ("chat", {"object": "error", "message": "what was wrong", "code": 400}),
    ],
)
async def test_a_proxys_own_error_is_reported_in_every_protocol(way: str, error: dict[str, Any]) -> None:
    items, write, fake, make = WAYS[way]
    async with fake([Odd(raw=write(items[0], error))]) as server:
        with pytest.raises(ModelError, match="what was wrong") as caught:
            await collect_reply(make(server), ask("hi", tools=(ADD,)))
    assert (caught.value.kind, caught.value.retryable) == ("bad_request", False)


@pytest.mark.parametrize("way", ["anthropic", "responses"])
async def test_unknown_events_may_have_any_shape(way: str) -> None:
    items, write, fake, make = WAYS[way]
    new = {"type": "shiny", "delta": "x", "index": "y", "message": 7, "output_index": [], "response": "z", "item": 1}
    async with fake([Odd(raw=write(items[0], new, *items[1:]))]) as server:
        assert (await collect_reply(make(server), ask("hi", tools=(ADD,)))).text == "so"


@pytest.mark.parametrize(("way", "count"), [("chat", 1), ("anthropic", 5), ("responses", 3), ("ollama", 1)])
async def test_a_stream_that_ends_early_is_no_reply(way: str, count: int) -> None:
    items, write, fake, make = WAYS[way]
    async with fake([Odd(raw=write(*items[:count]))]) as server:
        with pytest.raises(ModelError, match="before the reply was complete") as caught:
            await collect_reply(make(server), ask("hi", tools=(ADD,)))
    assert (caught.value.kind, caught.value.retryable, caught.value.partial) == ("network", True, "so")


async def test_text_before_invalid_data_is_kept() -> None:
    async with StrictChat([Odd(raw=events(CHAT[0]) + b"data: [1]\n\n")]) as fake:
        with pytest.raises(ModelError) as caught:
            await collect_reply(chat_model(fake), ask("hi"))
    assert caught.value.partial == "so"
