"""Reads requests in OpenAI's formats: Chat Completions, Responses and the old Completions.

Null fields and fields without a meaning here are ignored. A field that cannot be honoured raises `BadInput`, which
names the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from treadle.dialects.base import check_base64
from treadle.errors import BadInput
from treadle.messages import (
    Call,
    FilePart,
    ImagePart,
    Json,
    Message,
    ModelMessage,
    Part,
    Request,
    ResultMessage,
    Sampling,
    TextPart,
    ToolSpec,
    UserMessage,
)

ToolChoice: TypeAlias = Literal["auto", "none", "required"]


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


class FunctionSpec(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: dict[str, Json] | None = None


class ChatTool(Struct, frozen=True):
    function: FunctionSpec
    type: str | None = None


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class ReplyBody(Struct, frozen=True, kw_only=True):
    """What the bodies of all three endpoints may have."""

    model: str
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    session_id: str | None = None


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


class ResponsesTool(Struct, frozen=True):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Json] | None = None


class ResponsesBody(ReplyBody, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    input: str | list[dict[str, Json]]
    instructions: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    text: dict[str, Json] | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None


def build_chat_request(body: ChatBody) -> Request:
    """Build the model call of a Chat Completions request."""
    if body.n not in (None, 1):
        raise BadInput("n: a request gets one choice; send another request for another choice")
    system: list[str] = []
    messages: list[Message] = []
    names: dict[str, str] = {}
    for message in body.messages:
        if message.role in ("system", "developer"):
            system.append(_read_text(message.content))
        else:
            messages.append(_read_message(message, names))
    return _check_request(
        Request(
            "\n\n".join(system),
            messages,
            *_read_tools([tool.function for tool in body.tools or ()], body.tool_choice),
            max_tokens=body.max_completion_tokens or body.max_tokens,
            sampling=_read_sampling(body),
            output_schema=_read_output_schema(body.response_format),
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
    return _check_request(
        Request(system="", messages=[message], max_tokens=body.max_tokens, sampling=_read_sampling(body))
    )


def build_responses_request(body: ResponsesBody) -> Request:
    """Build the model call of a Responses request."""
    if body.previous_response_id:
        raise BadInput("previous_response_id: responses are not kept; send the whole input, or use a session")
    system = [body.instructions] if body.instructions else []
    messages: list[Message] = []
    names: dict[str, str] = {}
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for item in items:
        if item.get("role") in ("system", "developer"):
            system.append(_read_text(item.get("content")))
        elif item.get("type") != "reasoning":
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
    return _check_request(
        Request(
            "\n\n".join(system),
            joined,
            *_read_tools(body.tools or (), body.tool_choice),
            max_tokens=body.max_output_tokens,
            sampling=Sampling(body.temperature, body.top_p),
            output_schema=_read_output_schema(cast("dict[str, Json]", given) if isinstance(given, dict) else None),
        )
    )


def build_agent_message(request: Request) -> tuple[Part, ...]:
    """Build the message for an agent that answers in a model's place: the conversation so far and the last message."""
    *before, last = request.messages
    if not isinstance(last, UserMessage):
        raise BadInput("messages: the last one must be the user's when an agent answers")
    if all(isinstance(part, TextPart) and not part.text.strip() for part in last.parts):
        raise BadInput("messages: the last one is empty")
    lines = [line for message in before if (line := _render_line(message))]
    if not lines:
        return last.parts
    earlier = "\n".join(lines)
    return (TextPart(f"The conversation so far:\n{earlier}\n\nThe user now says:"), *last.parts)


def _render_line(message: Message) -> str:
    match message:
        case UserMessage(parts=parts):
            return "user: " + " ".join(part.text for part in parts if isinstance(part, TextPart))
        case ModelMessage(text=text):
            return f"assistant: {text}" if text else ""
        case ResultMessage(tool=tool, text=text):
            return f"{tool}: {text}"


def _check_request(request: Request) -> Request:
    if not request.messages:
        raise BadInput("messages: there must be at least one that is not the system's")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise BadInput("max_tokens: must be at least 1")
    return request


