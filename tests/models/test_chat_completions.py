"""Requests to a Chat Completions server, and its replies, also odd ones."""

import json
from typing import Any

import pytest

from tests.kit.fakes.clients import ADD, as_message, ask, capture_body, read_failure, read_reply, results, user
from tests.kit.fakes.server import Odd, events
from treadle.messages import Call, FilePart, ImagePart, ModelMessage, Reply, Request, ResultMessage, Sampling, Usage
from treadle.models.chat_completions import ChatCompletions, Quirks
from treadle.models.providers import PROVIDERS
from treadle.models.wire_format import MISTRAL_IDS


def body(request: Request, quirks: Quirks = Quirks()) -> dict[str, Any]:  # noqa: B008
    return json.loads(ChatCompletions("fake", "m", quirks).build_body(request, None))


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int | None = 0, name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"function": {k: v for k, v in function.items() if v is not None}, **more}
    return call if index is None else {"index": index, **call}


async def reply_to(*chunks: Any, tools: Any = (ADD,), **quirks: Any) -> Reply:
    raw = events(*chunks, "[DONE]")
    return await read_reply("chat", Odd(raw=raw), options={"quirks": Quirks(**quirks)}, tools=tools)


# --- requests


async def test_arguments_that_are_no_json_are_sent_as_a_json_object() -> None:
    broken = Call("c1", "add", '{"a": 1, "b"')
    sent = await capture_body("chat", "hi", ModelMessage(calls=(broken,)), *results((broken,)), tools=(ADD,))
    arguments = sent["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"invalid_arguments": '{"a": 1, "b"'}


async def test_a_vendor_gets_ids_by_its_own_rule() -> None:
    calls = (Call("call:1" * 9, "add"), Call("abcDEF123", "add"))
    messages, options = ("hi", ModelMessage(calls=calls), *results(calls)), {"quirks": Quirks(id_rule=MISTRAL_IDS)}
    sent = await capture_body("chat", *messages, options=options, tools=(ADD,))
    ids = [call["id"] for call in sent["messages"][2]["tool_calls"]]
    assert (ids[1], len(ids[0]), ids[0].isalnum()) == ("abcDEF123", 9, True)
    assert [message["tool_call_id"] for message in sent["messages"][3:]] == ids


async def test_images_and_files_are_shown() -> None:
    message = user(
        "look",
        ImagePart(data="QUJD", media_type="image/jpeg"),
        ImagePart(url="https://example.org/x.png"),
        FilePart("notes.txt", "aGVsbG8=", "text/plain"),
        FilePart("x.bin", "AAAA"),
        FilePart("y.pdf", "AAAA", "application/pdf"),
    )
    sent = await capture_body("chat", message, options={"quirks": Quirks(accepts_files=True)})
    content = sent["messages"][1]["content"]
    assert content[1] == {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,QUJD"}}
    assert (content[3]["text"], content[4]["type"]) == ("notes.txt:\nhello", "file")
    assert "cannot be shown" in body(ask(message))["messages"][1]["content"][5]["text"]


async def test_images_in_results_follow_after_the_last_result() -> None:
    calls = (Call("c1", "add"), Call("c2", "add"))
    shown = ResultMessage("c1", "add", "a picture", parts=(ImagePart(data="QUJD"),))
    sent = await capture_body("chat", "hi", ModelMessage(calls=calls), shown, *results(calls[1:]), tools=(ADD,))
    roles = [message["role"] for message in sent["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]


async def test_sampling_format_choice_and_extras_are_passed_on() -> None:
    sampling = Sampling(0.5, 0.9, 7, ("END",), {"tool_choice": "add", "reasoning_effort": "low", "model": "no"})
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    schema["additionalProperties"] = False
    fields = {"sampling": sampling, "output_schema": schema, "max_tokens": 99, "session_id": "s1"}
    options = {"quirks": PROVIDERS["openai-chat"].quirks}
    sent = await capture_body("chat", "hi", tools=(ADD,), options=options, **fields)
    assert (sent["model"], sent["reasoning_effort"], sent["prompt_cache_key"]) == ("m", "low", "s1")
    assert (sent["temperature"], sent["top_p"], sent["seed"], sent["stop"]) == (0.5, 0.9, 7, ["END"])
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["max_completion_tokens"] == 99
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
        ([chunk(content="hm\n</think>\n\nyes")], "hm", "yes"),
        ([chunk(content="see <think>x</think>")], "x", "see "),
        ([chunk(content=text) for text in ("<think>a</think>", "\n", "\n\nb", "\nc")], "a", "b\nc"),
        ([chunk(content="<think>all of it</thi")], "all of it</thi", ""),
        ([chunk(content="<thi")], "", "<thi"),
        ([chunk(content="\n<think>")], "", ""),
        ([chunk(content="<thinner> is no tag")], "", "<thinner> is no tag"),
        ([chunk(content="Use <think> tags.")], "", "Use <think> tags."),
        ([chunk(content=[{"type": "thinking", "thinking": [{"text": "hm"}]}, {"text": "yes"}])], "hm", "yes"),
    ],
)
async def test_reasoning_is_separated_from_the_answer(chunks: list[Any], thought: str, text: str) -> None:
    for split in (0, 1):
        reply = await read_reply("chat", Odd(raw=events(*chunks, chunk("stop"), "[DONE]"), split=split))
        assert (reply.reasoning, reply.text) == (thought, text)


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "filter"), ("weird", "other"), (None, "stop")],
)
async def test_finish_reasons_are_translated(finish: str | None, expected: str) -> None:
    assert (await reply_to(chunk(content="x"), chunk(finish))).finish == expected


