"""Reads requests in the format of Anthropic's Messages.

Fields, betas and kinds of content without a meaning here are ignored: clients send more than any one server knows.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Literal, TypeAlias, cast

import msgspec
from msgspec import Struct

from treadle.dialects.base import check_base64
from treadle.dialects.request_content import (
    FunctionSpec,
    ReplyBody,
    ToolChoice,
    check_request,
    get_object,
    get_text,
    read_output_schema,
    read_tools,
)
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

ThinkingMode: TypeAlias = Literal["off", "omitted", "shown"]
"""Whether the client wants thinking, and its text."""
Block: TypeAlias = dict[str, Json]
STATE_MARK = "treadle."
"""Begins the signatures that this server gives. The provider's state may follow, in base64."""
PLACEHOLDER_TOOL = "DeferredToolPlaceholder"
_BILLING_MARK = "x-anthropic-billing-header:"
_MEDIUM_BUDGET, _HIGH_BUDGET = 4096, 16_384
_EFFORTS = {"xhigh": "high", "max": "high"}
"""Other providers' words for an effort, where they do not know Anthropic's."""


class MessagesTool(Struct, frozen=True):
    """A tool. One with a type other than `custom` runs at Anthropic, or has a schema that only Anthropic knows."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Json] | None = None
    strict: bool | None = None


class MessageIn(Struct, frozen=True):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Json]]


class MessagesBody(ReplyBody, frozen=True, kw_only=True):
    """The body of `POST /v1/messages` and of `POST /v1/messages/count_tokens`."""

    messages: list[MessageIn]
    max_tokens: int | None = None
    system: str | list[dict[str, Json]] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: dict[str, Json] | None = None
    stop_sequences: list[str] | None = None
    top_k: int | None = None
    thinking: dict[str, Json] | None = None
    output_config: dict[str, Json] | None = None
    output_format: dict[str, Json] | None = None
    metadata: dict[str, Json] | None = None
    service_tier: str | None = None

    @property
    def thinking_mode(self) -> ThinkingMode:
        """Whether the client wants thinking, and its text."""
        thinking = self.thinking or {}
        if thinking.get("type") not in ("enabled", "adaptive"):
            return "off"
        return "omitted" if thinking.get("display") == "omitted" else "shown"


def build_messages_request(body: MessagesBody) -> Request:
    """Build the model call of a Messages request."""
    messages: list[Message] = []
    names: dict[str, str] = {}
    for message in body.messages:
        _add_message(message, messages, names)
    tools, choice = _read_offer(body)
    form = (body.output_config or {}).get("format") or body.output_format
    return check_request(
        Request(
            _read_system(body.system),
            messages,
            tools,
            choice,
            max_tokens=body.max_tokens,
            sampling=Sampling(
                body.temperature, body.top_p, stop=tuple(body.stop_sequences or ()), extra=_read_options(body)
            ),
            output_schema=read_output_schema(get_object(form) or None),
        )
    )


def list_ignored_tools(body: MessagesBody) -> list[str]:
    """The tools that no other server can run, by name."""
    kinds = ((tool, tool.type or "custom") for tool in body.tools or ())
    return [tool.name or kind for tool, kind in kinds if kind != "custom"]


def simplify_request(request: Request) -> Request | None:
    """The request without thinking options and without the state that the client brought; None if it has neither.

    A provider may refuse them: a signature may be forged or of another account, and many models cannot think.
    """
    extra = {name: value for name, value in request.sampling.extra.items() if name not in ("chat", "responses")}
    own = {name: value for name, value in get_object(extra.pop("anthropic", None)).items() if name == "metadata"}
    extra |= {"anthropic": own} if own else {}
    messages = [
        msgspec.structs.replace(one, opaque="") if isinstance(one, ModelMessage) and one.opaque else one
        for one in request.messages
    ]
    if extra == request.sampling.extra and messages == list(request.messages):
        return None
    sampling = msgspec.structs.replace(request.sampling, extra=extra)
    return msgspec.structs.replace(request, messages=messages, sampling=sampling, render_cache={})


def encode_state(opaque: str) -> str:
    """A provider's state as a signature that the client sends back."""
    return STATE_MARK + b64encode(opaque.encode()).decode()


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────


