"""OpenAI's formats: reading requests, and writing replies and runs."""

from typing import Any

import msgspec
import pytest

from tests.kit import recorded_runs as recordings
from tests.kit.recorded_runs import encode, translate
from treadle.dialects.openai_chat import ChatChunkDialect, TextChunkDialect
from treadle.dialects.openai_requests import ChatBody, CompletionBody, build_chat_request, build_completion_request
from treadle.dialects.request_content import build_agent_message
from treadle.dialects.responses_events import ResponsesDialect
from treadle.dialects.responses_objects import ResponseObject
from treadle.dialects.responses_requests import (
    ConversationReader,
    ResponsesBody,
    build_responses_request,
    list_items,
    read_tool_table,
)
from treadle.errors import BadInput
from treadle.events import RunFinished, TextDelta
from treadle.messages import (
    Call,
    FilePart,
    ImagePart,
    ModelMessage,
    Reply,
    ResultMessage,
    TextPart,
    Usage,
    UserMessage,
    render_parts,
)

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
CALLS = Reply("", calls=(Call("c1", "add", '{"a":1}'),), finish="calls", usage=Usage(5, 2))


def chat(**fields: Any) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return build_chat_request(msgspec.convert(body, ChatBody), {})


def responses(**fields: Any) -> Any:
    body = msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesBody)
    items = list_items(body.input)
    conversation = ConversationReader(tools := read_tool_table(body, items))
    conversation.add_items(items)
    return build_responses_request(body, conversation, tools)


def open_response(model: str = "m") -> ResponsesDialect:
    return ResponsesDialect(ResponseObject("resp_1", 1, model))


