"""The call formats of model families: read from what their templates write, held by a grammar, and read again."""

import json
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import pytest

from tests.models.local.gbnf import generate_sentence
from tests.models.local.test_local_drivers import ASKED, READ, Scripted, drive, pieces
from treadle.messages import Call, Reply, Request
from treadle.models.base import ModelEvent
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.driver import Driver
from treadle.models.local.driver_probe import REQUESTS, count_right_calls
from treadle.models.local.json_tools import ANSWER, JsonTools
from treadle.models.local.llama_process import EngineFacts
from treadle.models.local.local_model import DriverName, LocalModel
from treadle.models.local.model_cache import ModelCache
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


class Answers(Driver):
    """Gets the right call for the first `right` requests of the probe, and nothing for the others."""

    def __init__(self, right: int) -> None:
        self.right, self.asked = right, 0

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        self.asked += 1
        _, tool, word = REQUESTS[self.asked - 1]
        if self.asked <= self.right:
            calls = (Call("c", tool, json.dumps({"it": word})),) if tool else ()
            yield Reply("" if tool else "Hello!", calls=calls)


@pytest.mark.parametrize(
    ("parameters", "right", "picked"),
    [
        (135e6, {"own": 4}, "choose"),
        (0.5e9, {"own": 4}, "own"),
        (0.5e9, {"own": 3, "native": 4, "union": 4}, "choose"),
        (0.5e9, {"native": 4, "union": 4}, "choose"),
        (1.5e9, {"own": 2, "native": 4, "union": 3}, "native"),
        (1.5e9, {"own": 2, "native": 2, "union": 2}, "own"),
        (1.5e9, {"native": 0, "union": 1}, "union"),
    ],
)
async def test_a_probe_decides_between_the_drivers_once_for_each_model(
    tmp_path: Path, parameters: float, right: dict[DriverName, int], picked: DriverName
) -> None:
    (tmp_path / "weights.gguf").write_bytes(b"GGUF")
    cache = ModelCache(tmp_path / "cache", tmp_path / "weights.gguf")
    drivers: dict[DriverName, Driver] = {name: Answers(count) for name, count in right.items()}
    found = EngineFacts(window=4096, parameters=int(parameters), template="")
    assert await LocalModel(tmp_path / "weights.gguf")._pick_driver(drivers, found, cache) == picked
    again: dict[DriverName, Driver] = {name: Answers(0) for name in right}
    assert await LocalModel(tmp_path / "weights.gguf")._pick_driver(again, found, cache) == picked, "it is kept"
