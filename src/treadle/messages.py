"""What a model reads and writes: parts, calls, messages, tool descriptions, requests and replies.

These types belong to no provider and are not stored. `engine/context.py` builds them from facts for one request, and
the adapters in `models/` translate them into a provider's format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, overload

import msgspec
from msgspec import Struct, field

Json: TypeAlias = Any
"""A JSON value. A recursive type would be more precise, but msgspec reads and checks this one four times faster."""


class TextPart(Struct, frozen=True, tag="text", omit_defaults=True):
    """Plain text. `file` is the name of the attached file that it was read from."""

    text: str
    file: str = ""


class ImagePart(Struct, frozen=True, tag="image", omit_defaults=True):
    """An image: base64 `data` with its media type, or a `url` the provider may fetch."""

    data: str = ""
    media_type: str = "image/png"
    url: str = ""


class FilePart(Struct, frozen=True, tag="file", omit_defaults=True):
    """A file that goes with a message: base64 `data` with its name and media type."""

    name: str
    data: str = ""
    media_type: str = "application/octet-stream"


Part: TypeAlias = TextPart | ImagePart | FilePart


class Call(Struct, frozen=True, omit_defaults=True):
    """One tool call as the model wrote it. `arguments` is its unchanged JSON text, which may be invalid."""

    id: str
    tool: str
    arguments: str = "{}"


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens and cost of one reply or one run. `estimated` means that the provider did not count."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        if other is NO_USAGE:
            return self
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cost + other.cost,
            self.estimated or other.estimated,
        )


NO_USAGE = Usage()
"""The default usage. msgspec omits a default only if it is this same object."""

FinishReason = Literal["stop", "calls", "length", "filter", "other"]


class Reply(Struct, frozen=True, omit_defaults=True):
    """The result of one model call.

    `opaque` is JSON text, such as signed reasoning, that this model wants back unchanged. It is never sent to another
    model. `model` is the model that really answered. `logprobs` has one entry for each token of the text, in the form
    of Chat Completions, if the request asked for them. `stop_sequence` is the sequence that ended the reply, if
    the provider says so. `first_token` is how many seconds after the request its first fragment came: the engine
    measures it.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: FinishReason = "stop"
    usage: Usage = NO_USAGE
    model: str = ""
    opaque: str = ""
    logprobs: tuple[Json, ...] = ()
    stop_sequence: str = ""
    first_token: float | None = None


class SignedReasoning(Struct, frozen=True):
    """A complete block of signed reasoning, as JSON of the provider. Formats that have such blocks pass it on."""

    block: str


class UserMessage(Struct, frozen=True, tag="user", tag_field="role", omit_defaults=True):
    """A message from a person, or a note of the runtime to the model.

    `is_system` marks an instruction of the client in the middle of a conversation. A provider that has no place for
    it reads it between `<system>` tags.
    """

    parts: tuple[Part, ...]
    is_system: bool = False


class ModelMessage(Struct, frozen=True, tag="model", tag_field="role", omit_defaults=True):
    """The model's text and its calls."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    opaque: str = ""
    model: str = ""


class ResultMessage(Struct, frozen=True, tag="result", tag_field="role", omit_defaults=True):
    """The result of one call."""

    call_id: str
    tool: str
    text: str
    ok: bool = True
    parts: tuple[Part, ...] = ()


Message: TypeAlias = UserMessage | ModelMessage | ResultMessage


class Messages(Sequence[Message]):
    """The messages that a growing list has now. This view is stable, and creating it copies nothing."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: list[Message]) -> None:
        self._items, self._length = items, len(items)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return self._items[start:stop:step] if step > 0 else self._items[: self._length][index]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else index + self._length]

    def __iter__(self) -> Iterator[Message]:
        for index in range(self._length):
            yield self._items[index]

    def __repr__(self) -> str:
        return f"Messages({self[:]!r})"


class ToolSpec(Struct, frozen=True, omit_defaults=True):
    """The description of a tool for a model. `examples` are short requests with the matching arguments.

    `strict` asks the provider to guarantee that the arguments match `parameters`. None leaves it to the provider.
    """

    name: str
    description: str
    parameters: dict[str, Json]
    examples: tuple[tuple[str, dict[str, Json]], ...] = ()
    strict: bool | None = None


