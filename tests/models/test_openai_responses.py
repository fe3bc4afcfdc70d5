"""What is sent to OpenAI's Responses API, and what its replies become."""

import json
from typing import Any

import pytest

from tests.kit.fakes.clients import TOOLS, ask, collect_reply, responses_model
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Odd, events
from treadle.errors import ModelError
from treadle.messages import (
    Call,
    FilePart,
    ImagePart,
    ModelMessage,
    Reply,
    ResultMessage,
    Sampling,
    TextPart,
    UserMessage,
)
from treadle.models.openai_responses import OpenAIResponses

CALLS = (Call("call_1", "add", '{"a": 1, "b": 2}'), Call("call_2", "echo", '{"text": "größer"}'))


async def reply_to(*items: Any, **odd: Any) -> Reply:
    async with StrictResponses([Odd(raw=events(*items), **odd)]) as fake:
        return await collect_reply(responses_model(fake), ask("hi", tools=TOOLS))


async def test_reasoning_without_its_calls_is_left_out() -> None:
    async with StrictResponses([Reply(reasoning="hm", calls=CALLS), Reply(text="ok")]) as fake:
        model = responses_model(fake)
        first = await collect_reply(model, ask("hi", tools=TOOLS))
        dropped = ModelMessage("", (), first.reasoning, first.opaque)
        await collect_reply(model, ask("hi", dropped, "go on", tools=TOOLS))
        assert fake.rejected == []


async def test_images_files_choice_schema_and_sampling_are_translated() -> None:
    parts = (
        TextPart("look"),
        ImagePart(data="QUJD"),
        FilePart("notes.txt", "aGVsbG8=", "text/plain"),
        FilePart("y.pdf", "AAAA", "application/pdf"),
    )
    shown = ResultMessage("call_1", "add", "a picture", parts=(ImagePart(data="QUJD"),))
    extra = {"tool_choice": "add", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "store": True}
    sampling = Sampling(0.5, 0.9, 7, ("END",), extra)
    async with StrictResponses() as fake:
        fields = {"max_tokens": 5, "output_schema": {"type": "object"}, "session_id": "s1"}
        request = ask(UserMessage(parts), ModelMessage("", CALLS[:1]), shown, tools=TOOLS, sampling=sampling, **fields)
        await collect_reply(responses_model(fake), request)
        assert fake.rejected == []
        sent = fake.seen[0].body
    assert [part["type"] for part in sent["input"][0]["content"]] == [
        "input_text",
        "input_image",
        "input_text",
        "input_file",
    ]
    assert [part["type"] for part in sent["input"][2]["output"]] == ["input_text", "input_image"]
    assert sent["tool_choice"] == {"type": "function", "name": "add"}
    assert sent["text"]["verbosity"] == "low"
    assert sent["text"]["format"]["strict"] is False
    assert (sent["temperature"], sent["max_output_tokens"], sent["store"]) == (0.5, 16, False)
    assert sent["prompt_cache_key"] == "s1"
    assert sent["instructions"] == "You help."


def test_a_model_that_does_not_reason_is_not_asked_for_its_reasoning() -> None:
    sent = json.loads(OpenAIResponses("openai", "gpt-4o", asks_encrypted_reasoning=False).build_body(ask("hi"), None))
    assert "include" not in sent


@pytest.mark.parametrize(("finish", "expected"), [("length", "length"), ("filter", "filter"), ("stop", "stop")])
async def test_incomplete_replies_say_why(finish: Any, expected: str) -> None:
    async with StrictResponses([Reply(text="so far", finish=finish)]) as fake:
        assert (await collect_reply(responses_model(fake), ask("hi"))).finish == expected


async def test_a_refusal_becomes_text_with_finish_filter() -> None:
    refused = {"type": "response.refusal.delta", "output_index": 0, "delta": "I cannot."}
    reply = await reply_to(refused, {"type": "response.completed", "response": {"status": "completed"}})
    assert (reply.text, reply.finish) == ("I cannot.", "filter")
    assert reply.usage.estimated


async def test_a_response_without_deltas_is_read_streamed_or_not() -> None:
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    ]
    response = {"status": "completed", "model": "m", "output": output, "error": None}
    streamed = await reply_to({"type": "response.completed", "response": response})
    raw = Odd(raw=json.dumps(response).encode(), content_type="application/json")
    async with StrictResponses([raw]) as fake:
        whole = await collect_reply(responses_model(fake), ask("hi", tools=TOOLS))
    for reply in (streamed, whole):
        assert (reply.text, reply.reasoning, reply.finish) == ("so", "hm", "calls")
        assert reply.calls == (Call("c", "add", "{}"),)


@pytest.mark.parametrize(
    ("event", "kind", "retryable"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}, "overloaded", True),
        ({"type": "error", "error": {"type": "server_error", "message": "oops"}}, "internal", True),
        (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "bio_policy", "message": "x"}},
            },
            "content_filter",
            False,
        ),
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, "internal", True),
        ({"type": "response.failed"}, "internal", True),
        ({"type": "error", "code": "context_length_exceeded", "message": "too long"}, "too_long", False),
    ],
)
async def test_errors_in_the_stream_are_classified(event: dict[str, Any], kind: str, retryable: bool) -> None:
    said_so = {"type": "response.output_text.delta", "output_index": 0, "delta": "so far"}
    with pytest.raises(ModelError) as caught:
        await reply_to(said_so, event)
    assert (caught.value.kind, caught.value.retryable, caught.value.partial) == (kind, retryable, "so far")


async def test_a_document_of_another_shape_is_an_error() -> None:
    async with StrictResponses([Odd(raw=b'{"detail": "moved"}', content_type="application/json")]) as fake:
        with pytest.raises(ModelError, match="moved"):
            await collect_reply(responses_model(fake), ask("hi"))
