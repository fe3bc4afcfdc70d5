"""The response object of OpenAI's Responses and its output items, with every field of the request echoed."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from treadle.dialects.base import RunExtension
from treadle.dialects.openai_chat import UsageDocument
from treadle.dialects.responses_requests import Item, ResponsesBody
from treadle.messages import Json


class TextOut(Struct, frozen=True):
    """The text of a message."""

    text: str
    annotations: tuple[Json, ...] = ()
    logprobs: tuple[Json, ...] = ()
    type: str = "output_text"


class SummaryText(Struct, frozen=True):
    """A part of the model's reasoning."""

    text: str
    type: str = "summary_text"


class MessageItem(Struct, frozen=True):
    """A message in the response's output."""

    id: str
    content: tuple[TextOut, ...]
    status: str = "completed"
    role: str = "assistant"
    type: str = "message"


class ReasoningItem(Struct, frozen=True):
    """The model's reasoning, and the provider's own state if the request asked for it."""

    id: str
    summary: tuple[SummaryText, ...] = ()
    encrypted_content: str | UnsetType = UNSET
    status: str = "completed"
    type: str = "reasoning"


class CallItem(Struct, frozen=True):
    """A function call for the client to run."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"
    namespace: str | UnsetType = UNSET
    type: str = "function_call"


class CustomCallItem(Struct, frozen=True):
    """A call of a custom tool for the client to run."""

    id: str
    call_id: str
    name: str
    input: str
    status: str = "completed"
    namespace: str | UnsetType = UNSET
    type: str = "custom_tool_call"


OutputItem: TypeAlias = MessageItem | ReasoningItem | CallItem | CustomCallItem


class ResponseObject(Struct, frozen=True):
    """A response: queued, in progress, or whole. Fields that the request does not set have OpenAI's defaults."""

    id: str
    created_at: int
    model: str
    status: str = "in_progress"
    output: tuple[Json, ...] = ()
    usage: UsageDocument | None = None
    error: dict[str, str] | None = None
    incomplete_details: dict[str, str] | None = None
    completed_at: int | None = None
    background: bool = False
    conversation: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Json] = field(default_factory=lambda: {"effort": None, "summary": None})
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: dict[str, Json] = field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: Json = "auto"
    tools: tuple[Json, ...] = ()
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    user: str | None = None
    object: str = "response"
    treadle: RunExtension | UnsetType = UNSET


_ECHOED = (
    *("background", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls"),
    *("previous_response_id", "prompt_cache_key", "safety_identifier", "service_tier", "store", "temperature"),
    *("tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
)


def build_response(response_id: str, created_at: int, body: ResponsesBody, given: Item) -> ResponseObject:
    """Build the response that a request gets, before anything is answered. `given` is the body as it was sent."""
    echoed = {name: given[name] for name in _ECHOED if given.get(name) is not None}
    for name, default in (("reasoning", {"effort": None, "summary": None}), ("text", {"format": {"type": "text"}})):
        echoed[name] = {**default, **(given.get(name) or {})}
    if echoed.get("service_tier") == "auto":
        echoed["service_tier"] = "default"
    conversation = {"id": body.conversation_id} if body.conversation_id else None
    return ResponseObject(response_id, created_at, body.model, conversation=conversation, **echoed)
