"""Requests to Anthropic's Messages API, and its replies."""

import json
from typing import Any

import pytest

from tests.kit.fakes.anthropic import StrictAnthropic
from tests.kit.fakes.clients import (
    ADD,
    TOOLS,
    anthropic_model,
    as_message,
    ask,
    capture_body,
    collect_reply,
    read_reply,
    results,
    user,
)
from tests.kit.fakes.server import Odd, events
from treadle.messages import Call, FilePart, ImagePart, ModelMessage, Reply, ResultMessage, Sampling
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.model_info import ModelInfo

CALLS = (Call("toolu_1", "add", '{"a": 1, "b": 2}'), Call("toolu_2", "echo", '{"text": "größer"}'))


def block_start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


START = {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}}}


def end(reason: str, **more: Any) -> tuple[Any, Any]:
    stop = {"type": "message_delta", "delta": {"stop_reason": reason, **more}, "usage": {"output_tokens": 9}}
    return stop, {"type": "message_stop"}


async def reply_to(*items: Any) -> Reply:
    return await read_reply("anthropic", Odd(raw=events(*items, named=True)), tools=TOOLS)


async def test_cache_marks_stand_on_the_stable_prefix_and_on_the_last_two_user_turns() -> None:
    first, second = (CALLS[0],), (CALLS[1],)
    history = ("hi", ModelMessage("", first), *results(first), ModelMessage("", second), *results(second))
    body = await capture_body("anthropic", *history, tools=TOOLS)
    assert "cache_control" in body["system"][-1]
    assert [json.dumps(message).count("cache_control") for message in body["messages"]] == [0, 0, 1, 0, 1]
    bare = await capture_body("anthropic", "hi", system="", tools=TOOLS)
    assert "cache_control" in bare["tools"][-1] and "system" not in bare


async def test_results_come_first_in_the_user_turn_and_users_are_merged() -> None:
    history = ("hi", "there", ModelMessage("", CALLS), *results(CALLS), "and this", "and that")
    sent = await capture_body("anthropic", *history, tools=TOOLS)
    kinds = [[block["type"] for block in message["content"]] for message in sent["messages"]]
    assert kinds == [["text", "text"], ["tool_use", "tool_use"], ["tool_result", "tool_result", "text", "text"]]


async def test_images_files_and_failed_results_are_shown() -> None:
    message = user(
        "look",
        ImagePart(data="QUJD"),
        ImagePart(data="QUJD", media_type="image/tiff"),
        ImagePart(url="https://example.org/x.png"),
        FilePart("notes.txt", "aGVsbG8=", "text/plain"),
        FilePart("y.pdf", "AAAA", "application/pdf"),
        FilePart("x.bin", "AAAA"),
        "  ",
    )
    shown = ResultMessage("toolu_1", "add", "a picture", ok=False, parts=(ImagePart(data="QUJD"),))
    sent = await capture_body("anthropic", message, ModelMessage("", CALLS[:1]), shown, " ", tools=TOOLS)
    first, _, last = (message["content"] for message in sent["messages"])
    kinds = ["text", "image", "text", "image", "document", "document", "text"]
    assert [block["type"] for block in first] == kinds
    assert [block["type"] for block in last[0]["content"]] == ["text", "image"]
    assert last[0]["is_error"] is True


async def test_tools_that_were_called_are_declared_where_none_is_offered() -> None:
    sent = await capture_body("anthropic", "hi", ModelMessage("", CALLS), *results(CALLS), "text only")
    assert ([tool["name"] for tool in sent["tools"]], sent["tool_choice"]) == (["add", "echo"], {"type": "none"})


async def test_thinking_is_dropped_when_anything_before_it_changed() -> None:
    thoughtful = Reply(text="I add.", reasoning="let me think", calls=CALLS)
    async with StrictAnthropic([thoughtful, Reply(text="3")]) as fake:
        model = anthropic_model(fake)
        first = await collect_reply(model, ask("hi", "(a note that is gone later)", tools=TOOLS))
        loop = [as_message(first), *results(first.calls)]
        await collect_reply(model, ask("hi", "(a note that is gone later)", *loop, tools=TOOLS))
        await collect_reply(model, ask("hi", *loop, tools=TOOLS))
        await collect_reply(model, ask("a summary", *loop, tools=TOOLS))
        await collect_reply(model, ask("hi", "(a note that is gone later)", *loop, tools=(ADD,)))
        await collect_reply(model, ask("hi", "(a note that is gone later)", *loop, tools=TOOLS, system="other"))
        assert fake.rejected == []
        thinks = ["thinking" in json.dumps(seen.body["messages"]) for seen in fake.seen]
    assert thinks == [False, True, False, False, False, False]


