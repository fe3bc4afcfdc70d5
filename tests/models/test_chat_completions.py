"""What is sent to a Chat Completions server, and what odd replies become."""

import json
from typing import Any

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.fakes.clients import ADD, ECHO, ask, chat_model, collect_events, collect_reply, results, said
from tests.kit.fakes.server import Odd, events
from treadle.errors import ModelError
from treadle.events import CallDelta, ReasoningDelta, TextDelta
from treadle.messages import (
    Call,
    FilePart,
    ImagePart,
    ModelMessage,
    Reply,
    Request,
    ResultMessage,
    Sampling,
    TextPart,
    UserMessage,
)
from treadle.models.chat_completions import ChatCompletions, Quirks
from treadle.models.providers import PROVIDERS
from treadle.models.wire_format import MISTRAL_IDS


def body(request: Request, quirks: Quirks = Quirks(), model: str = "m") -> dict[str, Any]:  # noqa: B008
    return json.loads(ChatCompletions("fake", model, quirks).build_body(request, None))


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int | None = 0, name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"function": {k: v for k, v in function.items() if v is not None}, **more}
    return call if index is None else {"index": index, **call}


async def reply_to(*chunks: Any, tools: Any = (ADD,), quirks: Quirks = Quirks(), **odd: Any) -> Reply:  # noqa: B008
    async with StrictChat([Odd(raw=events(*chunks, "[DONE]"), **odd)]) as fake:
        return await collect_reply(chat_model(fake, quirks=quirks), ask("hi", tools=tools))


# --- requests


async def test_parallel_calls_and_their_results_are_accepted() -> None:
    calls = (Call("c1", "add", '{"a":1,"b":2}'), Call("c2", "echo", ""))
    async with StrictChat([Reply(calls=calls), Reply(text="done")]) as fake:
        model = chat_model(fake)
        first = await collect_reply(model, ask("hi", tools=(ADD, ECHO)))
        assert first.calls == (calls[0], Call("c2", "echo", "{}"))
        assert first.finish == "calls"
        request = ask("hi", said(first), *results(first.calls), tools=(ADD, ECHO))
        assert (await collect_reply(model, request)).text == "done"
        assert fake.rejected == []


async def test_arguments_that_are_no_json_are_sent_as_a_json_object() -> None:
    broken = Call("c1", "add", '{"a": 1, "b"')
    async with StrictChat() as fake:
        await collect_reply(
            chat_model(fake), ask("hi", ModelMessage(calls=(broken,)), *results((broken,)), tools=(ADD,))
        )
        sent = fake.seen[0].body["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"invalid_arguments": '{"a": 1, "b"'}


def test_a_vendor_gets_ids_by_its_own_rule() -> None:
    calls = (Call("call_1", "add"), Call("abcDEF123", "add"))
    sent = body(ask("hi", ModelMessage(calls=calls), *results(calls)), Quirks(id_rule=MISTRAL_IDS))
    ids = [call["id"] for call in sent["messages"][2]["tool_calls"]]
    assert ids[1] == "abcDEF123"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()
    assert [message["tool_call_id"] for message in sent["messages"][3:]] == ids


async def test_images_and_files_are_shown() -> None:
    parts = (
        TextPart("look"),
        ImagePart(data="QUJD", media_type="image/jpeg"),
        ImagePart(url="https://example.org/x.png"),
        FilePart("notes.txt", "aGVsbG8=", "text/plain"),
        FilePart("x.bin", "AAAA"),
        FilePart("y.pdf", "AAAA", "application/pdf"),
    )
    async with StrictChat() as fake:
        await collect_reply(chat_model(fake, quirks=Quirks(accepts_files=True)), ask(UserMessage(parts)))
        content = fake.seen[0].body["messages"][1]["content"]
    assert content[1] == {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}}
    assert content[3]["text"] == "notes.txt:\nhello"
    assert content[4]["type"] == "file"
    assert "cannot be shown" in body(ask(UserMessage(parts)))["messages"][1]["content"][5]["text"]


async def test_images_in_results_follow_after_the_last_result() -> None:
    calls = (Call("c1", "add"), Call("c2", "add"))
    shown = ResultMessage("c1", "add", "a picture", parts=(ImagePart(data="QUJD"),))
    async with StrictChat() as fake:
        request = ask("hi", ModelMessage(calls=calls), shown, ResultMessage("c2", "add", "3"), tools=(ADD,))
        await collect_reply(chat_model(fake), request)
        roles = [message["role"] for message in fake.seen[0].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]


