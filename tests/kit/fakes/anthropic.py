"""A strict fake of Anthropic Messages: it refuses the requests that the real one refuses."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from tests.kit.fakes.server import Strict, events, pieces, unknown, words
from treadle.messages import Reply

FIELDS = words(
    """max_tokens messages model cache_control container diagnostics inference_geo metadata output_config
    service_tier speed stop_sequences system thinking tool_choice tools user_profile_id workspace_id stream
    temperature top_p top_k"""
)
BLOCKS = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
FOR_ROLE = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "tool_use", "thinking", "redacted_thinking"},
}
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
STOP = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens", "filter": "refusal", "other": "pause_turn"}


def sign(body: dict[str, Any], before: list[dict[str, Any]], thinking: str) -> str:
    """Binds thinking to the model and to all that came before it, as the newer models do."""
    bound = json.dumps([body["model"], body.get("system"), body.get("tools"), before, thinking])
    return hashlib.sha256(bound.replace(', "cache_control": {"type": "ephemeral"}', "").encode()).hexdigest()


class StrictAnthropic(Strict):
    """The Messages API. A reply's `reasoning` becomes a signed thinking block, good for its own model only."""

    path = "/messages"

    def is_authorised(self, headers: dict[str, str]) -> bool:
        key = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
        return key == self._key and headers.get("anthropic-version") in ("2023-06-01", "2026-10-21")

    def refusal(self, code: int, message: str) -> bytes:
        kind = {401: "authentication_error", 404: "not_found_error"}.get(code, "invalid_request_error")
        return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()

    def problems(self, body: dict[str, Any]) -> list[str]:
        wrong = unknown("request", body, FIELDS, {"model", "messages", "max_tokens"})
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return [*wrong, "messages: must not be empty"]
        thinking = body.get("thinking") or {}
        if thinking.get("type") == "enabled":
            budget = thinking.get("budget_tokens", 0)
            if not 1024 <= budget < body.get("max_tokens", 0):
                wrong.append(f"thinking.budget_tokens: {budget} is not between 1024 and max_tokens")
        if thinking.get("type") in ("enabled", "adaptive") and body.get("temperature", 1) != 1:
            wrong.append("temperature: may only be 1 when thinking")
        wrong += turn_problems(messages, body, thinking.get("type") == "enabled")
        wrong += tool_problems(body, messages)
        if json.dumps(body).count('"cache_control"') > 4:
            wrong.append("more than 4 blocks with cache_control")
        for block in body.get("system") or ():
            if not isinstance(block, dict) or block.get("type") != "text" or not block.get("text", "").strip():
                wrong.append("system: must be text blocks that are not empty")
        form = (body.get("output_config") or {}).get("format")
        if form is not None:
            wrong += schema_problems(form.get("schema", {}))
        return wrong

    def render(self, reply: Reply, body: dict[str, Any]) -> bytes:
        used = reply.usage
        model = body["model"]
        counts = {
            "input_tokens": (used.input_tokens or 11) - used.cached_tokens,
            "cache_read_input_tokens": used.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": 1,
        }
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
        message |= {"stop_reason": None, "stop_sequence": None, "usage": counts}
        out: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
        index = 0

        def block(start: dict[str, Any], deltas: list[dict[str, Any]]) -> None:
            nonlocal index
            out.append({"type": "content_block_start", "index": index, "content_block": start})
            out.extend({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
            out.append({"type": "content_block_stop", "index": index})
            index += 1

        if reply.reasoning:
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reply.reasoning)]
            deltas.append({"type": "signature_delta", "signature": sign(body, body["messages"], reply.reasoning)})
            block({"type": "thinking", "thinking": "", "signature": ""}, deltas)
        if reply.text:
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(reply.text)]
            block({"type": "text", "text": ""}, deltas)
        for call in reply.calls:
            deltas = [{"type": "input_json_delta", "partial_json": ""}]
            deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(call.arguments, 5)]
            block({"type": "tool_use", "id": call.id, "name": call.tool, "input": {}}, deltas)
        finish = "tool_use" if reply.calls and reply.finish == "stop" else STOP[reply.finish]
        delta = {"stop_reason": finish, "stop_sequence": None}
        out.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": used.output_tokens or 7}})
        out.append({"type": "message_stop"})
        return events(*out, named=True)


