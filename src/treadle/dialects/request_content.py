"""What readers of requests from other programs share: content, tools and the message for an agent.

A value that cannot be honoured raises `BadInput`, which names its field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from treadle.dialects.base import check_base64, parse_client_call_id
from treadle.errors import BadInput
from treadle.messages import (
    FilePart,
    ImagePart,
    Json,
    Message,
    ModelMessage,
    Part,
    Request,
    ResultMessage,
    TextPart,
    ToolSpec,
    UserMessage,
    render_parts,
    wrap_system,
)

ToolChoice: TypeAlias = Literal["auto", "none", "required"]


class SessionReference(Struct, frozen=True):
    """The extension field `treadle` of a request. It names the session that the agent continues."""

    session_id: str | None = None


class ReplyBody(Struct, frozen=True, kw_only=True):
    """What the bodies of all endpoints may have."""

    model: str
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    session_id: str | None = None
    treadle: SessionReference | None = None


class FunctionSpec(Struct, frozen=True):
    """A function that the client offers to the model."""

    name: str
    description: str | None = None
    parameters: dict[str, Json] | None = None
    strict: bool | None = None


def check_request(request: Request) -> Request:
    """Return the request if a model can answer it, and raise otherwise."""
    if not request.messages:
        raise BadInput("messages: there must be at least one that is not the system's", param="messages")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise BadInput("max_tokens: must be at least 1", param="max_tokens")
    return request


class AgentMessage(Struct, frozen=True):
    """What a client's conversation has for an agent: what came before, the new message, and results of calls.

    `session_id` names the session that waits for the `results`. `news` is all that the user said since the last reply.
    """

    history: tuple[Message, ...] = ()
    parts: tuple[Part, ...] = ()
    news: tuple[Part, ...] = ()
    results: tuple[ResultMessage, ...] = ()
    session_id: str = ""


def build_agent_message(messages: Sequence[Message]) -> AgentMessage:
    """Split a client's conversation for an agent that answers in a model's place."""
    replied = max((place for place, message in enumerate(messages) if isinstance(message, ModelMessage)), default=-1)
    newest = messages[replied + 1 :]
    news = tuple(part for message in newest if isinstance(message, UserMessage) for part in wrap_system(message))
    results = [message for message in newest if isinstance(message, ResultMessage)]
    sessions = {found[0] for result in results if (found := parse_client_call_id(result.call_id))}
    if len(sessions) > 1:
        message = "messages: the results belong to calls of several sessions; send each session its own"
        raise BadInput(message, param="messages")
    if sessions:
        own = tuple(result for result in results if parse_client_call_id(result.call_id))
        return AgentMessage(news=news, results=own, session_id=sessions.pop())
    last = messages[-1]
    if not isinstance(last, UserMessage):
        message = "messages: the last one must be the user's when an agent answers, or a result that it waits for"
        raise BadInput(message, param="messages")
    if all(isinstance(part, TextPart) and not part.text.strip() for part in last.parts):
        raise BadInput("messages: the last one is empty", param="messages")
    return AgentMessage(tuple(messages[:-1]), wrap_system(last), news)


def split_system(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """The text of the instructions that a conversation begins with, and the other messages.

    Readers make every message of the roles system and developer a `UserMessage` with `is_system`. Later instructions
    keep their place.
    """
    first = next(
        (place for place, one in enumerate(messages) if not isinstance(one, UserMessage) or not one.is_system),
        len(messages),
    )
    leading = [render_parts(one.parts) for one in messages[:first] if isinstance(one, UserMessage)]
    return "\n\n".join(leading), list(messages[first:])


def read_result(call_id: str, tool: str, content: Json, *, ok: bool = True) -> ResultMessage:
    """The result of a client's call: its text, and its images and files."""
    parts = tuple(part for part in read_parts(content) if not isinstance(part, TextPart))
    return ResultMessage(call_id, tool, read_text(content), ok, parts)


