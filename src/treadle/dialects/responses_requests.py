"""Reads requests in the format of OpenAI's Responses."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.dialects.request_content import (
    ReplyBody,
    check_request,
    get_object,
    get_text,
    read_output_schema,
    read_parts,
    read_result,
    read_text,
    split_system,
)
from treadle.dialects.responses_tools import ResponsesTool, ToolTable, write_custom_input
from treadle.errors import BadInput
from treadle.messages import Call, Json, Message, ModelMessage, Reply, Request, Sampling, UserMessage

Item = dict[str, Json]
"""One entry of a conversation, as clients send it and get it back."""
_FOREIGN_ITEM = re.compile(r"\w+_(call|output|request|response|tools)|compaction\w*|context_compaction")
"""Items of tools that run at OpenAI. Clients send them back, and no provider here can read them."""
ENCRYPTED_REASONING = "reasoning.encrypted_content"


class ConversationReference(Struct, frozen=True):
    id: str


class ReasoningOptions(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class TextOptions(Struct, frozen=True):
    format: dict[str, Json] | None = None
    verbosity: str | None = None


class ResponsesBody(ReplyBody, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    input: str | list[dict[str, Json]] | None = None
    instructions: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Json] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    store: bool | None = None
    background: bool | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    truncation: str | None = None
    prompt: dict[str, Json] | None = None
    user: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def conversation_id(self) -> str:
        """The id of the conversation that the response belongs to, or an empty text."""
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given or ""

    @property
    def wants_state(self) -> bool:
        """Whether reasoning items carry the provider's own state."""
        return ENCRYPTED_REASONING in (self.include or ())


class EncryptedState(Struct, frozen=True):
    """What `encrypted_content` holds: a provider's own state, and the model that it belongs to."""

    model: str
    opaque: str


def encode_state(reply: Reply) -> str:
    """Write a provider's own state as `encrypted_content`."""
    return base64.b64encode(msgspec.json.encode(EncryptedState(reply.model, reply.opaque))).decode()


def decode_state(text: Json) -> EncryptedState | None:
    """Read `encrypted_content`. None when another server wrote it."""
    try:
        return msgspec.json.decode(base64.b64decode(str(text), validate=True), type=EncryptedState)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        return None


def check_body(body: ResponsesBody) -> None:
    """Raise for fields that cannot be honoured and would change the meaning of the answer."""
    if body.truncation not in (None, "disabled"):
        raise BadInput("truncation: only 'disabled' works here; shorten the input yourself", param="truncation")
    if body.prompt is not None:
        raise BadInput("prompt: no prompts are stored here; send instructions and input", param="prompt")
    if body.background and not body.is_stored:
        raise BadInput("background: needs store, because the answer is fetched later", param="background")
    if body.previous_response_id and body.conversation_id:
        raise BadInput("conversation: goes with no previous_response_id; send one of them", param="conversation")