async def test_sampling_format_choice_and_extras_are_passed_on() -> None:
    sampling = Sampling(0.5, 0.9, 7, ("END",), {"tool_choice": "add", "reasoning_effort": "low", "model": "no"})
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    async with StrictChat() as fake:
        request = ask("hi", tools=(ADD,), sampling=sampling, output_schema=schema, max_tokens=99, session_id="s1")
        await collect_reply(chat_model(fake, quirks=PROVIDERS["openai-chat"].quirks), request)
        sent = fake.seen[0].body
    assert sent["model"] == "m"
    assert (sent["temperature"], sent["top_p"], sent["seed"], sent["stop"]) == (0.5, 0.9, 7, ["END"])
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["reasoning_effort"] == "low"
    assert sent["max_completion_tokens"] == 99
    assert sent["prompt_cache_key"] == "s1"
    assert sent["response_format"]["json_schema"] == {"name": "answer", "schema": schema, "strict": True}


def test_a_vendor_without_schemas_gets_the_schema_in_the_prompt() -> None:
    sent = body(ask("hi", output_schema={"type": "object"}), Quirks(schema_mode="json_object"))
    assert sent["response_format"] == {"type": "json_object"}
    assert '{"type":"object"}' in sent["messages"][0]["content"]


def test_reasoning_goes_back_only_to_its_own_model() -> None:
    quirks, call = Quirks(replays_reasoning=True), Call("c1", "add")
    own = ModelMessage("", (call,), "mine", '{"owner":"chat:fake:m","fields":{"reasoning_content":"mine"}}')
    foreign = ModelMessage("", (call,), "theirs", '{"owner":"chat:other:m","fields":{"reasoning_content":"theirs"}}')
    assert body(ask("hi", own), quirks)["messages"][2]["reasoning_content"] == "mine"
    assert body(ask("hi", foreign), quirks)["messages"][2]["reasoning_content"] == " "
    assert "reasoning_content" not in body(ask("hi", own))["messages"][2]