def turn_problems(messages: list[dict[str, Any]], body: dict[str, Any], thinks: bool) -> list[str]:
    wrong: list[str] = []
    due: list[str] = []
    expected = "user"
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        wrong += unknown(where, message, {"role", "content"}, {"role", "content"})
        role, content = message.get("role"), message.get("content")
        if role != expected:
            return [*wrong, f"{where}: role must be {expected}, roles alternate"]
        expected = "assistant" if role == "user" else "user"
        if not isinstance(content, list) or not content:
            return [*wrong, f"{where}: content must be blocks"]
        for block in content:
            wrong += block_problems(where, block, role)
            if block.get("type") == "thinking":
                if block.get("signature") != sign(body, messages[:place], block.get("thinking", "")):
                    wrong.append(f"{where}: Invalid `signature` in `thinking` block. Bound to something else")
        if role == "user":
            wrong += result_problems(where, content, due)
            due = []
        else:
            due = [block["id"] for block in content if block.get("type") == "tool_use"]
            if len(set(due)) != len(due):
                wrong.append(f"{where}: tool_use ids must be unique")
    if messages[-1].get("role") == "assistant":
        wrong.append("this model does not support prefill: the conversation must end with a user message")
    in_loop = len(messages) > 1 and any(b.get("type") == "tool_result" for b in messages[-1]["content"])
    if thinks and in_loop and "thinking" not in messages[-2]["content"][0].get("type", ""):
        wrong.append("Expected `thinking` or `redacted_thinking`, but found something else")
    return wrong


def result_problems(where: str, content: list[dict[str, Any]], due: list[str]) -> list[str]:
    """Each tool_use has its one tool_result at the beginning of the next user turn."""
    wrong: list[str] = []
    results = [block.get("tool_use_id") for block in content if block.get("type") == "tool_result"]
    if missing := set(due) - set(results):
        wrong.append(f"{where}: `tool_use` ids without `tool_result` blocks immediately after: {sorted(missing)}")
    if foreign := set(results) - set(due):
        wrong.append(f"{where}: unexpected `tool_use_id` in `tool_result` blocks: {sorted(foreign)}")
    if len(set(results)) != len(results):
        wrong.append(f"{where}: each tool_use must have a single result")
    if any(block.get("type") != "tool_result" for block in content[: len(results)]):
        wrong.append(f"{where}: tool results must come first")
    return wrong


def block_problems(where: str, block: dict[str, Any], role: str) -> list[str]:
    kind = block.get("type")
    if kind not in FOR_ROLE[role]:
        return [f"{where}: a {role} may not send {kind!r}"]
    wrong = unknown(where, block, BLOCKS[kind], {"type"})
    match block:
        case {"type": "text", "text": str(text)} if text.strip():
            pass
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict()}:
            if not ID.fullmatch(call_id) or not NAME.fullmatch(name):
                wrong.append(f"{where}: bad id or name: {call_id!r}, {name!r}")
        case {"type": "tool_result", "tool_use_id": str(), "content": str() | list()}:
            pass
        case {"type": "image", "source": {"type": "base64", "media_type": str(media), "data": str(data)}} if data:
            if media not in ("image/jpeg", "image/png", "image/gif", "image/webp"):
                wrong.append(f"{where}: image of type {media}")
        case {"type": "image", "source": {"type": "url", "url": str()}} | {"type": "document", "source": dict()}:
            pass
        case {"type": "thinking", "thinking": str(), "signature": str()} | {"type": "redacted_thinking", "data": str()}:
            pass
        case _:
            wrong.append(f"{where}: bad block {json.dumps(block)[:80]}")
    return wrong


def tool_problems(body: dict[str, Any], messages: list[dict[str, Any]]) -> list[str]:
    wrong: list[str] = []
    tools = body.get("tools")
    used = any(b.get("type") in ("tool_use", "tool_result") for m in messages for b in m.get("content", []))
    if used and not tools:
        wrong.append("Requests which include `tool_use` or `tool_result` blocks must define tools")
    if tools is not None and not tools:
        wrong.append("tools: must not be empty")
    names = [tool.get("name") for tool in tools or ()]
    if len(set(names)) != len(names):
        wrong.append("tools: names must be unique")
    for tool in tools or ():
        allowed = {"name", "description", "input_schema", "cache_control", "type", "strict"}
        wrong += unknown("tools", tool, allowed, {"name", "input_schema"})
        if tool.get("input_schema", {}).get("type") != "object":
            wrong.append("tools: input_schema.type must be object")
        if not NAME.fullmatch(tool.get("name") or ""):
            wrong.append(f"tools: bad name {tool.get('name')!r}")
    match body.get("tool_choice"):
        case None:
            pass
        case {"type": "auto" | "any" | "none"} if tools:
            pass
        case {"type": "tool", "name": name} if name in names:
            pass
        case other:
            wrong.append(f"tool_choice: {other!r}")
    return wrong


def schema_problems(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [wrong for item in schema for wrong in schema_problems(item)]
    if not isinstance(schema, dict):
        return []
    wrong = [wrong for value in schema.values() for wrong in schema_problems(value)]
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        wrong.append("output_config: additionalProperties must be false")
    wrong += [f"output_config: {name} is not supported" for name in ("minimum", "maxLength") if name in schema]
    return wrong