def list_items(given: str | list[dict[str, Json]] | None) -> list[Item]:
    """The input as items. A bare text is a message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    for place, item in enumerate(given or ()):
        if not isinstance(item.get("id"), str | None):
            raise BadInput(f"input.{place}.id: must be text", param=f"input.{place}.id")
    return [item if "type" in item or "role" not in item else {"type": "message", **item} for item in given or ()]


def read_tool_table(body: ResponsesBody, items: Sequence[Item]) -> ToolTable:
    """The tools of a request: those of its `tools`, and those in items of type `additional_tools`."""
    tools = list(body.tools or ())
    for place, item in enumerate(items):
        if item.get("type") == "additional_tools":
            try:
                tools += msgspec.convert(item.get("tools") or [], list[ResponsesTool])
            except msgspec.ValidationError as error:
                raise BadInput(f"input.{place}.tools: {error}", param=f"input.{place}.tools") from None
    return ToolTable(tools)


class ConversationReader:
    """Reads items and replies of a conversation into messages for a provider.

    Reasoning, text and calls of one reply are separate items, and become one message.
    """

    def __init__(self, tools: ToolTable) -> None:
        self.messages: list[Message] = []
        self._tools = tools
        self._names: dict[str, str] = {}

    def add_reply(self, reply: Reply) -> None:
        """Add a reply that was given earlier, with the provider's own state."""
        self._names.update((call.id, call.tool) for call in reply.calls)
        self.messages.append(ModelMessage(reply.text, reply.calls, reply.reasoning, reply.opaque, reply.model))

    def add_items(self, items: Sequence[Item]) -> None:
        """Add items that a client sent."""
        for place, item in enumerate(items):
            try:
                self._add_item(item)
            except BadInput as error:
                raise BadInput(f"input.{place}: {error}", param=f"input.{place}.{error.param}".rstrip(".")) from None

    def _add_item(self, item: Item) -> None:
        match item.get("type"):
            case "message":
                self._add_message(item)
            case "reasoning":
                self._add_reasoning(item)
            case "function_call" | "custom_tool_call" as kind:
                name = self._tools.flatten_name(get_text(item, "name"), get_text(item, "namespace"))
                if kind == "function_call":
                    arguments = get_text(item, "arguments") or "{}"
                else:
                    arguments = write_custom_input(get_text(item, "input"))
                call = Call(get_text(item, "call_id") or get_text(item, "id"), name, arguments)
                self._names[call.id] = name
                last = self._get_open_reply()
                self._set_reply(last, replace(last or ModelMessage(), calls=(*(last.calls if last else ()), call)))
            case "function_call_output" | "custom_tool_call_output":
                call_id = get_text(item, "call_id")
                if call_id not in self._names:
                    raise BadInput(f"call_id {call_id!r} answers no call that was made before")
                self.messages.append(read_result(call_id, self._names[call_id], item.get("output")))
            case "additional_tools":
                pass
            case "item_reference":
                raise BadInput(f"there is no stored item {item.get('id')!r}; send the item itself")
            case str(kind) if _FOREIGN_ITEM.fullmatch(kind):
                pass
            case other:
                raise BadInput(f"items of type {other!r} are not understood here")

    def _add_message(self, item: Item) -> None:
        content = item.get("content")
        match item.get("role"):
            case "system" | "developer":
                self.messages.append(UserMessage(read_parts(content), is_system=True))
            case "assistant":
                last = self._get_open_reply()
                if last is not None and last.text:
                    last = None
                self._set_reply(last, replace(last or ModelMessage(), text=read_text(content)))
            case "user":
                self.messages.append(UserMessage(read_parts(content)))
            case other:
                raise BadInput(f"role {other!r} is not user, assistant, system or developer")

    def _add_reasoning(self, item: Item) -> None:
        state = decode_state(item.get("encrypted_content"))
        parts = item.get("summary") or item.get("content")
        listed = cast("list[Json]", parts) if isinstance(parts, list) else []
        text = "".join(get_text(get_object(part), "text") for part in listed)
        last = self._get_open_reply()
        if last is not None and (last.calls or last.reasoning or last.opaque):
            last = None
        changed = replace(last or ModelMessage(), reasoning=text)
        if state is not None:
            changed = replace(changed, opaque=state.opaque, model=state.model)
        self._set_reply(last, changed)

    def _get_open_reply(self) -> ModelMessage | None:
        """The reply at the end, to which the next item may belong."""
        last = self.messages[-1] if self.messages else None
        return last if isinstance(last, ModelMessage) else None

    def _set_reply(self, last: ModelMessage | None, changed: ModelMessage) -> None:
        if last is not None:
            self.messages.pop()
        self.messages.append(changed)


def build_responses_request(body: ResponsesBody, conversation: ConversationReader, tools: ToolTable) -> Request:
    """Build the model call of a Responses request. `conversation` has read all items."""
    kept = [one for one in conversation.messages if not isinstance(one, ModelMessage) or one.text or one.calls]
    system, messages = split_system(kept)
    if not messages:
        raise BadInput("input: must have something to answer, such as a message of the user", param="input")
    return check_request(
        Request(
            "\n\n".join(filter(None, (body.instructions, system))),
            messages,
            *tools.choose(body.tool_choice),
            max_tokens=body.max_output_tokens,
            sampling=Sampling(body.temperature, body.top_p, extra=_read_options(body)),
            output_schema=read_output_schema(body.text.format if body.text is not None else None),
        )
    )


def _read_options(body: ResponsesBody) -> dict[str, Json]:
    """The other options, under their names in Chat Completions."""
    reasoning, text = body.reasoning or ReasoningOptions(), body.text or TextOptions()
    wants_logprobs = "message.output_text.logprobs" in (body.include or ()) or body.top_logprobs
    options: dict[str, Json] = {
        "reasoning_effort": reasoning.effort,
        "verbosity": text.verbosity,
        "parallel_tool_calls": False if body.parallel_tool_calls is False and body.tools else None,
        "logprobs": True if wants_logprobs else None,
        "top_logprobs": body.top_logprobs or None,
        "metadata": body.metadata or None,
        "user": body.user,
        "service_tier": body.service_tier,
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
        "responses": {"reasoning": {"summary": reasoning.summary}} if reasoning.summary else None,
    }
    return {name: value for name, value in options.items() if value is not None}
