"""A strict fake of Chat Completions: it refuses the requests that OpenAI refuses."""

from __future__ import annotations

import json
from typing import Any

from tests.kit.fakes.server import FUNCTION_NAME, Strict, events, pieces, tool_problems, unknown, words
from treadle.messages import Reply

FIELDS = words(
    """messages model audio frequency_penalty function_call functions logit_bias logprobs
    max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls prediction
    presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
    safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools
    top_logprobs top_p user verbosity web_search_options"""
)
ROLES = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio", "function_call"},
    "tool": {"role", "content", "tool_call_id"},
}
FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length", "filter": "content_filter"}


class StrictChat(Strict):
    """The Chat Completions API."""

    path = "/chat/completions"

    def problems(self, body: dict[str, Any]) -> list[str]:
        wrong = unknown("request", body, FIELDS, {"model", "messages"})
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return [*wrong, "messages: must be a list that is not empty"]
        wrong += conversation_problems(messages)
        tools = body.get("tools")
        for tool in tools or ():
            wrong += unknown("tools", tool, {"type", "function"}, {"type", "function"})
        flat = [{"type": tool.get("type"), **tool.get("function", {})} for tool in tools or ()]
        wrong += tool_problems(body, flat if tools is not None else None)
        if body.get("stream_options") is not None and not body.get("stream"):
            wrong.append("stream_options: only allowed with stream")
        for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1), ("max_tokens", 1, 1 << 20)):
            value = body.get(name)
            if value is not None and not low <= value <= high:
                wrong.append(f"{name}: {value} is out of range")
        if "max_tokens" in body and "max_completion_tokens" in body:
            wrong.append("max_tokens and max_completion_tokens exclude each other")
        if (form := body.get("response_format")) is not None:
            wrong += format_problems(form)
        return wrong

    def render(self, reply: Reply, body: dict[str, Any]) -> bytes:
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
            if body.get("logprobs") and delta.get("content"):
                likeliest = [score_token(f"other {n}") for n in range(body.get("top_logprobs", 0))]
                choice["logprobs"] = {"content": [{**score_token(delta["content"]), "top_logprobs": likeliest}]}
            return {**base, "choices": [choice]}

        out = [chunk({"role": "assistant", "content": ""})]
        out += [chunk({"reasoning_content": piece}) for piece in pieces(reply.reasoning)]
        out += [chunk({"content": piece}) for piece in pieces(reply.text)]
        for index, call in enumerate(reply.calls):
            function = {"name": call.tool, "arguments": ""}
            first = {"index": index, "id": call.id, "type": "function", "function": function}
            out.append(chunk({"tool_calls": [first]}))
            out += [
                chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                for piece in pieces(call.arguments, 5)
            ]
        finish = "tool_calls" if reply.calls and reply.finish == "stop" else FINISH.get(reply.finish, "stop")
        out.append(chunk({}, finish))
        if (body.get("stream_options") or {}).get("include_usage"):
            used = reply.usage
            counts = {"prompt_tokens": used.input_tokens or 11, "completion_tokens": used.output_tokens or 7}
            details = {
                "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
                "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
            }
            usage = {**counts, "total_tokens": sum(counts.values()), **details}
            out.append({**base, "choices": [], "usage": usage})
        return events(*out, "[DONE]")

    def document(self, method: str, path: str) -> Any:
        return {"object": "list", "data": [{"id": "fake", "object": "model"}]} if path == "/v1/models" else None


def score_token(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode())}


def conversation_problems(messages: list[dict[str, Any]]) -> list[str]:
    """Roles, fields, and the rule that every call has its one result right behind it."""
    wrong: list[str] = []
    waiting: list[str] = []
    for place, message in enumerate(messages):
        where = f"messages.{place}"
        role = message.get("role")
        if role not in ROLES:
            wrong.append(f"{where}: unknown role {role!r}")
            continue
        wrong += unknown(where, message, ROLES[role], {"role"})
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in waiting:
                wrong.append(f"{where}: a tool message must follow the call it answers ({call_id!r})")
            else:
                waiting.remove(call_id)
            if not isinstance(message.get("content"), str):
                wrong.append(f"{where}: content must be text")
            continue
        if waiting:
            wrong.append(f"{where}: tool_call_ids without a result: {waiting}")
            waiting = []
        if role == "assistant":
            wrong += assistant_problems(where, message)
            waiting = [call.get("id") for call in message.get("tool_calls") or ()]
        else:
            wrong += content_problems(where, message.get("content"))
    if waiting:
        wrong.append(f"tool_call_ids without a result: {waiting}")
    if messages[-1].get("role") == "assistant":
        wrong.append("the last message must not be the assistant's")
    return wrong


def assistant_problems(where: str, message: dict[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    content = message.get("content")
    if calls is None:
        return [] if isinstance(content, str) and content else [f"{where}: neither content nor tool_calls"]
    if not calls:
        return [f"{where}: tool_calls must not be empty"]
    wrong: list[str] = []
    if content is not None and not isinstance(content, str):
        wrong.append(f"{where}: content must be text or null")
    ids = [call.get("id") for call in calls]
    if len(set(ids)) != len(ids):
        wrong.append(f"{where}: the same id twice")
    for call in calls:
        wrong += unknown(f"{where}.tool_calls", call, {"id", "type", "function"}, {"id", "type", "function"})
        if not isinstance(call.get("id"), str) or not 1 <= len(call["id"]) <= 40:
            wrong.append(f"{where}: id must have 1 to 40 characters: {call.get('id')!r}")
        function = call.get("function", {})
        wrong += unknown(f"{where}.function", function, {"name", "arguments"}, {"name", "arguments"})
        if not FUNCTION_NAME.fullmatch(function.get("name") or ""):
            wrong.append(f"{where}: bad function name {function.get('name')!r}")
        try:
            if not isinstance(json.loads(function.get("arguments")), dict):
                wrong.append(f"{where}: arguments must be an object")
        except (TypeError, ValueError):
            wrong.append(f"{where}: arguments must be JSON text")
    return wrong


def content_problems(where: str, content: Any) -> list[str]:
    if isinstance(content, str):
        return [] if content else [f"{where}: content is empty"]
    if not isinstance(content, list) or not content:
        return [f"{where}: content must be text or a list of parts"]
    wrong: list[str] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)} if text:
                pass
            case {"type": "image_url", "image_url": {"url": str(url)}} if url.startswith(("data:image/", "https:")):
                pass
            case {"type": "file", "file": {"filename": str(), "file_data": str()}}:
                pass
            case _:
                wrong.append(f"{where}: bad part {json.dumps(part)[:80]}")
    return wrong


def format_problems(form: dict[str, Any]) -> list[str]:
    match form:
        case {"type": "text" | "json_object"}:
            return []
        case {"type": "json_schema", "json_schema": {"name": str(), "schema": dict(schema), **rest}}:
            if rest.get("strict") and schema.get("additionalProperties") is not False:
                return ["response_format: additionalProperties must be false in a strict schema"]
            return unknown("json_schema", rest, {"strict", "description"})
        case _:
            return ["response_format: unknown form"]