def _read_system(system: str | list[Block] | None) -> str:
    # Claude Code accounts for its use in a block of its own, which differs from request to request.
    texts = [block.text for block in _read_parts(system) if isinstance(block, TextPart)]
    return "\n\n".join(text for text in texts if text and not text.startswith(_BILLING_MARK))


def _add_message(message: MessageIn, messages: list[Message], names: dict[str, str]) -> None:
    """Add one message of the client. `names` are the tools of the calls so far, by the ids of the calls."""
    content = [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    if message.role == "assistant":
        reply = _read_reply(content)
        names.update((call.id, call.tool) for call in reply.calls)
        messages.append(reply)
        return
    results = [_read_result(block, names) for block in content if block.get("type") == "tool_result"]
    # Providers want the results right after the calls, whatever the client says in between.
    place = len(messages)
    while place and isinstance(messages[place - 1], UserMessage):
        place -= 1
    messages[place:place] = results
    if parts := _read_parts([block for block in content if block.get("type") != "tool_result"]):
        messages.append(UserMessage(parts, is_system=message.role == "system"))


def _read_reply(content: list[Block]) -> ModelMessage:
    """The model's message, with the provider's state in its thinking blocks."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    items: list[Block] = []
    state = ""
    for block in content:
        kind, signature = block.get("type"), ""
        if kind in ("thinking", "redacted_thinking"):
            signature = get_text(block, "signature" if kind == "thinking" else "data")
        match kind:
            case "text":
                text = get_text(block, "text")
                texts.append(text)
                items += [{"type": "text", "text": text}] if text.strip() else []
            case "tool_use":
                given = block.get("input")
                if given is not None and not isinstance(given, dict):
                    raise BadInput("messages: the input of a tool_use must be an object", param="messages")
                arguments = msgspec.json.encode(given or {}).decode()
                calls.append(Call(get_text(block, "id"), get_text(block, "name"), arguments))
                items.append({"type": "tool_use"})
            case "thinking" | "redacted_thinking" if signature.startswith(STATE_MARK):
                reasoning.append(get_text(block, "thinking"))
                state = _decode_state(signature) or state
            case "thinking" if signature:
                reasoning.append(get_text(block, "thinking"))
                items.append({"type": kind, "thinking": reasoning[-1], "signature": signature})
            case "redacted_thinking" if signature:
                items.append({"type": kind, "data": signature})
            case _:
                pass  # thinking without a signature, or what a server tool of Anthropic did
    if not state and any("thinking" in item["type"] for item in items):
        state = msgspec.json.encode({"owner": "anthropic", "items": items}).decode()
    return ModelMessage("".join(texts), tuple(calls), "\n\n".join(filter(None, reasoning)), state)


def _decode_state(signature: str) -> str:
    try:
        text = b64decode(signature.removeprefix(STATE_MARK), validate=True).decode()
        return text if "owner" in msgspec.json.decode(text, type=dict[str, Json]) else ""
    except (ValueError, msgspec.DecodeError, RecursionError):  # forged: it is as good as none
        return ""


def _read_result(block: Block, names: dict[str, str]) -> ResultMessage:
    call_id = get_text(block, "tool_use_id")
    if call_id not in names:
        raise BadInput(f"messages: tool_use_id {call_id[:200]!r} answers no tool_use that was made before")
    parts = _read_parts(block.get("content"))
    text = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    shown = tuple(part for part in parts if not isinstance(part, TextPart))
    return ResultMessage(call_id, names[call_id], text, not block.get("is_error"), shown)


def _read_parts(content: Json) -> tuple[Part, ...]:
    if content is None or isinstance(content, str):
        return (TextPart(content),) if content else ()
    if not isinstance(content, list):
        raise BadInput("content: must be text or a list of blocks", param="content")
    return tuple(_read_part(get_object(block)) for block in cast("list[Json]", content))


def _read_part(block: Block) -> Part:
    kind, source = get_text(block, "type"), get_object(block.get("source"))
    if not kind:
        raise BadInput("content: a block must be an object with a type", param="content")
    data, url = get_text(source, "data"), get_text(source, "url")
    media_type, title = get_text(source, "media_type"), get_text(block, "title") or "document"
    match kind, source.get("type"):
        case "text", _:
            return TextPart(get_text(block, "text"))
        case "image", "base64":
            return ImagePart(check_base64(data, "image.source.data"), media_type or "image/png")
        case "image", "url" if url.startswith(("http://", "https://")):
            return ImagePart(url=url)
        case "document", "base64":
            return FilePart(title, check_base64(data, "document.source.data"), media_type or "application/pdf")
        case "document", "text":
            return FilePart(title, b64encode(data.encode("utf-8", "replace")).decode(), "text/plain")
        case "document", "content":
            parts = _read_parts(source.get("content"))
            return TextPart("\n".join([title, *(part.text for part in parts if isinstance(part, TextPart))]))
        case "tool_reference", _:
            return TextPart(f"[the tool {get_text(block, 'tool_name')} is available now]")
        case "search_result", _:
            parts = _read_parts(block.get("content"))
            texts = [part.text for part in parts if isinstance(part, TextPart)]
            return TextPart("\n".join([title, get_text(block, "source"), *texts]))
        case _:
            return TextPart(f"[{kind[:100]} {url[:2000]} cannot be shown here]".replace("  ", " "))


# ── tools and options ────────────────────────────────────────────────────────────────────────────────


def _read_offer(body: MessagesBody) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    specs: list[FunctionSpec] = []
    for place, tool in enumerate(body.tools or ()):
        if (tool.type or "custom") != "custom" or tool.name == PLACEHOLDER_TOOL:
            continue
        if not tool.name:
            raise BadInput(f"tools.{place}.name: Field required")
        specs.append(FunctionSpec(tool.name, tool.description, tool.input_schema, tool.strict))
    given = body.tool_choice or {}
    match given.get("type"):
        case None | "auto":
            choice = None
        case "any":
            choice = "required" if specs else None
        case "none":
            choice = "none"
        case "tool":  # a tool that is left out cannot be chosen
            left_out = {tool.name for tool in body.tools or ()} - {spec.name for spec in specs}
            name = get_text(given, "name")
            choice = {"name": name} if name not in left_out else None
        case other:
            raise BadInput(f"tool_choice: {other!r} is not auto, any, tool or none")
    return read_tools(specs, choice)


def _read_options(body: MessagesBody) -> dict[str, Json]:
    """The options that `Sampling.extra` carries. What only one protocol knows is under the protocol's name."""
    effort = (body.output_config or {}).get("effort")
    own: dict[str, Json] = {"thinking": body.thinking} if body.thinking else {}
    if effort:
        own["output_config"] = {"effort": effort}
    if user := get_text(body.metadata or {}, "user_id"):
        own["metadata"] = {"user_id": user}
    if body.service_tier:
        own["service_tier"] = body.service_tier
    extra: dict[str, Json] = {"anthropic": own} if own else {}
    budget = (body.thinking or {}).get("budget_tokens")
    if not effort and isinstance(budget, int) and body.thinking_mode != "off":
        effort = "low" if budget < _MEDIUM_BUDGET else "medium" if budget < _HIGH_BUDGET else "high"
    if isinstance(effort, str) and effort:
        effort = _EFFORTS.get(effort, effort)
        extra |= {"chat": {"reasoning_effort": effort}, "responses": {"reasoning": {"effort": effort}}}
    if body.top_k is not None:
        extra["top_k"] = body.top_k
    if (body.tool_choice or {}).get("disable_parallel_tool_use"):
        extra["parallel_tool_calls"] = False
    return extra
