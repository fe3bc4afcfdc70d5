"""What the wire formats share when they write a request: messages serialised once, ids and names a provider accepts.

Pure. A fragment is the JSON of one message. The body of a request is joined from fragments and never built anew.
"""

from __future__ import annotations

import base64
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

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
    TextPart,
    ToolSpec,
)
from treadle.models.model_info import UNKNOWN_MODEL, ModelInfo

if TYPE_CHECKING:
    from treadle.models.reply_builder import ReplyReader

encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, Raw])


S = TypeVar("S")


class WireFormat(ABC):
    """How requests to one model are written and its responses read. `key` names protocol, provider and model."""

    protocol: ClassVar[str]
    path: ClassVar[str]

    def __init__(self, provider: str, model: str, info: ModelInfo = UNKNOWN_MODEL) -> None:
        self.model = model
        self.owner = f"{provider}:{model}"
        self.key = f"{self.protocol}:{self.owner}"
        self.info = info

    @abstractmethod
    def build_body(self, request: Request, window: int | None) -> bytes: ...

    @abstractmethod
    def open_reader(self, request: Request, sent: int) -> ReplyReader[Any]:
        """A reader for the response to `request`, of which `sent` bytes were sent."""

    def limit_output(self, request: Request) -> int | None:
        """How many tokens the reply may have, as far as that is limited."""
        most = self.info.max_output
        if request.max_tokens is None or most is None:
            return request.max_tokens
        return min(request.max_tokens, most)

    def build_sampling(self, request: Request) -> dict[str, Json]:
        """Temperature and top-p, where they are set and the model accepts them."""
        if not self.info.accepts_sampling:
            return {}
        values = {"temperature": request.sampling.temperature, "top_p": request.sampling.top_p}
        return {name: value for name, value in values.items() if value is not None}


class MessageBuffer:
    """The fragments of a context that grows, one after the other in one buffer.

    `ends` says where each message's fragment ends, so that any shorter context is a prefix of the buffer. With each
    message it keeps the state that the wire format needs to write the next one.
    """

    __slots__ = ("_messages", "_states", "data", "ends", "head", "head_key")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[int] = []
        self.head = b""
        self.head_key: tuple[Any, ...] = ()
        self._messages: list[Message] = []
        self._states: list[Any] = []

    def extend(self, messages: Sequence[Message], write: Callable[[Message, S], tuple[bytes, S]], start: S) -> S:
        """Serialise those of `messages` that are not in the buffer yet. Returns the state after the last message.

        The others are compared, not trusted: lists of the same objects compare in no time.
        """
        known = len(self._messages)
        if list(messages[:known]) != self._messages:
            pairs = zip(messages, self._messages, strict=False)
            differing = (place for place, (new, old) in enumerate(pairs) if new != old)
            known = next(differing, min(len(messages), known))
            if known < len(messages):
                del self._messages[known:], self.ends[known:], self._states[known:]
                del self.data[self.ends[-1] if self.ends else 0 :]
        if known < len(messages):
            state: S = self._states[-1] if self._states else start
            for message in messages[known:]:
                fragment, state = write(message, state)
                self.data += fragment
                self.ends.append(len(self.data))
                self._messages.append(message)
                self._states.append(state)
        return self._states[len(messages) - 1] if messages else start

    def take_prefix(self, count: int) -> bytearray:
        """The fragments of the first `count` messages."""
        if count == len(self.ends):
            return self.data
        return self.data[: self.ends[count - 1]] if count else bytearray()


def get_buffer(request: Request, key: str) -> MessageBuffer:
    """The buffer of earlier turns of the same context, or a new one."""
    found = request.render_cache.get(key)
    if not isinstance(found, MessageBuffer):
        found = request.render_cache[key] = MessageBuffer()
    return found


class CarriedParts(NamedTuple):
    """Images and files in tool results, for formats where only a user message may show them.

    Such a message may not stand between the results of one reply, so it waits for the last of them.
    """

    open_calls: int = 0
    parts: tuple[Part, ...] = ()

    def add_result(self, result: ResultMessage) -> tuple[tuple[Part, ...], CarriedParts]:
        """The parts to show after this result, and those that still wait."""
        parts = self.parts
        if result.parts:
            parts = (*parts, TextPart(f"What {result.tool} gave:"), *result.parts)
        if self.open_calls > 1:
            return (), CarriedParts(self.open_calls - 1, parts)
        return parts, NOTHING_CARRIED


NOTHING_CARRIED = CarriedParts()


class IdRule(Struct, frozen=True):
    """Which call ids a provider accepts: the characters, and the least and greatest length."""

    pattern: str = r"[a-zA-Z0-9_-]+"
    shortest: int = 1
    longest: int = 40

    def fit(self, call_id: str) -> str:
        """`call_id` if the provider accepts it, else an id that is always the same for it."""
        fits = self.shortest <= len(call_id) <= self.longest
        if fits and re.fullmatch(self.pattern, call_id):
            return call_id
        digest = hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=20).hexdigest()
        return digest[: self.longest] if self.longest < 30 else "call_" + digest[:24]