def _read_message(message: ChatMessage, names: dict[str, str]) -> Message:
    match message.role:
        case "assistant":
            functions = ((call.id or "", call.function or FunctionCall()) for call in message.tool_calls or ())
            calls = tuple(Call(call_id, one.name or "", one.arguments or "{}") for call_id, one in functions)
            names.update((call.id, call.tool) for call in calls)
            return ModelMessage(_read_text(message.content), calls)
        case "tool":
            call_id = message.tool_call_id or ""
            tool = names.get(call_id)
            if tool is None:
                raise BadInput(f"messages: tool_call_id {call_id!r} answers no call that was made before")
            return ResultMessage(call_id, tool, _read_text(message.content))
        case _:
            return UserMessage(_read_parts(message.content))


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
            return ResultMessage(call_id, names[call_id], _read_text(item.get("output")))
        case "message" if item.get("role") == "assistant":
            return ModelMessage(_read_text(item.get("content")))
        case "message":
            return UserMessage(_read_parts(item.get("content")))
        case other:
            raise BadInput(f"input: items of type {other!r} are not understood here")


def _read_text(content: Json) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadInput("content: must be text or a list of parts")
    pieces = [_read_part(piece) for piece in cast("list[Json]", content)]
    return "\n".join(piece.text for piece in pieces if isinstance(piece, TextPart))


def _read_parts(content: Json) -> tuple[Part, ...]:
    if isinstance(content, list) and content:
        return tuple(_read_part(piece) for piece in cast("list[Json]", content))
    return (TextPart(_read_text(content)),)


def _read_part(piece: Json) -> Part:
    if not isinstance(piece, dict):
        raise BadInput("content: a part must be an object with a type")
    part = cast("dict[str, Json]", piece)
    match part.get("type"):
        case "text" | "input_text" | "output_text" | "refusal":
            return TextPart(str(part.get("text", part.get("refusal", ""))))
        case "image_url" | "input_image":
            given = part.get("image_url")
            url = str(_get_object(given).get("url", "") if isinstance(given, dict) else given or "")
            if url.startswith("data:"):
                media, data = _read_inline_data(url, "image_url")
                return ImagePart(data=data, media_type=media or "image/png")
            if not url.startswith(("http://", "https://")):
                raise BadInput("image_url: must be a data: or an http(s): address")
            return ImagePart(url=url)
        case "file" | "input_file":
            given = _get_object(part.get("file", part))
            media, data = _read_inline_data(str(given.get("file_data", "")), "file_data")
            return FilePart(str(given.get("filename", "file")), data, media or "application/octet-stream")
        case other:
            raise BadInput(f"content: parts of type {other!r} are not understood here")


def _read_inline_data(text: str, field: str) -> tuple[str, str]:
    """The media type and the base64 of a `data:` address or of plain base64."""
    head, comma, data = text.partition(",")
    media = head.removeprefix("data:").removesuffix(";base64") if comma else ""
    return media, check_base64(data if comma else text, field)


def _get_object(value: Json) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def _read_tools(
    specs: Sequence[FunctionSpec | ResponsesTool], choice: str | dict[str, Json] | None
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    tools = tuple(
        ToolSpec(spec.name or "", spec.description or "", spec.parameters or {"type": "object", "properties": {}})
        for spec in specs
    )
    match choice:
        case None | "auto":
            return tools, "auto"
        case "none" | "required":
            return tools, choice
        case dict():
            name = _get_object(choice.get("function", choice)).get("name")
            only = tuple(tool for tool in tools if tool.name == name)
            if not only:
                raise BadInput(f"tool_choice: there is no tool {name!r} among the tools")
            return only, "required"
        case _:
            raise BadInput(f"tool_choice: {choice!r} is not auto, none, required or a function")


def _read_sampling(body: CompletionFields) -> Sampling:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(body.temperature, body.top_p, body.seed, stops)


def _read_output_schema(form: dict[str, Json] | None) -> dict[str, Json] | None:
    """The JSON schema of the answer, from `response_format` or `text.format`."""
    match (form or {}).get("type", "text"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema = _get_object((form or {}).get("json_schema", form)).get("schema")
            if not isinstance(schema, dict):
                raise BadInput("response_format: json_schema needs a schema")
            return cast("dict[str, Json]", schema)
        case other:
            raise BadInput(f"response_format: {other!r} is not text, json_object or json_schema")
