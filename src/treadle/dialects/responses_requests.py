"""Reads requests in the format of OpenAI's Responses."""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from treadle.dialects.request_content import (
    ReplyBody,
    check_request,
    read_output_schema,
    read_parts,
    read_result,
    read_text,
    read_tools,
    split_system,
)
from treadle.errors import BadInput
from treadle.messages import Call, Json, Message, ModelMessage, Request, Sampling, UserMessage


class ResponsesTool(Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


class ResponsesBody(ReplyBody, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    input: str | list[dict[str, Json]]
    instructions: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    text: dict[str, Json] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None


def build_responses_request(body: ResponsesBody) -> Request:
    """Build the model call of a Responses request."""
    if body.previous_response_id:
        raise BadInput("previous_response_id: responses are not kept; send the whole input, or use a session")
    messages: list[Message] = []
    names: dict[str, str] = {}
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for item in items:
        if item.get("type") != "reasoning":
            messages.append(_read_item(item, names))
    for tool in body.tools or ():
        if tool.type != "function" or not tool.name:
            raise BadInput(f"tools: only functions are understood here, not {tool.type!r}")
    given = (body.text or {}).get("format")
    joined: list[Message] = []  # Responses lists the text and the calls of one reply as separate items
    for message in messages:
        last = joined[-1] if joined else None
        if isinstance(message, ModelMessage) and isinstance(last, ModelMessage) and not message.text:
            joined[-1] = ModelMessage(last.text, (*last.calls, *message.calls))
        else:
            joined.append(message)
    system, joined = split_system(joined)
    return check_request(
        Request(
            "\n\n".join(filter(None, (body.instructions, system))),
            joined,
            *read_tools(body.tools or (), body.tool_choice),
            max_tokens=body.max_output_tokens,
            sampling=Sampling(body.temperature, body.top_p),
            output_schema=read_output_schema(cast("dict[str, Json]", given) if isinstance(given, dict) else None),
        )
    )


def _read_item(item: dict[str, Json], names: dict[str, str]) -> Message:
    match item.get("type", "message"):
        case "function_call":
            call = Call(str(item.get("call_id", "")), str(item.get("name", "")), str(item.get("arguments", "{}")))
            names[call.id] = call.tool
            return ModelMessage(calls=(call,))
        case "function_call_output":
            call_id = str(item.get("call_id", ""))
            if call_id not in names:
                raise BadInput(f"input: call_id {call_id!r} answers no call that was made before")
            return read_result(call_id, names[call_id], item.get("output"))
        case "message" if item.get("role") == "assistant":
            return ModelMessage(read_text(item.get("content")))
        case "message":
            return UserMessage(read_parts(item.get("content")), item.get("role") in ("system", "developer"))
        case other:
            raise BadInput(f"input: items of type {other!r} are not understood here")
