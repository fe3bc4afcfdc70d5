"""What the wire formats share: messages serialised once, call ids a provider accepts, opaque state.

Pure. A fragment is the JSON of one message; a request's body is fragments joined, never built anew.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from treadle.messages import Call, FilePart, Message, ModelMessage, Part, Request, ResultMessage, TextPart

encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, Raw])


S = TypeVar("S")


class MessageBuffer:
    """The fragments of a context that grows, one after the other in one buffer.

    `ends` says where each message's fragment ends, so that any shorter context is a prefix of the buffer;
    `states` what the wire format had to remember after each.
    """

    __slots__ = ("_kept", "_states", "data", "ends", "head", "head_key")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[int] = []
        self.head = b""
        self.head_key: tuple[Any, ...] = ()
        self._kept: list[Message] = []
        self._states: list[Any] = []

    def extend(self, messages: Sequence[Message], write: Callable[[Message, S], tuple[bytes, S]], start: S) -> S:
        """Serialise those of `messages` that are not written yet, and give the state after the last.

        The others are compared, not trusted: lists of the same objects compare in no time.
        """
        known = len(self._kept)
        if list(messages[:known]) != self._kept:
            known = self._same(messages)
            if known < len(messages):
                self._forget(known)
        if known < len(messages):
            state: S = self._states[-1] if self._states else start
            for message in messages[known:]:
                fragment, state = write(message, state)
                self.data += fragment
                self.ends.append(len(self.data))
                self._kept.append(message)
                self._states.append(state)
        return self._states[len(messages) - 1] if messages else start

    def take_prefix(self, count: int) -> bytearray:
        """The fragments of the first `count` messages."""
        if count == len(self.ends):
            return self.data
        return self.data[: self.ends[count - 1]] if count else bytearray()

    def _same(self, messages: Sequence[Message]) -> int:
        """How many messages from the start are as they were."""
        pairs = zip(messages, self._kept, strict=False)
        return next(
            (place for place, (new, old) in enumerate(pairs) if new != old), min(len(messages), len(self._kept))
        )

    def _forget(self, known: int) -> None:
        del self._kept[known:], self.ends[known:], self._states[known:]
        del self.data[self.ends[-1] if self.ends else 0 :]


def get_buffer(request: Request, key: str) -> MessageBuffer:
    """What was serialised for earlier turns of the same context."""
    found = request.render_cache.get(key)
    if not isinstance(found, MessageBuffer):
        found = request.render_cache[key] = MessageBuffer()
    return found


class CarriedParts(NamedTuple):
    """What tool results showed beside text, for formats where it may only follow in a user message.

    Such a message may not stand between the results of one reply, so it waits for the last of them.
    """

    open_calls: int = 0
    parts: tuple[Part, ...] = ()

    def add_result(self, result: ResultMessage) -> tuple[tuple[Part, ...], CarriedParts]:
        """What is due behind this result, and what is still waiting."""
        parts = self.parts
        if result.parts:
            parts = (*parts, TextPart(f"What {result.tool} gave:"), *result.parts)
        if self.open_calls > 1:
            return (), CarriedParts(self.open_calls - 1, parts)
        return parts, NOTHING_CARRIED


NOTHING_CARRIED = CarriedParts()


class IdRule(Struct, frozen=True):
    """Which call ids a provider takes: the characters, and the least and greatest length."""

    pattern: str = r"[a-zA-Z0-9_-]+"
    shortest: int = 1
    longest: int = 40

    def fit(self, call_id: str) -> str:
        """`call_id` if it is acceptable, else one made from it, always the same."""
        fits = self.shortest <= len(call_id) <= self.longest
        if fits and re.fullmatch(self.pattern, call_id):
            return call_id
        digest = hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=20).hexdigest()
        return digest[: self.longest] if self.longest < 30 else "call_" + digest[:24]


OPENAI_IDS = IdRule()
ANTHROPIC_IDS = IdRule(longest=64)
MISTRAL_IDS = IdRule(pattern=r"[a-zA-Z0-9]{9}", shortest=9, longest=9)


def fit_tool_name(name: str) -> str:
    """A tool's name as every provider takes it; a model may have called something no tool is named."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


def encode_arguments(call: Call) -> bytes:
    """A call's arguments as the JSON of an object, which servers insist on even where a model failed to."""
    text = call.arguments
    try:
        _object.decode(text)
    except msgspec.DecodeError:
        return encode({"invalid_arguments": text})
    return text.encode()


MISSING = Raw(b"")
"""The default of a raw field: msgspec cannot tell `Raw | None` apart from any other value."""


def read_raw(raw: Raw) -> bytes:
    """The JSON in a raw field, or nothing where it is missing or null."""
    text = bytes(raw)
    return b"" if text == b"null" else text


class OpaqueState(Struct, omit_defaults=True):
    """State that only the model named in `owner` may see again, such as signed reasoning.

    `prefix` stands for all that came before it, where a provider accepts it behind nothing else.
    """

    owner: str
    items: list[Raw] = []
    fields: dict[str, Raw] = {}
    prefix: str = ""


_opaque = msgspec.json.Decoder(OpaqueState)


def decode_own_state(message: ModelMessage, owner: str) -> OpaqueState | None:
    """What `owner` gave with this message, or None when the message is another model's."""
    if not message.opaque:
        return None
    try:
        state = _opaque.decode(message.opaque)
    except msgspec.DecodeError:
        return None
    return state if state.owner == owner else None


def encode_state(state: OpaqueState) -> str:
    return encode(state).decode()


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
    """What a model is told in place of a file it cannot read."""
    return f"[file {part.name} ({part.media_type}) cannot be shown to this model]"


def estimate_tokens(size: int) -> int:
    """About how many tokens `size` bytes of text or JSON are."""
    return size // 4 + 1


def list_called_tools(messages: Sequence[Message]) -> list[str]:
    """The tools called in a conversation, for providers that want them declared when none is offered."""
    return sorted({call.tool for m in messages if isinstance(m, ModelMessage) for call in m.calls})
