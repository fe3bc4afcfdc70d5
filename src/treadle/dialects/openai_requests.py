"""Reads requests in OpenAI's formats Chat Completions and Completions.

Null fields and fields without a meaning here are ignored. A field that cannot be honoured raises `BadInput`, which
names the field.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.dialects.request_content import (
    FunctionSpec,
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
from treadle.messages import Call, Json, Message, ModelMessage, Request, Sampling, TextPart, UserMessage


class FunctionCall(Struct, frozen=True):  # the function that a call names, with its arguments as JSON text
    name: str | None = None
    arguments: str | None = None


class ToolCallIn(Struct, frozen=True):
    id: str | None = None
    function: FunctionCall | None = None


class ChatMessage(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Json]] | None = None
    tool_calls: list[ToolCallIn] | None = None
    tool_call_id: str | None = None


class ChatTool(Struct, frozen=True):
    function: FunctionSpec
    type: str | None = None


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class CompletionFields(ReplyBody, frozen=True, kw_only=True):
    """What the bodies of both kinds of completions may have."""

    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None


class ChatBody(CompletionFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    tools: list[ChatTool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    response_format: dict[str, Json] | None = None
    max_completion_tokens: int | None = None


class CompletionBody(CompletionFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str]
    best_of: int | None = None
    echo: bool | None = False


def build_chat_request(body: ChatBody) -> Request:
    """Build the model call of a Chat Completions request."""
    if body.n not in (None, 1):
        raise BadInput("n: a request gets one choice; send another request for another choice")
    names: dict[str, str] = {}
    system, messages = split_system([_read_message(message, names) for message in body.messages])
    return check_request(
        Request(
            system,
            messages,
            *read_tools([tool.function for tool in body.tools or ()], body.tool_choice),
            max_tokens=body.max_completion_tokens or body.max_tokens,
            sampling=_read_sampling(body),
            output_schema=read_output_schema(body.response_format),
        )
    )


def build_completion_request(body: CompletionBody) -> Request:
    """Build the model call of a bare prompt."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) != 1:
        raise BadInput("prompt: a request may have one prompt; send another request for another prompt")
    if body.n not in (None, 1) or body.best_of not in (None, 1):
        raise BadInput("n: a request gets one choice; send another request for another choice")
    if body.echo:
        raise BadInput("echo: the prompt is not repeated; put it before the answer yourself")
    message = UserMessage((TextPart(prompts[0]),))
    return check_request(
        Request(system="", messages=[message], max_tokens=body.max_tokens, sampling=_read_sampling(body))
    )


def _read_message(message: ChatMessage, names: dict[str, str]) -> Message:
    match message.role:
        case "assistant":
            functions = ((call.id or "", call.function or FunctionCall()) for call in message.tool_calls or ())
            calls = tuple(Call(call_id, one.name or "", one.arguments or "{}") for call_id, one in functions)
            names.update((call.id, call.tool) for call in calls)
            return ModelMessage(read_text(message.content), calls)
        case "tool":
            call_id = message.tool_call_id or ""
            tool = names.get(call_id)
            if tool is None:
                raise BadInput(f"messages: tool_call_id {call_id!r} answers no call that was made before")
            return read_result(call_id, tool, message.content)
        case _:
            return UserMessage(read_parts(message.content), message.role != "user")


def _read_sampling(body: CompletionFields) -> Sampling:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(body.temperature, body.top_p, body.seed, stops)
