"""Anthropic's Messages: reading requests, and a stream that adds up to the whole message."""

import json
from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given
from hypothesis import strategies as st

from treadle.dialects.base import encode_frame
from treadle.dialects.messages_events import MessagesDialect
from treadle.dialects.messages_requests import (
    MessagesBody,
    ThinkingMode,
    build_messages_request,
    list_ignored_tools,
    simplify_request,
)
from treadle.errors import BadInput
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import Call, FilePart, ImagePart, ModelMessage, Reply, SignedReasoning, TextPart, Usage

MODES: tuple[ThinkingMode, ...] = ("off", "omitted", "shown")
texts = st.text(min_size=1, max_size=12)
arguments = st.dictionaries(texts, st.integers() | texts, max_size=3).map(json.dumps)


def read(*messages: Any, **fields: Any) -> Any:
    listed = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    return build_messages_request(msgspec.convert({"model": "m", "messages": listed, **fields}, MessagesBody))


def read_blocks(*blocks: Any) -> Any:
    return read({"role": "user", "content": list(blocks)}).messages[0].parts


@st.composite
def draw_events(draw: st.DrawFn) -> list[Any]:
    """The events of a reply: any order of reasoning, text and calls, in pieces, and the reply last."""
    events: list[Any] = []
    spoken, thought, calls = "", "", []
    is_signed = draw(st.booleans())
    for kind in draw(st.lists(st.sampled_from(("text", "reasoning", "call", "redacted")), max_size=6)):
        if kind == "text":
            pieces = draw(st.lists(texts, min_size=1, max_size=3))
            spoken += "".join(pieces)
            events += [TextDelta(text=piece) for piece in pieces]
        elif kind == "reasoning":
            piece = draw(texts)
            thought += piece
            events.append(ReasoningDelta(text=piece))
            block = {"type": "thinking", "thinking": piece, "signature": "c2ln"}
            events += [SignedReasoning(json.dumps(block))] if is_signed else []
        elif kind == "redacted" and is_signed:
            events.append(SignedReasoning('{"type":"redacted_thinking","data":"eA=="}'))
        elif kind == "call":
            written, cut = draw(arguments), draw(st.integers(0, 10))
            index = len(calls)
            calls.append(Call(f"call_{index}", "add", written))
            events.append(CallDelta(index=index, tool="add", arguments=written[:cut]))
            if draw(st.booleans()):
                events.append(CallDelta(index=index, arguments=written[cut:]))
    opaque = draw(st.sampled_from(("", '{"owner":"responses:x"}')))
    finish = "calls" if calls else "stop"
    return [*events, Reply(spoken, thought, tuple(calls), finish, Usage(9, 5, 2), "m", opaque)]


def feed_all(dialect: MessagesDialect, events: list[Any]) -> list[Any]:
    frames = list(dialect.begin())
    for event in events:
        frames += dialect.feed_block(event) if isinstance(event, SignedReasoning) else dialect.feed(event)
    return [json.loads(encode_frame(frame)) for frame in frames]


def add_up(frames: list[Any]) -> Any:
    """The message that Anthropic's own client makes of a stream."""
    message: Any = None
    pieces: dict[int, bytes] = {}
    for frame in frames:
        if frame["type"] != "ping":
            message = accumulate_event(event=frame, current_snapshot=message, json_bufs=pieces)
    return message.model_dump(exclude_unset=True, exclude={"stop_details"})  # the client adds it


@given(draw_events(), st.sampled_from(MODES))
def test_a_stream_adds_up_to_the_whole_message(events: list[Any], mode: ThinkingMode) -> None:
    frames = feed_all(MessagesDialect("msg_1", "m", mode), events)
    writer = MessagesDialect("msg_1", "m", mode)
    feed_all(writer, events[:-1])
    whole = json.loads(encode_frame(writer.complete_reply(events[-1])))
    assert add_up(frames) == whole
    opened: list[int] = []
    for frame in frames:  # one block at a time, in order
        if frame["type"] == "content_block_start":
            assert frame["index"] == len(opened)
            opened.append(1)
        elif frame["type"] == "content_block_stop":
            assert frame["index"] == len(opened) - 1 and opened[-1] == 1
            opened[-1] = 0
        elif frame["type"] == "content_block_delta":
            assert frame["index"] == len(opened) - 1 and opened[-1] == 1
    assert not any(opened) and frames[-1]["type"] == "message_stop"
    calls = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert [block["input"] for block in calls] == [json.loads(call.arguments) for call in events[-1].calls]
    assert len({block["id"] for block in calls}) == len(calls)


