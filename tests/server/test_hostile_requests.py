"""Requests that no proper client sends: each gets an error that names its field, never a 5xx or a broken response."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server import Client, serve_agents, serve_script
from treadle import Agent
from treadle.messages import FilePart, TextPart, UserMessage
from treadle.testing import ScriptedModel

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HOSTILE = (
    *("null", "true", "5", "-1", "1.5", "1e999", "NaN", str(10**30), '""', '"x"', '"a\\r\\nb: c"', '"\\u0000"'),
    *('"\\ud800"', "[]", "{}", "[[]]", "[null]", "[5]", '{"type":5}', '{"name":["x"]}', '{"type":"tool","name":[]}'),
    f'"{"a" * 3000}"',
)
IMAGE = "data:image/png;base64,AAAA"
FUNCTION = {"name": "add", "parameters": {"type": "object"}, "strict": True}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "hi"}, {"type": "file", "file": {"file_data": IMAGE}}],
                },
                {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "3"},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {"type": "function", "function": {"name": "add"}},
            "n": 2,
            "seed": 5,
        },
    ),
    (
        RESPONSES,
        {
            "input": [
                {"role": "user", "id": "m", "content": [{"type": "input_image", "image_url": IMAGE}]},
                {"type": "reasoning", "summary": [{"text": "t"}], "encrypted_content": "AAAA"},
                {"type": "function_call", "call_id": "c1", "name": "add", "namespace": "ns", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "3"},
                {"type": "additional_tools", "tools": [{"type": "function", "name": "more"}]},
            ],
            "tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}],
            "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "add"}]},
            "reasoning": {"effort": "low"},
        },
    ),
    (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": []}}]},
                {"role": "user", "content": [{"type": "search_result", "source": "s", "content": []}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": []}]},
            ],
            "tools": [{"name": "add", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "tool", "name": "add"},
            "stream": True,
        },
    ),
]


def spoil(value: Any) -> Iterator[Any]:
    """Yield the value with each of its parts in turn replaced by a mark."""
    yield "MARK"
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in pairs:
        for spoiled in spoil(part):
            copied = value.copy()
            copied[key] = spoiled
            yield copied


async def send_text(client: Client, path: str, text: str) -> tuple[int, str, str]:
    async with client.request("POST", path, data=text, headers={"content-type": "application/json"}) as answer:
        return answer.status, await answer.text(), answer.headers.get("x-treadle-ignored-tools", "")


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_no_value_in_any_field_of_a_request_gives_an_internal_error(path: str, body: dict[str, Any]) -> None:
    async with serve_agents(Agent(ScriptedModel(*["ok"] * 5000))) as client:
        for spoiled in spoil({"model": "scripted", **body}):
            for value in HOSTILE:
                text = json.dumps(spoiled).replace('"MARK"', value)
                status, answer, _ = await send_text(client, path, text)
                assert status in (200, 400, 403, 404, 422), f"{status} {text}"
                assert "internal error" not in answer, text


async def test_ignored_tools_with_line_breaks_are_cleaned_in_the_header_of_every_format() -> None:
    async with serve_script("one", "two", "three") as client:
        base = {"model": "scripted", "input": "hi"}
        hostile = [{"type": "a\r\nx-evil: 1"}, {"type": ""}, {"type": "web_search"}]
        status, _, named = await send_text(client, RESPONSES, json.dumps({**base, "tools": hostile}))
        assert (status, named) == (200, "a__x-evil__1, _, web_search")
        many = [{"type": f"kind{number}" + "x" * 200} for number in range(1000)]
        status, _, named = await send_text(client, RESPONSES, json.dumps({**base, "tools": many}))
        assert status == 200 and 3000 < len(named) < 5000
        messages = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "b\n", "name": "c\r"}],
        }
        status, _, named = await send_text(client, MESSAGES, json.dumps(messages))
        assert (status, named) == (200, "c_")


async def test_content_that_is_no_text_is_refused_and_not_shown_to_the_model_as_python_writes_it() -> None:
    async with serve_script("one") as client:
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": {"a": 1}},
            {"type": "text", "text": 5},
            {"type": "image_url", "image_url": {"url": 5}},
            {"type": "file", "file": {"file_data": 5}},
            {"type": "file", "file": {"file_id": "file_1"}},
            {"type": "file", "file": {"file_data": None}},
        ]
        for part in parts:
            body = {"model": "scripted", "messages": [{"role": "user", "content": [part]}]}
            assert (await client.problem("POST", CHAT, body))["message"], part
        calls: list[dict[str, Any]] = [{"arguments": {"a": 1}}, {"name": 5}, {"namespace": []}, {"call_id": 7}]
        for fields in calls:
            item = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}", **fields}
            problem = await client.problem("POST", RESPONSES, {"model": "scripted", "input": [item]})
            assert f"{next(iter(fields))}: must be text" in problem["message"]
        blocks: list[dict[str, Any]] = [
            {"type": "text", "text": 5},
            {"text": "no type"},
            {"type": "tool_use", "id": "c", "name": "add", "input": "text"},
        ]
        for block in blocks:
            body = {
                "model": "scripted",
                "messages": [{"role": "assistant", "content": [block]}, {"role": "user", "content": [block]}],
            }
            async with client.request("POST", MESSAGES, json=body) as answer:
                assert answer.status == 400, block
        content = [{"type": "text", "text": None}, {"type": "file", "file": {"file_data": IMAGE, "filename": None}}]
        await client.json("POST", CHAT, {"model": "scripted", "messages": [{"role": "user", "content": content}]})
        assert client.model.requests[0].messages == [UserMessage((TextPart(""), FilePart("file", "AAAA", "image/png")))]


async def test_a_workspace_that_cannot_be_read_is_an_invalid_field(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    async with serve_script(roots=(tmp_path,)) as client:
        for name in ("a" * 300, "circle", "circle/more", "missing"):
            problem = await client.problem("POST", "/v1/sessions", {"workspace": name}, 422)
            assert problem["param"] == "workspace"


async def test_a_model_file_that_cannot_be_read_is_an_invalid_field(tmp_path: Path) -> None:
    (tmp_path / "circle.gguf").symlink_to(tmp_path / "circle.gguf")
    async with serve_script(model_roots=(tmp_path,)) as client:
        for name in ("~nobody-has-this-name/x.gguf", f"{'a' * 300}.gguf", "circle.gguf"):
            async with client.request("POST", "/v1/models/load", json={"model": f"local:{name}"}) as answer:
                assert answer.status in (404, 422), await answer.text()


async def test_tools_that_are_left_out_are_named_once_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "scripted", "input": "hi", "tools": [{"type": "crystal_ball"}]}
    async with serve_script("one", "two") as client:
        for _ in range(2):
            await client.json("POST", "/v1/responses", body)
    assert caplog.text.count("cannot be served, and these are left out: crystal_ball") == 1