OPENAI_IDS = IdRule()
LONGER_IDS = IdRule(longest=64)
MISTRAL_IDS = IdRule(pattern=r"[a-zA-Z0-9]{9}", shortest=9, longest=9)


def fit_tool_name(name: str) -> str:
    """A tool's name as every provider accepts it. A model may have called a name that no tool has."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


def encode_arguments(call: Call) -> bytes:
    """A call's arguments as the JSON of an object. Servers insist on one even where the model wrote something else."""
    text = call.arguments
    try:
        _object.decode(text)
    except msgspec.DecodeError:
        return encode({"invalid_arguments": text})
    return text.encode()


def describe_function(tool: ToolSpec) -> dict[str, Json]:
    """A tool as Chat Completions and its imitations declare it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def add_tools(
    fields: dict[str, Json], request: Request, describe: Callable[[ToolSpec], Json], choose: Callable[[str], Json]
) -> None:
    """Add the tools to a request's fields. `choose` builds the choice of one tool by its name."""
    if request.tools:
        fields["tools"] = [describe(tool) for tool in request.tools]
        choice = fields.get("tool_choice")
        if request.tool_choice == "none" or choice is None:
            choice = request.tool_choice
        elif isinstance(choice, str) and choice not in ("auto", "none", "required"):
            choice = choose(choice)
        fields["tool_choice"] = choice
    for name in ("tool_choice", "parallel_tool_calls"):
        if not request.tools or fields.get(name) == "auto":
            fields.pop(name, None)


def build_content(parts: Sequence[Part], build_part: Callable[[Part], dict[str, Json]]) -> str | list[dict[str, Json]]:
    """The content of a message: a string where all parts are text, else a list."""
    if all(isinstance(part, TextPart) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))
    return [build_part(part) for part in parts]


def build_data_url(part: ImagePart | FilePart) -> str:
    return f"data:{part.media_type};base64,{part.data}"


def describe_file(part: FilePart) -> str:
    """A file as text: its contents where they are text, else a note in their place."""
    text = decode_text_file(part)
    return f"{part.name}:\n{text}" if text is not None else describe_unreadable_file(part)


def decode_text_file(part: FilePart) -> str | None:
    """The text of a file that is text, or None."""
    kind = part.media_type
    if not (kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "toml", "javascript"))):
        return None
    try:
        return base64.b64decode(part.data, validate=False).decode("utf-8")
    except ValueError:
        return None


def describe_unreadable_file(part: FilePart) -> str:
    """The note that a model reads in place of a file it cannot read."""
    return f"[file {part.name} ({part.media_type}) cannot be shown to this model]"


MISSING = Raw(b"")
"""The default of a raw field: msgspec cannot tell `Raw | None` apart from any other value."""


def read_raw(raw: Raw) -> bytes:
    """The JSON in a raw field, or nothing where the field is missing or null."""
    text = bytes(raw)
    return b"" if text == b"null" else text


class OpaqueState(Struct, omit_defaults=True):
    """State that only the model named in `owner` may see again, such as signed reasoning.

    `prefix` stands for all that came before it, where a provider accepts the state behind nothing else.
    """

    owner: str
    items: list[Raw] = []
    fields: dict[str, Raw] = {}
    prefix: str = ""


_opaque = msgspec.json.Decoder(OpaqueState)


def decode_own_state(message: ModelMessage, owner: str) -> OpaqueState | None:
    """The state that `owner` gave with this message, or None when the message is another model's."""
    if not message.opaque:
        return None
    try:
        state = _opaque.decode(message.opaque)
    except msgspec.DecodeError:
        return None
    return state if state.owner == owner else None


def encode_state(state: OpaqueState) -> str:
    return encode(state).decode()


class _Typed(Struct):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed)


def read_type(item: bytes | Raw) -> str:
    """The `type` of a JSON object."""
    return _typed.decode(item).type


def merge_calls(items: Sequence[Raw], calls: Sequence[bytes], call_type: str, reasoning_type: str) -> list[bytes]:
    """The items of a reply as the model gave them, with the calls in the places of its own.

    Calls that were not kept may leave reasoning at the end, where providers refuse it. It is dropped.
    """
    merged: list[bytes] = []
    place = 0
    for item in items:
        if read_type(item) != call_type:
            merged.append(bytes(item))
        elif place < len(calls):
            merged.append(calls[place])
            place += 1
    merged += calls[place:]
    while merged and reasoning_type in read_type(merged[-1]):
        merged.pop()
    return merged


def estimate_tokens(size: int) -> int:
    """About how many tokens `size` bytes of text or JSON are."""
    return size // 4 + 1


def list_called_tools(messages: Sequence[Message]) -> list[str]:
    """The tools called in a conversation, for providers that want them declared when none is offered."""
    return sorted({call.tool for m in messages if isinstance(m, ModelMessage) for call in m.calls})