def read_unknown_fields(data: bytes, body: type[Struct]) -> dict[str, Json]:
    """The fields of a body that its type does not have, if they are not null. They are for the provider."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    unknown = {name: msgspec.json.decode(fields[name]) for name in fields.keys() - set(body.__struct_encode_fields__)}
    return {name: value for name, value in unknown.items() if value is not None}


def read_text(content: Json) -> str:
    """The text of a content that is text, a list of parts or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadInput("content: must be text or a list of parts", param="content")
    pieces = [read_part(piece) for piece in cast("list[Json]", content)]
    return "\n".join(piece.text for piece in pieces if isinstance(piece, TextPart))


def read_parts(content: Json) -> tuple[Part, ...]:
    """The parts of a content that is text, a list of parts or nothing."""
    if isinstance(content, list) and content:
        return tuple(read_part(piece) for piece in cast("list[Json]", content))
    return (TextPart(read_text(content)),)


def read_part(piece: Json) -> Part:
    """Read one part of a content."""
    if not isinstance(piece, dict):
        raise BadInput("content: a part must be an object with a type", param="content")
    part = cast("dict[str, Json]", piece)
    match part.get("type"):
        case "text" | "input_text" | "output_text" | "refusal":
            return TextPart(get_text(part, "text") or get_text(part, "refusal"))
        case "image_url" | "input_image":
            given = part.get("image_url")
            url = get_text(get_object(given), "url") if isinstance(given, dict) else get_text(part, "image_url")
            if url.startswith("data:"):
                media, data = read_inline_data(url, "image_url")
                return ImagePart(data=data, media_type=media or "image/png")
            if not url.startswith(("http://", "https://")):
                raise BadInput("image_url: must be a data: or an http(s): address", param="image_url")
            return ImagePart(url=url)
        case "file" | "input_file":
            given = get_object(part.get("file", part))
            text = get_text(given, "file_data")
            if not text:
                raise BadInput("file_data: is missing; files are not fetched by id or address here", param="file_data")
            media, data = read_inline_data(text, "file_data")
            return FilePart(get_text(given, "filename") or "file", data, media or "application/octet-stream")
        case other:
            raise BadInput(f"content: parts of type {other!r} are not understood here", param="content")


def read_inline_data(text: str, field: str) -> tuple[str, str]:
    """The media type and the base64 of a `data:` address or of plain base64."""
    head, comma, data = text.partition(",")
    media = head.removeprefix("data:").removesuffix(";base64") if comma else ""
    return media, check_base64(data if comma else text, field)


def get_object(value: Json) -> dict[str, Json]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def get_text(value: dict[str, Json], name: str) -> str:
    """The text of a field, empty if the field is missing or null. Raises for any other value."""
    text = value.get(name)
    if text is not None and not isinstance(text, str):
        raise BadInput(f"{name}: must be text", param=name)
    return text or ""


def read_tools(
    specs: Sequence[FunctionSpec], choice: str | dict[str, Json] | None
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """The tools, and whether the model may or must call them. A choice of one tool leaves only that tool."""
    tools = tuple(
        ToolSpec(
            spec.name,
            spec.description or "",
            spec.parameters or {"type": "object", "properties": {}},
            strict=spec.strict,
        )
        for spec in specs
    )
    match choice:
        case None | "auto":
            return tools, "auto"
        case "none" | "required":
            return tools, choice
        case dict():
            name = get_object(choice.get("function", choice)).get("name")
            only = tuple(tool for tool in tools if tool.name == name)
            if not only:
                raise BadInput(f"tool_choice: there is no tool {name!r} among the tools", param="tool_choice")
            return only, "required"
        case _:
            raise BadInput(f"tool_choice: {choice!r} is not auto, none, required or a function", param="tool_choice")


def read_output_schema(form: dict[str, Json] | None) -> dict[str, Json] | None:
    """The JSON schema of the answer, from `response_format` or `text.format`."""
    match (form or {}).get("type", "text"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            schema = get_object((form or {}).get("json_schema", form)).get("schema")
            if not isinstance(schema, dict):
                raise BadInput("response_format: json_schema needs a schema", param="response_format")
            return cast("dict[str, Json]", schema)
        case other:
            message = f"response_format: {other!r} is not text, json_object or json_schema"
            raise BadInput(message, param="response_format")