def test_call_signatures_go_back_and_foreign_calls_get_the_dummy() -> None:
    quirks, call = Quirks(needs_thought_signatures=True), Call("c1", "add")
    own = ModelMessage("", (call,), "", '{"owner":"chat:fake:m","items":[{"google":{"thought_signature":"abc"}}]}')
    assert body(ask("hi", own), quirks)["messages"][2]["tool_calls"][0]["extra_content"] == {
        "google": {"thought_signature": "abc"}
    }
    sent = body(ask("hi", ModelMessage("", (call,))), quirks)["messages"][2]["tool_calls"][0]
    assert sent["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"


# --- replies


async def test_deltas_come_in_order_and_calls_carry_their_name_once() -> None:
    chunks = (
        chunk(reasoning_content="hm"),
        chunk(content="Let me "),
        chunk(content="add."),
        chunk(tool_calls=[piece(0, "add", "", id="c1")]),
        chunk(tool_calls=[piece(0, None, '{"a":1,')]),
        chunk(tool_calls=[piece(0, None, '"b":2}')]),
        chunk("tool_calls"),
    )
    async with StrictChat([Odd(raw=events(*chunks, "[DONE]")), Odd(raw=events(*chunks, "[DONE]"), split=1)]) as fake:
        model = chat_model(fake)
        burst = await collect_events(model, ask("hi", tools=(ADD,)))
        slow = await collect_events(model, ask("hi", tools=(ADD,)))
    assert burst[:-1] == [
        ReasoningDelta(text="hm"),
        TextDelta(text="Let me add."),
        CallDelta(index=0, tool="add", arguments='{"a":1,"b":2}'),
    ]
    assert burst[-1] == slow[-1]
    named, *unnamed = [e.tool for e in slow if isinstance(e, CallDelta)]
    assert named == "add" and not any(unnamed)
    assert "".join(e.arguments for e in slow if isinstance(e, CallDelta)) == '{"a":1,"b":2}'


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param(
            [piece(0, "add", '{"a":1}', id="x"), piece(0, "add", '{"a":2}', id="y")],
            [("x", "add", '{"a":1}'), ("y", "add", '{"a":2}')],
            id="one index for two calls",
        ),
        pytest.param(
            [piece(0, "add", '{"a":1}'), piece(0, "echo", '{"text":"b"}')],
            [(None, "add", '{"a":1}'), (None, "echo", '{"text":"b"}')],
            id="one index for two calls without ids",
        ),
        pytest.param(
            [piece(None, "add", '{"a":', id="x"), piece(None, None, "1}"), piece(None, "add", "{}", id="y")],
            [("x", "add", '{"a":1}'), ("y", "add", "{}")],
            id="no index",
        ),
        pytest.param(
            [piece(0, "add", '{"a":', id="x"), piece(0, "add", "1}", id="x"), piece(0, "add", "", id="x")],
            [("x", "add", '{"a":1}')],
            id="name and id in every piece",
        ),
        pytest.param(
            [piece(0, "add", '{"a":', id="x"), piece(0, "add", "1", id="y"), piece(0, "add", "}", id="z")],
            [("x", "add", '{"a":1}')],
            id="another id in every piece",
        ),
        pytest.param(
            [piece(0, "add", "", id="x"), piece(0, None, '{"a":', id="y"), piece(0, None, "1}", id="z")],
            [("x", "add", '{"a":1}')],
            id="another id in every piece and the name once",
        ),
        pytest.param(
            [piece(0, "add", "", id="x"), piece(0, "echo", "", id="y")],
            [("x", "add", "{}"), ("y", "echo", "{}")],
            id="one index for two calls without arguments",
        ),
        pytest.param([piece(0, "add", {"a": 1}, id="x")], [("x", "add", '{"a":1}')], id="arguments as an object"),
        pytest.param([piece(0, "add", id="x")], [("x", "add", "{}")], id="no arguments"),
        pytest.param(
            [piece(1, "add", '{"a":1}', id="x"), piece(0, "echo", "{}", id="y"), piece(1, None, "")],
            [("x", "add", '{"a":1}'), ("y", "echo", "{}")],
            id="indexes out of order",
        ),
        pytest.param(
            [piece(0, "add", "{}", id="x"), piece(1, "add", "{}", id="x")],
            [("x", "add", "{}"), (None, "add", "{}")],
            id="one id for two calls",
        ),
        pytest.param([piece(0, None, None), piece(0, "add", "{}", id="")], [(None, "add", "{}")], id="an empty piece"),
    ],
)
async def test_calls_are_joined_however_a_server_sends_their_pieces(pieces: list[Any], expected: list[Any]) -> None:
    for chunks in ([chunk(tool_calls=[one]) for one in pieces], [chunk(tool_calls=pieces)]):
        reply = await reply_to(*chunks, chunk("stop"))
        assert [(call.tool, call.arguments) for call in reply.calls] == [want[1:] for want in expected]
        assert all(got.id == want[0] for got, want in zip(reply.calls, expected, strict=True) if want[0])
        assert len({call.id for call in reply.calls}) == len(expected)
        assert reply.finish == "calls"


async def test_a_cut_off_call_keeps_its_missing_arguments() -> None:
    reply = await reply_to(chunk(tool_calls=[piece(0, "add", "", id="x")]), chunk("length"))
    assert (reply.finish, reply.calls) == ("length", (Call("x", "add", ""),))


@pytest.mark.parametrize(
    ("chunks", "thought", "text"),
    [
        ([chunk(reasoning_content="hm"), chunk(content="yes")], "hm", "yes"),
        ([chunk(reasoning="hm", content=""), chunk(content="yes")], "hm", "yes"),
        ([chunk(reasoning={"odd": 1}), chunk(content="yes")], "", "yes"),
        ([chunk(content="<think>hm</think>\n\nyes")], "hm", "yes"),
        ([chunk(content="<th"), chunk(content="ink>h"), chunk(content="m</thi"), chunk(content="nk>yes")], "hm", "yes"),
        ([chunk(content="hm, so</think>yes")], "hm, so", "yes"),
        ([chunk(content="<thinner> is no tag")], "", "<thinner> is no tag"),
        ([chunk(content="Use <think> tags.")], "", "Use <think> tags."),
        ([chunk(content=[{"type": "thinking", "thinking": [{"text": "hm"}]}, {"text": "yes"}])], "hm", "yes"),
    ],
)
async def test_reasoning_is_separated_from_the_answer(chunks: list[Any], thought: str, text: str) -> None:
    whole = events(*chunks, chunk("stop"), "[DONE]")
    async with StrictChat([Odd(raw=whole), Odd(raw=whole, split=1)]) as fake:
        for _ in range(2):
            reply = await collect_reply(chat_model(fake), ask("hi"))
            assert (reply.reasoning, reply.text) == (thought, text)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "filter"), ("weird", "other"), (None, "stop")],
)
async def test_finish_reasons_are_translated(finish: str | None, expected: str) -> None:
    assert (await reply_to(chunk(content="x"), chunk(finish))).finish == expected