class Sampling(Struct, frozen=True, omit_defaults=True):
    """Sampling options of a model. None leaves the choice to the provider.

    `extra` has more options under their Chat Completions names. Each protocol writes them under its own names, and
    refuses those that change the meaning and that it cannot take. A field named after a protocol (`chat`, `anthropic`,
    `responses`, `ollama`) holds fields for that protocol alone. Other fields are passed on unchanged.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    extra: dict[str, Json] = field(default_factory=dict[str, Json])


class Request(Struct, frozen=True):
    """The input of one model call.

    `messages` only grows from turn to turn until the context is compacted. `render_cache` lives as long: an adapter
    keeps serialized messages in it. `max_tokens` is the rest of the run's budget. `output_schema` describes the final
    answer, and `output_strict` asks the provider to guarantee it; None leaves this to the adapter. With `tool_choice`
    "none" no tool may be called. `sources` name the texts in it that do not come from the conversation.
    """

    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    max_tokens: int | None = None
    sampling: Sampling = Sampling()
    output_schema: dict[str, Json] | None = None
    output_strict: bool | None = None
    session_id: str = ""
    render_cache: dict[str, Json] = field(default_factory=dict[str, Json])
    sources: tuple[str, ...] = ()


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by question marks: they cannot be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def wrap_system(message: UserMessage) -> tuple[Part, ...]:
    """The parts of a message, between `<system>` tags if it is an instruction."""
    return (TextPart(f"<system>\n{render_parts(message.parts)}\n</system>"),) if message.is_system else message.parts


def is_attached(part: Part) -> bool:
    """Whether a part of a message is a file that goes with the words of its sender."""
    return not isinstance(part, TextPart) or bool(part.file)


def render_parts(parts: Sequence[Part]) -> str:
    """Render parts as text, with a short placeholder for each image or file."""
    words: list[str] = []
    for part in parts:
        match part:
            case TextPart(text=text):
                words.append(text)
            case ImagePart():
                words.append("[image]")
            case FilePart(name=name):
                words.append(f"[file {name}]")
    return "\n".join(words)


def render_message(message: Message) -> str:
    """Render the text of a message, without its calls."""
    return render_parts(message.parts) if isinstance(message, UserMessage) else message.text


# ── tokens: estimates for where no provider has counted, never for a bill ──────────────────────────────────

BYTES_PER_TOKEN = 4
"""Bytes of text per token: right for English and code, a little low for scripts with two or three bytes a letter."""
IMAGE_TOKENS = 1000
MESSAGE_TOKENS = 4
"""The tokens of a message without its content."""


def hash_content(data: bytes) -> str:
    """Compute the hash that the content of a file is known by."""
    from hashlib import sha256

    return sha256(data).hexdigest()


def count_bytes(text: str) -> int:
    """Count the bytes of a text. Tokens are estimated from bytes, in any script."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text."""
    return -(-count_bytes(text) // BYTES_PER_TOKEN)


def estimate_parts(parts: Iterable[Part]) -> int:
    """Estimate the tokens of a message's parts."""
    total = 0
    for part in parts:
        match part:
            case TextPart(text=text):
                total += estimate_text(text)
            case ImagePart():
                total += IMAGE_TOKENS
            case FilePart(data=data):
                total += len(data) * 3 // 4 // BYTES_PER_TOKEN
    return total


def estimate_message(message: Message) -> int:
    """Estimate the tokens of one message."""
    match message:
        case UserMessage(parts=parts):
            return MESSAGE_TOKENS + estimate_parts(parts)
        case ModelMessage(text=text, calls=calls):
            return (
                MESSAGE_TOKENS
                + estimate_text(text)
                + sum(MESSAGE_TOKENS + estimate_text(call.tool + call.arguments) for call in calls)
            )
        case ResultMessage(text=text, parts=parts):
            return MESSAGE_TOKENS + estimate_text(text) + estimate_parts(parts)


def estimate_messages(messages: Iterable[Message]) -> int:
    """Estimate the tokens of a conversation."""
    return sum(map(estimate_message, messages))


def estimate_request(request: Request) -> int:
    """Estimate the tokens of a request."""
    return estimate_text(request.system) + estimate_tools(request.tools) + estimate_messages(request.messages)


def estimate_tools(tools: Iterable[ToolSpec]) -> int:
    """Estimate the tokens of the descriptions of tools."""
    return sum(
        estimate_text(spec.name + spec.description) + -(-len(msgspec.json.encode(spec.parameters)) // BYTES_PER_TOKEN)
        for spec in tools
    )
