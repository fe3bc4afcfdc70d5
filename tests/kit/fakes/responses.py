"""A strict fake of OpenAI Responses without storage: it refuses orphans and the reasoning of other models."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.kit.fakes.server import FUNCTION_NAME, Strict, events, pieces, tool_problems, unknown, words
from treadle.messages import Reply

FIELDS = words(
    """access_programs background context_management conversation image include input instructions
    max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store
    stream stream_options temperature text tool_choice tools top_logprobs top_p truncation user"""
)


def encrypt(model: str, reasoning: str) -> str:
    return hashlib.sha256(f"{model}/{reasoning}".encode()).hexdigest()


class StrictResponses(Strict):
    """The Responses API. A reply's `reasoning` becomes an encrypted item, good for its own model only."""

    path = "/responses"

    def problems(self, body: dict[str, Any]) -> list[str]:
        wrong = unknown("request", body, FIELDS, {"model", "input"})
        if body.get("store") is not False or "reasoning.encrypted_content" not in (body.get("include") or ()):
            wrong.append("store must be false and reasoning.encrypted_content included, to stay stateless")
        items = body.get("input")
        if not isinstance(items, list) or not items:
            return [*wrong, "input: must not be empty"]
        wrong += item_problems(items, body.get("model", ""))
        wrong += tool_problems(body, body.get("tools"))
        if body.get("max_output_tokens", 16) < 16:
            wrong.append("max_output_tokens: must be at least 16")
        match (body.get("text") or {}).get("format"):
            case None | {"type": "json_schema", "name": str(), "schema": dict()}:
                pass
            case other:
                wrong.append(f"text.format: {other!r}")
        return wrong

    def render(self, reply: Reply, body: dict[str, Any]) -> bytes:
        model = body["model"]
        out: list[dict[str, Any]] = []
        output: list[dict[str, Any]] = []

        def emit(kind: str, **fields: Any) -> None:
            out.append({"type": kind, "sequence_number": len(out), **fields})

        def item(start: dict[str, Any], whole: dict[str, Any], kind: str, deltas: list[str]) -> None:
            place = len(output)
            emit("response.output_item.added", output_index=place, item=start)
            for delta in deltas:
                extra = {"summary_index": 0} if "summary" in kind else {"content_index": 0}
                extra = {} if "function" in kind else extra
                emit(kind, item_id=whole["id"], output_index=place, delta=delta, **extra)
            emit("response.output_item.done", output_index=place, item=whole)
            output.append(whole)

        used = reply.usage
        response: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": model}
        response |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "error": None}
        emit("response.created", response={**response, "status": "in_progress", "output": []})
        if reply.reasoning:
            base = {"id": "rs_1", "type": "reasoning"}
            summary = [{"type": "summary_text", "text": reply.reasoning}]
            secret = encrypt(model, reply.reasoning)
            whole = {**base, "summary": summary, "encrypted_content": secret}
            start = {**base, "summary": [], "encrypted_content": "unfinished"}
            item(start, whole, "response.reasoning_summary_text.delta", pieces(reply.reasoning))
        if reply.text:
            base = {"id": "msg_1", "type": "message", "role": "assistant"}
            content = [{"type": "output_text", "text": reply.text, "annotations": []}]
            start = {**base, "status": "in_progress", "content": []}
            whole = {**base, "status": "completed", "content": content}
            item(start, whole, "response.output_text.delta", pieces(reply.text))
        for call in reply.calls:
            base = {"id": f"fc_{call.id}", "type": "function_call", "call_id": call.id, "name": call.tool}
            start = {**base, "arguments": "", "status": "in_progress"}
            whole = {**base, "arguments": call.arguments, "status": "completed"}
            item(start, whole, "response.function_call_arguments.delta", pieces(call.arguments, 5))
        usage = {
            "input_tokens": used.input_tokens or 11,
            "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": used.output_tokens or 7,
            "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
            "total_tokens": 18,
        }
        why = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.finish)
        status = "incomplete" if why else "completed"
        details = {"reason": why} if why else None
        response |= {"status": status, "output": output, "usage": usage, "incomplete_details": details}
        emit(f"response.{status}", response=response)
        return events(*out, named=True)


def item_problems(items: list[dict[str, Any]], model: str) -> list[str]:
    wrong: list[str] = []
    calls: set[str] = set()
    answered: set[str] = set()
    for place, item in enumerate(items):
        where = f"input.{place}"
        following = items[place + 1] if place + 1 < len(items) else {}
        match item:
            case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
                wrong += unknown(where, item, {"type", "call_id", "name", "arguments", "id", "status"})
                if not 1 <= len(call_id) <= 64 or not FUNCTION_NAME.fullmatch(name) or call_id in calls:
                    wrong.append(f"{where}: bad or repeated call {call_id!r} {name!r}")
                if not isinstance(json.loads(arguments), dict):
                    wrong.append(f"{where}: arguments must be an object")
                calls.add(call_id)
            case {"type": "function_call_output", "call_id": str(call_id), "output": str() | list()}:
                wrong += unknown(where, item, {"type", "call_id", "output", "id", "status"})
                if call_id not in calls or call_id in answered:
                    wrong.append(f"{where}: No tool call found for function call output with call_id {call_id}")
                answered.add(call_id)
            case {"type": "reasoning", "id": str(), "summary": list(summary), "encrypted_content": str(secret)}:
                if secret != encrypt(model, "".join(part["text"] for part in summary)):
                    wrong.append(f"{where}: The encrypted content could not be verified")
                if following.get("type") not in ("message", "function_call", "reasoning"):
                    wrong.append(f"{where}: 'reasoning' was provided without its required following item")
            case {"role": "user" | "developer", "content": content}:
                wrong += unknown(where, item, {"role", "content", "type"})
                wrong += content_problems(where, content)
            case {"role": "assistant", "content": str(text)} if text:
                wrong += unknown(where, item, {"role", "content", "type", "phase"})
            case {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": str()}, *_]}:
                wrong += unknown(where, item, {"type", "role", "content", "status", "phase", "id"})
            case _:
                wrong.append(f"{where}: bad item {json.dumps(item)[:100]}")
    if missing := calls - answered:
        wrong.append(f"No tool output found for function call {sorted(missing)}")
    if items[-1].get("role") == "assistant" or items[-1].get("type") == "function_call":
        wrong.append("the input must not end with the assistant")
    return wrong


def content_problems(where: str, content: Any) -> list[str]:
    if isinstance(content, str):
        return [] if content else [f"{where}: content is empty"]
    wrong: list[str] = []
    for part in content:
        match part:
            case {"type": "input_text", "text": str()} | {"type": "input_image", "image_url": str()}:
                pass
            case {"type": "input_file", "filename": str(), "file_data": str()}:
                pass
            case _:
                wrong.append(f"{where}: bad part {json.dumps(part)[:80]}")
    return wrong