async def test_a_reply_that_finishes_with_an_error_fails() -> None:
    with pytest.raises(ModelError, match="broke off with an error") as caught:
        await reply_to(chunk(content="so far"), chunk("error"))
    assert (caught.value.kind, caught.value.retryable, caught.value.partial) == ("internal", True, "so far")


async def test_a_refusal_becomes_text_with_finish_filter() -> None:
    reply = await reply_to(chunk(refusal="I can"), chunk(refusal="not."), chunk("stop"))
    assert (reply.text, reply.finish) == ("I cannot.", "filter")


async def test_empty_choices_and_further_choices_are_skipped() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    reply = await reply_to({"choices": []}, {"choices": None}, {}, other, chunk(content="this"), chunk("stop"))
    assert reply.text == "this"


async def test_a_completion_that_was_not_streamed_is_read() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
    message = {"role": "assistant", "content": "so", "tool_calls": [call]}
    whole = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    raw = json.dumps(whole).encode()
    async with StrictChat([Odd(raw=raw, content_type="application/json")]) as fake:
        got = await collect_events(chat_model(fake), ask("hi", tools=(ADD,)))
    assert got[:-1] == [TextDelta(text="so"), CallDelta(index=0, tool="add", arguments='{"a":1,"b":2}')]
    assert isinstance(got[-1], Reply)
    assert got[-1].usage.estimated


@pytest.mark.parametrize("usage_in", ["usage", "x_groq", "every chunk", "deepseek", "none"])
async def test_usage_is_found_where_servers_put_it(usage_in: str) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    last = chunk("stop")
    chunks: list[Any] = [chunk(content="x" * 40), last]
    match usage_in:
        case "usage":
            chunks.append({"choices": [], "usage": usage})
        case "x_groq":
            last["x_groq"] = {"usage": usage}
        case "every chunk":
            chunks[0]["usage"] = {"prompt_tokens": 100, "completion_tokens": 1}
            last["usage"] = usage
        case "deepseek":
            last["usage"] = {**usage, "prompt_tokens_details": None, "prompt_cache_hit_tokens": 60}
        case _:
            pass
    count = (await reply_to(*chunks)).usage
    if usage_in == "none":
        assert count.estimated
        assert count.output_tokens == 11
        assert count.input_tokens > 20
    else:
        assert (count.input_tokens, count.output_tokens) == (100, 20)
        assert (count.cached_tokens, count.reasoning_tokens, count.estimated) == (60, 5, False)


async def test_the_providers_own_cost_is_used() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.25}
    assert (await reply_to(chunk("stop"), {"choices": [], "usage": usage})).usage.cost == 0.25


async def test_calls_written_as_text_are_recovered_where_tools_are_offered() -> None:
    text = 'Sure.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    reply = await reply_to(chunk(content=text), chunk("stop"))
    assert (reply.text, reply.finish) == ("Sure.", "calls")
    assert [(call.tool, call.arguments) for call in reply.calls] == [("add", '{"a":1,"b":2}')]
    assert (await reply_to(chunk(content=text), chunk("stop"), tools=())).text == text
    assert (await reply_to(chunk(content=text), chunk("stop"), quirks=Quirks(recovers_text_calls=False))).text == text


async def test_reasoning_details_and_signatures_are_kept_for_the_same_model() -> None:
    signed = piece(0, "add", "{}", id="x", extra_content={"google": {"thought_signature": "s"}})
    details = [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]
    more = [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "sig"}]
    reply = await reply_to(
        chunk(reasoning="a", reasoning_details=details),
        chunk(reasoning="b", reasoning_details=more),
        chunk(tool_calls=[signed]),
        chunk("tool_calls"),
        quirks=Quirks(replays_reasoning=True),
    )
    sent = body(ask("hi", said(reply)), Quirks(replays_reasoning=True))["messages"][2]
    assert sent["reasoning_details"] == [{"type": "reasoning.text", "index": 0, "text": "ab", "signature": "sig"}]
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}


async def test_invalid_json_is_an_error_that_may_be_retried() -> None:
    async with StrictChat([Odd(raw=b"data: {nonsense\n\ndata: {}\n\n")]) as fake:
        with pytest.raises(ModelError, match="does not speak its protocol") as caught:
            await collect_reply(chat_model(fake), ask("hi"))
    assert (caught.value.kind, caught.value.retryable) == ("network", True)