async def test_a_reply_that_finishes_with_an_error_fails() -> None:
    error = await read_failure("chat", Odd(raw=events(chunk(content="so far"), chunk("error"), "[DONE]")))
    assert "broke off with an error" in str(error)
    assert (error.kind, error.retryable, error.partial) == ("internal", True, "so far")


async def test_a_refusal_becomes_text_with_finish_filter() -> None:
    reply = await reply_to(chunk(refusal="I can"), chunk(refusal="not."), chunk("stop"))
    assert (reply.text, reply.finish) == ("I cannot.", "filter")


async def test_empty_choices_and_further_choices_are_skipped() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    reply = await reply_to({"choices": []}, {"choices": None}, {}, other, chunk(content="this"), chunk("stop"))
    assert reply.text == "this"


COUNTS = {"prompt_tokens": 100, "completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": 5}}
CACHED = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 60}}
FIRST = {"prompt_tokens": 100, "completion_tokens": 1}


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([chunk("stop"), {"choices": [], "usage": CACHED}], id="in a chunk of its own"),
        pytest.param([chunk("stop") | {"x_groq": {"usage": CACHED}}], id="as groq does"),
        pytest.param([chunk(content="x") | {"usage": FIRST}, chunk("stop") | {"usage": CACHED}], id="in every chunk"),
        pytest.param([chunk("stop") | {"usage": {**COUNTS, "prompt_cache_hit_tokens": 60}}], id="as deepseek does"),
    ],
)
async def test_usage_is_found_where_servers_put_it(chunks: list[Any]) -> None:
    assert (await reply_to(*chunks)).usage == Usage(100, 20, 60, 5)


async def test_calls_written_as_text_are_recovered_where_tools_are_offered() -> None:
    text = 'Sure.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    reply = await reply_to(chunk(content=text), chunk("stop"))
    assert (reply.text, reply.finish) == ("Sure.", "calls")
    assert [(call.tool, call.arguments) for call in reply.calls] == [("add", '{"a":1,"b":2}')]
    assert (await reply_to(chunk(content=text), chunk("stop"), tools=())).text == text
    assert (await reply_to(chunk(content=text), chunk("stop"), recovers_text_calls=False)).text == text


async def test_reasoning_details_and_signatures_are_kept_for_the_same_model() -> None:
    signed = piece(0, "add", "{}", id="x", extra_content={"google": {"thought_signature": "s"}})
    details = [{"type": "reasoning.text", "index": 0, "text": "a", "signature": None}]
    more = [{"type": "reasoning.text", "index": 0, "text": "b", "signature": "sig"}]
    reply = await reply_to(
        chunk(reasoning="a", reasoning_details=details),
        chunk(reasoning="b", reasoning_details=more),
        chunk(tool_calls=[signed]),
        chunk("tool_calls"),
        replays_reasoning=True,
    )
    sent = body(ask("hi", as_message(reply)), Quirks(replays_reasoning=True))["messages"][2]
    assert sent["reasoning_details"] == [{"type": "reasoning.text", "index": 0, "text": "ab", "signature": "sig"}]
    assert sent["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}