async def test_manual_thinking_fits_the_limits_and_does_not_begin_in_a_foreign_loop() -> None:
    thinking = Sampling(0.3, extra={"thinking": {"type": "enabled", "budget_tokens": 9000}})
    foreign = ModelMessage("", CALLS)
    own = Reply(reasoning="hm", calls=CALLS)
    async with StrictAnthropic([own, Reply(text="done")]) as fake:
        model = anthropic_model(fake)
        first = await collect_reply(model, ask("hi", tools=TOOLS, sampling=thinking, max_tokens=4000))
        await collect_reply(
            model, ask("hi", as_message(first), *results(CALLS), tools=TOOLS, sampling=thinking, max_tokens=4000)
        )
        await collect_reply(model, ask("hi", foreign, *results(CALLS), tools=TOOLS, sampling=thinking))
        await collect_reply(model, ask("hi", foreign, *results(CALLS), "next", tools=TOOLS, sampling=thinking))
        await collect_reply(model, ask("hi", tools=TOOLS, sampling=thinking, max_tokens=500))
        assert fake.rejected == []
        wanted = [seen.body.get("thinking", {}).get("budget_tokens") for seen in fake.seen]
    assert wanted == [3999, 3999, None, None, None]


async def test_choice_schema_and_sampling_are_translated() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1}, "tags": {"type": "array", "items": {"type": "object"}}},
    }
    sampling = Sampling(0.5, 0.9, 7, ("END", " "), {"tool_choice": "required", "parallel_tool_calls": False})
    fields = {"sampling": sampling, "output_schema": schema, "max_tokens": 50}
    sent = await capture_body("anthropic", "hi", tools=TOOLS, **fields)
    assert sent["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert (sent["temperature"], sent["top_p"], sent["stop_sequences"], sent["max_tokens"]) == (0.5, 0.9, ["END"], 50)
    assert "minimum: 1" in sent["output_config"]["format"]["schema"]["properties"]["n"]["description"]
    assert "seed" not in sent


def test_the_reply_is_limited_to_the_rest_of_the_window() -> None:
    wire = AnthropicMessages("fake", "m", ModelInfo("fake:m", max_output=64_000, accepts_sampling=False))
    sent = json.loads(wire.build_body(ask("x" * 400_000, sampling=Sampling(0.5)), 110_000))
    assert 5_000 < sent["max_tokens"] < 12_000
    assert "temperature" not in sent


# --- replies


@pytest.mark.parametrize(
    ("reason", "finish"), [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"), ("new", "other")]
)
async def test_stop_reasons_are_translated(reason: str, finish: str) -> None:
    text = (block_start(0, type="text", text="so"), delta(0, type="text_delta", text=" it is"))
    reply = await reply_to(START, *text, *end(reason))
    assert (reply.text, reply.finish) == ("so it is", finish)


async def test_unknown_blocks_go_back_unchanged_but_not_unsigned_thinking() -> None:
    reply = await reply_to(
        START,
        block_start(0, type="redacted_thinking", data="xyz"),
        block_start(1, type="server_tool_use", id="srv", name="web_search", input={}),
        delta(1, type="input_json_delta", partial_json='{"q": "a"}'),
        block_start(2, type="thinking", thinking="", signature=""),
        delta(2, type="thinking_delta", thinking="cut off"),
        block_start(3, type="text", text=""),
        block_start(4, type="tool_use", id="t", name="add", input={"a": 1, "b": 2}),
        *end("tool_use"),
    )
    assert reply.calls == (Call("t", "add", '{"a":1,"b":2}'),)
    assert json.loads(reply.opaque)["items"] == [
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"q": "a"}},
        {"type": "tool_use"},
    ]


async def test_arguments_sent_whole_and_in_pieces_count_once() -> None:
    stop = ({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"})
    begin = block_start(0, type="tool_use", id="t", name="add", input={"a": 1})
    whole = Call("t", "add", '{"a":1}')
    assert (await reply_to(START, begin, *stop)).calls == (whole,)
    assert (await reply_to(START, begin, delta(0, partial_json='{"a":1}'), *stop)).calls == (whole,)