def test_a_conversation_with_a_call_is_read() -> None:
    request = chat(
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
            {"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
        tools=[TOOL],
        max_tokens=5,
        temperature=0.5,
        stop="END",
    )
    assert request.system == "be brief\n\nbe kind"
    user, model, result = request.messages
    assert user == UserMessage((TextPart("1+1?"),))
    assert model == ModelMessage("", (Call("c1", "add", '{"a":1}'),))
    assert result == ResultMessage("c1", "add", "2")
    assert (request.max_tokens, request.sampling.temperature, request.sampling.stop) == (5, 0.5, ("END",))
    assert [tool.name for tool in request.tools] == ["add"]


def test_files_come_with_their_names_as_data_or_as_bare_base64() -> None:
    for data, media in (("data:text/plain;base64,aGk=", "text/plain"), ("aGk=", "application/octet-stream")):
        part = {"type": "file", "file": {"filename": "a.txt", "file_data": data}}
        item = {"type": "input_file", "filename": "a.txt", "file_data": data}
        for asked in (
            chat(messages=[{"role": "user", "content": [part]}]),
            responses(input=[{"role": "user", "content": [item]}]),
        ):
            assert asked.messages[0].parts == (FilePart("a.txt", "aGk=", media),)


def test_images_come_as_data_or_by_address() -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    (message,) = chat(messages=[{"role": "user", "content": content}]).messages
    assert message.parts == (ImagePart("AAAA", "image/jpeg"), ImagePart(url="https://example.org/a.png"))


@pytest.mark.parametrize(
    ("choice", "names", "meant"),
    [
        (None, ["add", "sub"], "auto"),
        ("none", ["add", "sub"], "none"),
        ("required", ["add", "sub"], "required"),
        ({"type": "function", "function": {"name": "sub"}}, ["sub"], "required"),
    ],
)
def test_the_choice_of_tools_is_honoured(choice: Any, names: list[str], meant: str) -> None:
    other = {"type": "function", "function": {"name": "sub"}}
    request = chat(tools=[TOOL, other], tool_choice=choice)
    assert ([tool.name for tool in request.tools], request.tool_choice) == (names, meant)


def test_a_schema_for_the_answer_is_read_from_both_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert chat(response_format=given).output_schema == schema
    assert chat(response_format={"type": "json_object"}).output_schema == {"type": "object"}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    assert responses(text=form).output_schema == schema


@pytest.mark.parametrize(
    ("build", "fields", "named"),
    [
        (chat, {"messages": []}, "messages"),
        (chat, {"messages": [{"role": "system", "content": "x"}]}, "messages"),
        (chat, {"messages": [{"role": "tool", "tool_call_id": "zz", "content": "x"}]}, "tool_call_id"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "smell"),
        (
            chat,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "file:///x"}]}]},
            "image_url",
        ),
        (chat, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:a,%"}]}]}, "base64"),
        (chat, {"max_tokens": -1}, "max_tokens"),
        (chat, {"tool_choice": "perhaps"}, "tool_choice"),
        (chat, {"tool_choice": {"function": {"name": "fly"}}}, "tool_choice"),
        (chat, {"response_format": {"type": "xml"}}, "response_format"),
        (chat, {"response_format": {"type": "json_schema"}}, "response_format"),
        (responses, {"tools": [{"type": "function"}]}, "needs a name"),
        (responses, {"input": [{"type": "poem"}]}, "poem"),
        (responses, {"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "call_id"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(build: Any, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        build(**fields)


def test_the_items_of_responses_are_read_as_one_conversation() -> None:
    request = responses(
        instructions="be brief",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
        ],
        tools=[{"type": "function", "name": "add", "parameters": {"type": "object"}}],
    )
    assert request.system == "be brief"
    assert request.messages[1] == ModelMessage("let me see", (Call("c1", "add", "{}"),))
    assert request.messages[2] == ResultMessage("c1", "add", "2")


def test_an_agent_gets_the_earlier_messages() -> None:
    request = chat(
        messages=[
            {"role": "user", "content": "I am Ann"},
            {"role": "assistant", "content": "Hello Ann"},
            {"role": "user", "content": "Who am I?"},
        ]
    )
    given = build_agent_message(request.messages)
    assert given.history == tuple(request.messages[:2]) and given.parts == (TextPart("Who am I?"),)
    assert build_agent_message(chat().messages).parts == (TextPart("hi"),)


def test_a_reply_is_streamed_with_a_role_first_and_usage_last() -> None:
    chunks = ChatChunkDialect("id", "m", 1, usage=True)
    frames = encode([*chunks.feed(TextDelta(text="Hel")), *chunks.feed(TextDelta(text="lo"))])
    frames += encode(chunks.feed(Reply("Hello", usage=Usage(5, 2))))
    assert frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": "Hel"}
    assert frames[1]["choices"][0]["delta"] == {"content": "lo"}
    assert [frame["choices"][0]["finish_reason"] for frame in frames[:3]] == [None, None, "stop"]
    assert frames[3]["choices"] == [] and frames[3]["usage"]["total_tokens"] == 7
    assert all(frame["usage"] is None for frame in frames[:3])


def test_calls_are_handed_to_the_client_whole() -> None:
    frames = encode(ChatChunkDialect("id", "m", 1).feed(CALLS))
    (call,) = frames[0]["choices"][0]["delta"]["tool_calls"]
    assert call == {"id": "c1", "type": "function", "index": 0, "function": {"name": "add", "arguments": '{"a":1}'}}
    assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls" and "usage" not in frames[-1]
    (whole,) = encode([ChatChunkDialect("id", "m", 1).complete_reply(CALLS)])
    assert whole["choices"][0]["message"]["content"] is None
    assert whole["choices"][0]["message"]["tool_calls"][0]["id"] == "c1"


def test_a_reply_that_was_cut_says_length() -> None:
    cut = Reply("half", finish="length")
    assert encode([ChatChunkDialect("id", "m", 1).complete_reply(cut)])[0]["choices"][0]["finish_reason"] == "length"
    assert encode([TextChunkDialect("id", "m", 1).complete_reply(cut)])[0]["choices"][0]["finish_reason"] == "length"
    (response,) = encode([open_response().complete_reply(cut)])
    assert response["status"] == "incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_bare_prompts_are_read_and_answered_in_chunks() -> None:
    request = build_completion_request(CompletionBody(model="m", prompt=["a"], max_tokens=3), "a", {})
    assert render_parts(request.messages[0].parts) == "a"  # type: ignore[union-attr]
    chunks = TextChunkDialect("id", "m", 1)
    frames = encode([*chunks.feed(TextDelta(text="x")), *chunks.feed(Reply("x"))])
    assert [frame["choices"][0]["text"] for frame in frames] == ["x", ""]


@pytest.mark.parametrize("name", ["two_turns_with_calls", "a_plain_answer", "a_turn_limit", "a_failure_and_a_retry"])
async def test_a_late_watcher_of_an_agent_gets_the_same_text(name: str) -> None:
    events = await getattr(recordings, name)()
    texts: set[str] = set()
    for seen in (events, recordings.select_facts(events)):
        chunks, response = ChatChunkDialect("id", "agent:a", 1), open_response("agent:a")
        frames = translate(chunks, seen)
        texts.add("".join(frame["choices"][0]["delta"].get("content", "") for frame in frames).replace("\n\n", ""))
        told = translate(response, seen)
        texts.add("".join(frame["delta"] for frame in told if frame["type"] == "response.output_text.delta"))
        messages = (item for item in told[-1]["response"]["output"] if item["type"] == "message")
        texts.add("".join(item["content"][0]["text"] for item in messages))
    assert len(texts) == 1


async def test_an_agent_that_hits_a_limit_does_not_say_stop() -> None:
    ending = next(event for event in await recordings.a_turn_limit() if isinstance(event, RunFinished))
    (whole,) = encode([ChatChunkDialect("id", "agent:a", 1).complete_run(ending, [])])
    assert whole["choices"][0]["finish_reason"] == "length"
    (response,) = encode([open_response().complete_run(ending, [])])
    assert response["status"] == "incomplete"


def test_the_events_of_responses_are_numbered_and_end_in_the_whole() -> None:
    events = open_response()
    reply = Reply("Hello", calls=CALLS.calls, finish="calls", usage=Usage(5, 2))
    frames = encode([*events.begin(), *events.feed(TextDelta(text="Hello")), *events.feed(reply)])
    assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
    message = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]
    kinds = ["created", "in_progress", *message, "output_item.done", *call, "output_item.done", "completed"]
    assert [frame["type"] for frame in frames] == [f"response.{kind}" for kind in kinds]
    assert [item["type"] for item in frames[-1]["response"]["output"]] == ["message", "function_call"]


async def test_a_failed_run_is_a_failed_response() -> None:
    events = open_response("agent:a")
    frames = [*encode(events.begin()), *translate(events, await recordings.a_failure())]
    assert frames[-1]["type"] == "response.failed" and "no such key" in frames[-1]["response"]["error"]["message"]
