"""Options of a request: each protocol sends, refuses or drops them, and never loses one that changes the answer."""

import json
from typing import Any

import pytest

from tests.kit.fakes.clients import (
    ADD,
    PROTOCOLS,
    TOOLS,
    ask,
    capture_body,
    collect_events,
    collect_failure,
    collect_reply,
    user,
)
from tests.kit.fakes.server import Odd
from treadle.events import TextDelta
from treadle.messages import (
    Call,
    ImagePart,
    ModelMessage,
    Reply,
    ResultMessage,
    Sampling,
    TextPart,
    ToolSpec,
    UserMessage,
)
from treadle.models.anthropic_messages import AnthropicMessages
from treadle.models.chat_completions import ChatCompletions
from treadle.models.local.driver import build_options
from treadle.models.model_info import ModelInfo
from treadle.models.request_options import HINTS

LOGIT_BIAS = {"50256": -100}
HINT_VALUES: dict[str, Any] = {
    "metadata": {"run": "7"},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_key": "key",
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "safety_identifier": "someone",
    "service_tier": "flex",
    "store": False,
    "user": "someone",
    "verbosity": "low",
}


async def capture(protocol: str, extra: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return await capture_body(protocol, "hi", sampling=Sampling(extra=extra), **fields)


async def test_every_option_reaches_an_openai_compatible_server_unchanged() -> None:
    extra = {
        **HINT_VALUES,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": LOGIT_BIAS,
        "logprobs": True,
        "top_logprobs": 2,
    }
    sent = await capture("chat", extra)
    assert {name: sent[name] for name in extra} == extra
    own = {"top_k": 40, "chat_template_kwargs": {"enable_thinking": False}, "an_option_of_the_server": [1]}
    body = json.loads(ChatCompletions("fake", "m").build_body(ask("hi", sampling=Sampling(extra=own)), None))
    assert {name: body[name] for name in own} == own


async def test_each_protocol_gets_an_option_under_its_own_name() -> None:
    anthropic = await capture("anthropic", {"top_k": 5, "user": "me", "service_tier": "default"})
    assert (anthropic["top_k"], anthropic["metadata"], anthropic["service_tier"]) == (
        5,
        {"user_id": "me"},
        "standard_only",
    )
    responses = await capture("responses", {"reasoning_effort": "low", "verbosity": "high", "logprobs": True})
    assert (responses["reasoning"], responses["text"]) == ({"effort": "low"}, {"verbosity": "high"})
    assert responses["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    ollama = await capture("ollama", {"presence_penalty": 1, "repetition_penalty": 1.1, "options": {"num_gpu": 1}})
    assert ollama["options"] | {"presence_penalty": 1, "repeat_penalty": 1.1, "num_gpu": 1} == ollama["options"]
    local = build_options(
        ask("hi", sampling=Sampling(extra={"top_k": 3, "logit_bias": LOGIT_BIAS, "n_predict": -1})),
        temperature=0,
        tokens=9,
    )
    assert local == {"temperature": 0, "n_predict": 9, "top_k": 3, "logit_bias": LOGIT_BIAS}


@pytest.mark.parametrize(
    ("protocol", "option", "value"),
    [
        ("anthropic", "logit_bias", LOGIT_BIAS),
        ("anthropic", "logprobs", True),
        ("anthropic", "presence_penalty", 0.1),
        ("anthropic", "min_p", 0.1),
        ("responses", "frequency_penalty", 0.1),
        ("responses", "logit_bias", LOGIT_BIAS),
        ("responses", "top_k", 4),
        ("ollama", "logit_bias", LOGIT_BIAS),
        ("ollama", "modalities", ["text", "audio"]),
    ],
)
async def test_an_option_that_changes_the_answer_is_refused_before_the_provider_is_asked(
    protocol: str, option: str, value: Any
) -> None:
    async with PROTOCOLS[protocol].fake() as fake:
        model = PROTOCOLS[protocol].model(fake)
        failure = await collect_failure(model, ask("hi", sampling=Sampling(extra={option: value})))
        assert (failure.kind, failure.param, failure.retryable) == ("bad_request", option, False)
        assert not [seen for seen in fake.seen if "messages" in seen.body or "input" in seen.body]


async def test_stop_is_refused_where_the_protocol_has_none() -> None:
    async with PROTOCOLS["responses"].fake() as fake:
        failure = await collect_failure(PROTOCOLS["responses"].model(fake), ask("hi", sampling=Sampling(stop=("x",))))
    assert failure.param == "stop" and not fake.seen


@pytest.mark.parametrize("protocol", ["anthropic", "responses", "ollama"])
async def test_hints_and_values_without_effect_never_stop_a_request(protocol: str) -> None:
    assert HINT_VALUES.keys() == HINTS
    await capture(protocol, HINT_VALUES)
    neutral = {"logprobs": False, "presence_penalty": 0, "logit_bias": {}, "parallel_tool_calls": True, "top_k": 0}
    await capture(protocol, {**neutral, "modalities": ["text"]}, tools=TOOLS)


@pytest.mark.parametrize("protocol", ["chat", "responses", "anthropic"])
async def test_one_call_at_a_time_is_asked_for_in_each_protocols_words(protocol: str) -> None:
    sent = await capture(protocol, {"parallel_tool_calls": False}, tools=TOOLS)
    if protocol == "anthropic":
        assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    else:
        assert sent["parallel_tool_calls"] is False


async def test_an_effort_becomes_a_budget_or_anthropics_own_effort() -> None:
    sent = await capture("anthropic", {"reasoning_effort": "low"})
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 4096} and "output_config" not in sent
    newer = AnthropicMessages("anthropic", "m", ModelInfo("m", accepts_sampling=False))
    body = json.loads(newer.build_body(ask("hi", sampling=Sampling(extra={"reasoning_effort": "xhigh"})), None))
    assert body["output_config"] == {"effort": "max"} and "thinking" not in body


async def test_fields_under_a_protocols_name_go_to_that_protocol_alone() -> None:
    extra = {"anthropic": {"thinking": {"type": "adaptive"}}, "responses": {"reasoning": {"summary": "auto"}}}
    assert (await capture("anthropic", extra))["thinking"] == {"type": "adaptive"}
    assert (await capture("responses", extra))["reasoning"] == {"summary": "auto"}
    assert not {"anthropic", "responses", "thinking", "reasoning"} & (await capture("chat", extra)).keys()


@pytest.mark.parametrize("strict", [True, False, None])
async def test_strict_of_a_tool_reaches_the_provider(strict: bool | None) -> None:
    tool = ToolSpec(ADD.name, ADD.description, {**ADD.parameters, "additionalProperties": False}, strict=strict)
    chat = await capture("chat", {}, tools=(tool,))
    assert chat["tools"][0]["function"].get("strict") is strict
    assert (await capture("responses", {}, tools=(tool,)))["tools"][0]["strict"] is bool(strict)
    assert (await capture("anthropic", {}, tools=(tool,)))["tools"][0].get("strict", False) is bool(strict)


async def test_an_instruction_in_the_middle_keeps_its_place() -> None:
    later = UserMessage((TextPart("Now in French."),), is_system=True)
    messages = (user("hi"), ModelMessage("Hello."), later, user("again"))
    chat = await capture_body("chat", *messages)
    assert [one["role"] for one in chat["messages"]] == ["system", "user", "assistant", "system", "user"]
    responses = await capture_body("responses", *messages)
    assert responses["input"][2] == {"role": "developer", "content": "Now in French."}
    anthropic = await capture_body("anthropic", *messages)
    assert anthropic["messages"][2]["content"][0]["text"] == "<system>\nNow in French.\n</system>"
    ollama = await capture_body("ollama", *messages)
    assert ollama["messages"][3] == {"role": "user", "content": "<system>\nNow in French.\n</system>"}


async def test_an_image_in_a_tool_result_reaches_every_provider() -> None:
    calls = (Call("call_1", "add"), Call("call_2", "add"))
    shown = ResultMessage("call_1", "add", "a plot", parts=(ImagePart(data="QUJD"),))
    messages = (user("hi"), ModelMessage("", calls), shown, ResultMessage("call_2", "add", "4"))
    chat = await capture_body("chat", *messages, tools=TOOLS)
    assert [one["role"] for one in chat["messages"][-3:]] == ["tool", "tool", "user"]
    assert chat["messages"][-1]["content"][1]["image_url"]["url"] == "data:image/png;base64,QUJD"
    responses = await capture_body("responses", *messages, tools=TOOLS)
    assert responses["input"][2 + 1]["output"][1]["image_url"] == "data:image/png;base64,QUJD"
    anthropic = await capture_body("anthropic", *messages, tools=TOOLS)
    assert anthropic["messages"][-1]["content"][0]["content"][1]["source"]["data"] == "QUJD"
    ollama = await capture_body("ollama", *messages, tools=TOOLS)
    assert ollama["messages"][-1]["images"] == ["QUJD"]


async def test_log_probabilities_are_read_from_every_protocol_that_has_them() -> None:
    entry = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": []}
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi", "logprobs": [entry]}
    end = {"type": "response.completed", "response": {"status": "completed"}}
    line = {"message": {"content": "Hi"}, "logprobs": [entry], "done": False}
    last = {"message": {"content": ""}, "done": True, "done_reason": "stop"}
    raw = {
        "responses": b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in (delta, end)),
        "ollama": b"".join(json.dumps(one).encode() + b"\n" for one in (line, last)),
    }
    for protocol, body in raw.items():
        async with PROTOCOLS[protocol].fake([Odd(raw=body)]) as fake:
            asked = ask("hi", sampling=Sampling(extra={"logprobs": True}))
            events = await collect_events(PROTOCOLS[protocol].model(fake), asked)
        assert events[0] == TextDelta(text="Hi", logprobs=(entry,))
        assert isinstance(events[-1], Reply) and events[-1].logprobs == (entry,)


async def test_a_server_without_the_option_gives_one_call_at_a_time() -> None:
    calls = (Call("call_1", "add"), Call("call_2", "add"))
    extra = {"parallel_tool_calls": False}
    async with PROTOCOLS["ollama"].fake([Reply(calls=calls)]) as fake:
        asked = ask("hi", tools=TOOLS, sampling=Sampling(extra=extra))
        assert len((await collect_reply(PROTOCOLS["ollama"].model(fake), asked)).calls) == 1
