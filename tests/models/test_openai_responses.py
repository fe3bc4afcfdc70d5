"""Requests to OpenAI's Responses API, and its replies."""

import json
from typing import Any

import pytest

from tests.kit.fakes.clients import (
    TOOLS,
    ask,
    capture_body,
    collect_reply,
    read_failure,
    read_reply,
    responses_model,
    user,
)
from tests.kit.fakes.responses import StrictResponses
from tests.kit.fakes.server import Odd, events
from treadle.messages import Call, FilePart, ImagePart, ModelMessage, Reply, ResultMessage, Sampling
from treadle.models.openai_responses import OpenAIResponses

CALLS = (Call("call_1", "add", '{"a": 1, "b": 2}'), Call("call_2", "echo", '{"text": "größer"}'))


async def reply_to(*items: Any) -> Reply:
    return await read_reply("responses", Odd(raw=events(*items)), tools=TOOLS)


async def test_reasoning_without_its_calls_is_left_out() -> None:
    async with StrictResponses([Reply(reasoning="hm", calls=CALLS), Reply(text="ok")]) as fake:
        model = responses_model(fake)
        first = await collect_reply(model, ask("hi", tools=TOOLS))
        dropped = ModelMessage("", (), first.reasoning, first.opaque)
        await collect_reply(model, ask("hi", dropped, "go on", tools=TOOLS))
        assert fake.rejected == []


async def test_images_files_choice_schema_and_sampling_are_translated() -> None:
    picture = ImagePart(data="QUJD")
    files = (FilePart("notes.txt", "aGVsbG8=", "text/plain"), FilePart("y.pdf", "AAAA", "application/pdf"))
    shown = ResultMessage("call_1", "add", "a picture", parts=(picture,))
    extra = {"tool_choice": "add", "reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "store": True}
    fields = {"max_tokens": 5, "output_schema": {"type": "object"}, "session_id": "s1"}
    fields["sampling"] = Sampling(0.5, 0.9, 7, extra=extra)
    messages = (user("look", picture, *files), ModelMessage("", CALLS[:1]), shown)
    sent = await capture_body("responses", *messages, tools=TOOLS, **fields)
    kinds = [part["type"] for part in sent["input"][0]["content"]]
    assert kinds == ["input_text", "input_image", "input_text", "input_file"]
    assert [part["type"] for part in sent["input"][2]["output"]] == ["input_text", "input_image"]
    assert sent["tool_choice"] == {"type": "function", "name": "add"}
    assert (sent["text"]["verbosity"], sent["text"]["format"]["strict"]) == ("low", False)
    assert (sent["temperature"], sent["max_output_tokens"], sent["store"]) == (0.5, 16, False)
    assert (sent["prompt_cache_key"], sent["instructions"]) == ("s1", "You help.")


def test_a_model_that_does_not_reason_is_not_asked_for_its_reasoning() -> None:
    sent = json.loads(OpenAIResponses("openai", "gpt-4o").build_body(ask("hi"), None))
    assert "include" not in sent


@pytest.mark.parametrize(("finish", "expected"), [("length", "length"), ("filter", "filter"), ("stop", "stop")])
async def test_incomplete_replies_say_why(finish: Any, expected: str) -> None:
    assert (await read_reply("responses", Reply(text="so far", finish=finish))).finish == expected


async def test_a_refusal_becomes_text_with_finish_filter() -> None:
    refused = {"type": "response.refusal.delta", "output_index": 0, "delta": "I cannot."}
    reply = await reply_to(refused, {"type": "response.completed", "response": {"status": "completed"}})
    assert (reply.text, reply.finish) == ("I cannot.", "filter")
    assert reply.usage.estimated


async def test_a_response_without_deltas_is_read() -> None:
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    ]
    reply = await reply_to({"type": "response.completed", "response": {"status": "completed", "output": output}})
    assert (reply.text, reply.reasoning, reply.finish) == ("so", "hm", "calls")
    assert reply.calls == (Call("c", "add", "{}"),)


@pytest.mark.parametrize(
    ("event", "kind", "retryable"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}, "overloaded", True),
        ({"type": "error", "error": {"type": "server_error", "message": "oops"}}, "internal", True),
        ({"type": "response.failed", "response": {"error": {"code": "bio_policy"}}}, "content_filter", False),
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, "internal", True),
        ({"type": "response.failed"}, "internal", True),
        ({"type": "error", "code": "context_length_exceeded", "message": "too long"}, "too_long", False),
    ],
)
async def test_errors_in_the_stream_are_classified(event: dict[str, Any], kind: str, retryable: bool) -> None:
    said_so = {"type": "response.output_text.delta", "output_index": 0, "delta": "so far"}
    error = await read_failure("responses", Odd(raw=events(said_so, event)))
    assert (error.kind, error.retryable, error.partial) == (kind, retryable, "so far")


async def test_a_document_of_another_shape_is_an_error() -> None:
    moved = Odd(raw=b'{"detail": "moved"}', content_type="application/json")
    assert "moved" in str(await read_failure("responses", moved))
