"""The call formats of model families: read from what their templates write, held by a grammar, and read again."""

import json
import random
from typing import cast

import pytest

from tests.models.local.gbnf import generate_sentence
from tests.models.local.test_local_drivers import ASKED, READ, Scripted, drive, pieces
from treadle.messages import Request
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.driver_probe import REQUESTS, count_right_calls
from treadle.models.local.json_tools import ANSWER, JsonTools
from treadle.models.local.llama_process import EngineFacts
from treadle.models.local.own_format import CallFormat, OwnFormat, read_call_format

FAMILIES = {
    "qwen2.5": (
        "<|im_start|>user\nDim the light.<|im_end|>\n<|im_start|>assistant\n",
        '<tool_call>\n{"name": "room_light", "arguments": {"state": "dim"}}\n</tool_call><|im_end|>\n<|im_start|>',
    ),
    "llama3.2": (
        "<|start_header_id|>user<|end_header_id|>\n\nDim the light.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        '{"name": "room_light", "parameters": {"state": "dim"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>',
    ),
    "smollm2-1.7b": (
        "<|im_start|>user\nDim the light.<|im_end|>\n<|im_start|>assistant\n",
        '<tool_call>[{"name": "room_light", "arguments": {"state": "dim"}}]</tool_call><|im_end|>\n',
    ),
}
FORMATS = {
    "qwen2.5": CallFormat('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    "llama3.2": CallFormat('{"name": "', '", "parameters": ', "}"),
    "smollm2-1.7b": CallFormat('<tool_call>[{"name": "', '", "arguments": ', "}]</tool_call>"),
}
PROMPT = json.dumps({"prompt": "PROMPT"})


def build_driver(engine: Scripted, family: str) -> OwnFormat:
    return OwnFormat(engine, "local:x", ChatPrompt(engine, facts()), FORMATS[family])


def facts(template: str = "{% if tools %}<|im_start|>") -> EngineFacts:
    return EngineFacts(window=4096, parameters=494_032_768, template=template)


def write_call(family: str, tool: str, **arguments: str) -> str:
    form = FORMATS[family]
    return f"{form.opening}{tool}{form.middle}{json.dumps(arguments)}{form.closing}"


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_format_is_read_from_the_template(family: str) -> None:
    before, call = FAMILIES[family]
    engine = Scripted(json.dumps({"prompt": before}), json.dumps({"prompt": before + call}))
    assert await read_call_format(engine, facts()) == FORMATS[family]


@pytest.mark.parametrize(
    ("template", "after"),
    [
        ("no calls", "x"),
        ("{% if tools %}<think>", "x"),
        ("{% if tools %}", "Dim the light.[call room_light state=dim]"),
        ("{% if tools %}", "another beginning"),
    ],
)
async def test_a_template_without_such_a_format_is_left_to_other_drivers(template: str, after: str) -> None:
    engine = Scripted(json.dumps({"prompt": "Dim the light."}), json.dumps({"prompt": after}))
    assert await read_call_format(engine, facts(template)) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_every_text_of_the_grammar_is_a_call_that_can_be_read_or_an_answer(family: str) -> None:
    form, rng = FORMATS[family], random.Random(1)
    required = form.build_grammar(Request("", ASKED, (READ,), tool_choice="required"))
    for _ in range(50):
        tool, arguments = cast("tuple[str, str]", form.split_call(generate_sentence(required, rng)))
        assert tool == "read" and list(json.loads(arguments)) == ["path"]
    texts = [generate_sentence(form.build_grammar(Request("", ASKED, (READ,))), rng) for _ in range(50)]
    answers = [text for text in texts if not text.startswith(form.opening[0])]
    assert 0 < len(answers) < 50
    assert all(form.split_call(text) for text in texts if text not in answers)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_call_and_an_answer_come_from_one_prompt_of_the_template(family: str) -> None:
    call = write_call(family, "read", path="b.txt")
    engine = Scripted(PROMPT, pieces(call[:9], call[9:]), PROMPT, pieces("It is", " done."))
    driver = build_driver(engine, family)
    _, reply = await drive(driver, Request("Be brief.", ASKED, (READ,)))
    assert [(made.tool, json.loads(made.arguments)) for made in reply.calls] == [("read", {"path": "b.txt"})]
    assert (reply.finish, reply.text) == ("calls", "")
    _, reply = await drive(driver, Request("", ASKED, (READ,)))
    assert (reply.text, reply.calls, reply.finish) == ("It is done.", (), "stop")
    rendered, completed = engine.asked[:2]
    assert [message["role"] for message in rendered["messages"]] == ["system", "user"]
    assert rendered["tools"][0]["function"]["name"] == "read"
    assert completed["prompt"] == "PROMPT" and "root ::=" in completed["grammar"]


async def test_a_call_that_is_cut_off_or_repeats_itself_is_not_made() -> None:
    call = write_call("qwen2.5", "read", path="b.txt")
    engine = Scripted(PROMPT, pieces(call[:40]), PROMPT, pieces(call[:40], *["on and on "] * 300))
    driver = build_driver(engine, "qwen2.5")
    _, cut = await drive(driver, Request("", ASKED, (READ,)))
    _, loop = await drive(driver, Request("", ASKED, (READ,)))
    assert (cut.calls, cut.finish) == ((), "length")
    assert (loop.calls, loop.finish) == ((), "other") and "not made" in loop.text


async def test_a_driver_is_scored_by_the_calls_that_it_gets() -> None:
    said = ['{"tool": "room_temperature", "arguments": {"room": "the kitchen"}}']
    said += ['{"tool": "send_message", "arguments": {"person": "Anna", "message": "hi"}}']
    said += ['{"tool": "current_time", "arguments": {}}', ANSWER]
    engine = Scripted(*map(pieces, said), pieces("Hello!"))
    assert await count_right_calls(JsonTools(engine, "local:x", ChatPrompt(engine, facts()))) == len(REQUESTS) - 1