@given(draw_events())
def test_the_state_of_a_reply_comes_back_with_the_echo(events: list[Any]) -> None:
    writer = MessagesDialect("msg_1", "m", "shown")
    feed_all(writer, events[:-1])
    reply = events[-1]
    content = json.loads(encode_frame(writer.complete_reply(reply)))["content"]
    if not content:
        return
    echoed = read("hi", {"role": "assistant", "content": content}).messages[1]
    assert echoed.text == reply.text and [call.tool for call in echoed.calls] == [call.tool for call in reply.calls]
    if any(isinstance(event, SignedReasoning) for event in events):
        sent = [json.loads(event.block) for event in events if isinstance(event, SignedReasoning)]
        kept = [item for item in json.loads(echoed.opaque)["items"] if "thinking" in item["type"]]
        assert kept == sent
    else:
        assert echoed.opaque == reply.opaque


def test_a_call_found_in_the_text_is_not_text_in_the_whole_message() -> None:
    writer = MessagesDialect("msg_1", "m")
    feed_all(writer, [TextDelta(text='{"name":"add"}')])
    whole = writer.complete_reply(Reply("", calls=(Call("1", "add"),), finish="calls"))
    assert [block.type for block in whole.content] == ["tool_use"]


def test_arguments_that_are_no_object_reach_the_client_as_one() -> None:
    whole = MessagesDialect("msg_1", "m").complete_reply(Reply(calls=(Call("1", "add", "[1"), Call("2", "add", ""))))
    inputs = [json.loads(bytes(block.input)) for block in whole.content]  # type: ignore[union-attr]
    assert inputs == [{"invalid_arguments": "[1"}, {}]


def test_every_kind_of_content_is_read() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QUJD"}}
    linked = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}}
    text = {"type": "document", "title": "notes", "source": {"type": "text", "media_type": "text/plain", "data": "ABC"}}
    assert read_blocks({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, image, linked) == (
        TextPart("a"),
        ImagePart("QUJD", "image/gif"),
        ImagePart(url="https://example.org/a.png"),
    )
    assert read_blocks(pdf, text) == (
        FilePart("document", "QUJD", "application/pdf"),
        FilePart("notes", "QUJD", "text/plain"),
    )
    (unknown,) = read_blocks({"type": "container_upload", "file_id": "f"})
    assert "container_upload" in unknown.text, "the model reads that something is missing"
    with pytest.raises(BadInput, match="base64"):
        read_blocks({"type": "image", "source": {"type": "base64", "data": "?"}})


def test_a_result_without_its_call_is_refused() -> None:
    result = {"type": "tool_result", "tool_use_id": "nope", "content": "x"}
    with pytest.raises(BadInput, match="nope"):
        read({"role": "user", "content": [result]})


def test_the_options_of_one_protocol_go_to_that_protocol_alone() -> None:
    thinking = {"type": "enabled", "budget_tokens": 9000, "display": "omitted"}
    request = read("hi", thinking=thinking, metadata={"user_id": "u"}, service_tier="auto", top_k=5)
    assert request.sampling.extra == {
        "anthropic": {"thinking": thinking, "metadata": {"user_id": "u"}, "service_tier": "auto"},
        "chat": {"reasoning_effort": "medium"},
        "responses": {"reasoning": {"effort": "medium"}},
        "top_k": 5,
    }
    simpler = simplify_request(request)
    assert simpler is not None
    assert simpler.sampling.extra == {"anthropic": {"metadata": {"user_id": "u"}}, "top_k": 5}
    assert simplify_request(simpler) is None
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "schema": schema}
    assert read("hi", output_format=form).output_schema == read("hi", output_config={"format": form}).output_schema
    assert read("hi", output_format=form).output_schema == schema


def test_the_choice_of_tools_is_read() -> None:
    tools = [{"name": "add", "input_schema": {"type": "object"}}, {"name": "sub", "input_schema": {"type": "object"}}]
    for given_type, wanted in (("auto", "auto"), ("any", "required"), ("none", "none")):
        request = read("hi", tools=tools, tool_choice={"type": given_type})
        assert (request.tool_choice, len(request.tools)) == (wanted, 2)
    request = read("hi", tools=tools, tool_choice={"type": "tool", "name": "sub"})
    assert (request.tool_choice, [tool.name for tool in request.tools]) == ("required", ["sub"])
    with pytest.raises(BadInput, match="tool_choice"):
        read("hi", tools=tools, tool_choice={"type": "some"})
    with pytest.raises(BadInput, match="name"):
        read("hi", tools=[{"input_schema": {}}])


def test_tools_that_only_anthropic_can_run_are_listed_by_name_or_type() -> None:
    body: Any = {
        "model": "m",
        "messages": [],
        "tools": [{"type": "bash_20250124", "name": "bash"}, {"type": "x"}, {"name": "own"}],
    }
    assert list_ignored_tools(msgspec.convert(body, MessagesBody)) == ["bash", "x"]


def test_texts_of_a_reply_are_joined_and_other_blocks_ignored() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "server_tool_use", "id": "1"}, {"type": "text", "text": "b"}]
    assert read("hi", {"role": "assistant", "content": content}, "more").messages[1] == ModelMessage("ab")
