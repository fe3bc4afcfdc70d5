"""How requests to one model are written and its responses read: the base of the protocols, and what they share.

Pure. A fragment is the JSON of one message. The body of a request is joined from fragments and never built anew.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from treadle import messages
from treadle.messages import Call, FilePart, Json, Message, ModelMessage, Part, Request, ResultMessage, TextPart, Usage
from treadle.models.model_info import UNKNOWN_MODEL, ModelInfo
from treadle.models.request_options import OptionTable, merge_fields, write_options

if TYPE_CHECKING:
    from treadle.models.reply_reader import ReplyReader

S = TypeVar("S")
encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, Raw])


class IdRule(Struct, frozen=True):
    """Which call ids a provider accepts: a pattern, and the greatest length."""

    pattern: str = r"[a-zA-Z0-9_-]+"
    longest: int = 40

    def fit(self, call_id: str) -> str:
        """`call_id` if the provider accepts it, else an id that is always the same for it."""
        if len(call_id) <= self.longest and re.fullmatch(self.pattern, call_id):
            return call_id
        digest = hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=20).hexdigest()
        return digest[: self.longest] if self.longest < 30 else "call_" + digest[:24]


OPENAI_IDS = IdRule()
MISTRAL_IDS = IdRule(pattern=r"[a-zA-Z0-9]{9}", longest=9)


class WireFormat(ABC):
    """How requests to one model are written and its responses read. `key` names protocol, provider and model."""

    protocol: ClassVar[str]
    path: ClassVar[str]
    count_path: ClassVar[str] = ""
    """Where the provider counts the tokens of a request, if it does."""
    count_fields: ClassVar[frozenset[str]] = frozenset()
    """The fields of a request that count."""
    own_fields: ClassVar[frozenset[str]]
    """The fields of a request that `Sampling.extra` may not set, or that are written with others."""
    options: ClassVar[OptionTable | None] = None
    """How the protocol writes the options that it takes. None means that it takes all, under their own names."""
    id_rule: IdRule = IdRule(longest=64)

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

    def build_sampling(self, request: Request) -> dict[str, Json]:
        """Temperature and top-p, where they are set and the model accepts them."""
        if not self.info.accepts_sampling:
            return {}
        values = {"temperature": request.sampling.temperature, "top_p": request.sampling.top_p}
        return {name: value for name, value in values.items() if value is not None}

    def build_extra(self, request: Request) -> dict[str, Json]:
        """The fields that the user adds to a request. Raises `ModelError` for an option that is not taken."""
        extra = request.sampling.extra
        if not extra:
            return {}
        fields = write_options(extra, self.options, self.owner, ignored=self.own_fields)
        own = self.read_own_fields(request)
        return merge_fields(fields, {name: value for name, value in own.items() if name not in self.own_fields})

    def read_own_fields(self, request: Request) -> Mapping[str, Json]:
        """The fields in a request's options that are for this protocol alone."""
        own = request.sampling.extra.get(self.protocol)
        return cast("Mapping[str, Json]", own) if isinstance(own, Mapping) else {}

    def decode_own_state(self, message: ModelMessage) -> OpaqueState | None:
        """The state that this model gave with a message, or None when the message is another model's."""
        if not message.opaque:
            return None
        try:
            state = _opaque.decode(message.opaque)
        except (msgspec.DecodeError, RecursionError):
            return None
        return state if state.owner in (self.key, self.protocol) else None

    def encode_own_state(self, items: list[Raw], fields: dict[str, Raw] | None = None, prefix: str = "") -> str:
        """State as it is kept with a message until it goes back to this model."""
        return encode(OpaqueState(self.key, items, fields or {}, prefix)).decode()

    def add_cost(self, usage: Usage, cache_write: int = 0) -> Usage:
        """`usage` with its cost in dollars. `cache_write` of its input tokens were written to a prompt cache."""
        info = self.info
        if not (info.input or info.output):
            return usage
        fresh = max(0, usage.input_tokens - usage.cached_tokens - cache_write)
        dollars = (
            fresh * info.input
            + usage.cached_tokens * (info.input if info.cached is None else info.cached)
            + cache_write * (info.input if info.cache_write is None else info.cache_write)
            + usage.output_tokens * info.output
        )
        return msgspec.structs.replace(usage, cost=dollars / 1e6)


class Head(NamedTuple):
    """All of a request but its messages and limits, and the values that it was written from."""

    key: tuple[Any, ...] = ()
    data: bytes = b""


SAFE_BYTES_PER_TOKEN = 3
"""Fewer bytes than a token really has, so that the input is rather over- than underestimated."""
LEAST_ROOM = 256
"""The limit of a reply when the input fills the window by our estimate, which may be wrong."""


class ListFormat(WireFormat):
    """A format whose messages are the entries of one list. Each entry is written independently of the others."""

    head_fields: tuple[str, ...] = ("tools", "tool_choice", "sampling", "output_schema", "output_strict")
    """The fields of a request that its head depends on."""
    list_field: ClassVar[bytes] = b"messages"
    limit_field: str = ""
    """The field that limits the reply's tokens, if there is one outside the head."""
    least_output: ClassVar[int] = 0
    carries_parts: ClassVar[bool] = True
    """Whether images and files of a tool result are shown in a user message after it."""
    system_role: str = ""
    """The role of an instruction in the middle of the conversation, where the protocol has one."""
    _last_head = Head()

    def build_body(self, request: Request, window: int | None) -> bytes:
        buffer = get_buffer(request, self.key)
        buffer.extend(request.messages, self._write_message, CarriedParts())
        end = buffer.find_end(len(request.messages))
        system = self._write_system(request)
        head = self._get_head(request, buffer, window)
        limit = self._write_limit(request, window, len(head) + len(system) + end)
        with memoryview(buffer.data) as data:  # a slice of the buffer itself would copy the whole history once more
            written = data[0 if system else 1 : end]
            return b"".join((head, limit, b',"%b":[' % self.list_field, system, written, b"]}"))

    def _get_head(self, request: Request, buffer: MessageBuffer, window: int | None) -> bytes:
        """All but the messages and the token limit. It is serialised again only when it changes; sessions share it."""
        key = (window, *(getattr(request, name) for name in self.head_fields))
        if buffer.head.key != key:
            head = self._last_head  # one object, because another thread may replace it
            if head.key != key:
                head = self._last_head = Head(key, encode(self._build_fields(request, window))[:-1])
            buffer.head = head
        return buffer.head.data

    @abstractmethod
    def _build_fields(self, request: Request, window: int | None) -> dict[str, Json]: ...

    def _write_limit(self, request: Request, window: int | None, size: int) -> bytes:
        """The field that limits the reply's tokens, after a comma.

        Servers refuse a limit that does not fit into the window beside the input of `size` bytes, and some clients
        ask any model for 32 000 tokens. So the limit is at most about the room that the input leaves.
        """
        if request.max_tokens is None or not self.limit_field:
            return b""
        limit = min(request.max_tokens, self.info.max_output or request.max_tokens)
        if window is not None and limit > window - size // SAFE_BYTES_PER_TOKEN:
            room = window - (size - count_attachment_bytes(request)) // SAFE_BYTES_PER_TOKEN
            limit = min(limit, max(room, LEAST_ROOM))
        return b',"%b":%d' % (self.limit_field.encode(), max(limit, self.least_output))

    def _write_system(self, request: Request) -> bytes:
        """The entry with the instructions, where they are an entry of the list."""
        return b""

    def _write_message(self, message: Message, carried: CarriedParts) -> tuple[bytes, CarriedParts]:
        match message:
            case messages.UserMessage(is_system=True) if self.system_role:
                text = messages.render_parts(message.parts)
                return b"," + encode({"role": self.system_role, "content": text}), carried
            case messages.UserMessage():
                return self._write_user(messages.wrap_system(message)), carried
            case ModelMessage():
                return self._write_reply(message), CarriedParts(len(message.calls))
            case ResultMessage():
                due, carried = carried.add_result(message) if self.carries_parts else ((), carried)
                return self._write_result(message) + (self._write_user(due) if due else b""), carried

    def _write_user(self, parts: Sequence[Part]) -> bytes:
        """The entry of a user message, after a comma. Its content is a string where all parts are text, else a list."""
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        content = "\n".join(texts) if len(texts) == len(parts) else [self._build_part(part) for part in parts]
        return b"," + encode({"role": "user", "content": content}) if content else b""

    @abstractmethod
    def _build_part(self, part: Part) -> dict[str, Json]: ...

    @abstractmethod
    def _write_reply(self, message: ModelMessage) -> bytes: ...

    @abstractmethod
    def _write_result(self, message: ResultMessage) -> bytes: ...


class MessageBuffer:
    """The fragments of a context that grows, one after the other in one buffer.

    `ends` says where each message's fragment ends, so that any shorter context is a prefix of the buffer. With each
    message it keeps the state that the wire format needs to write the next one.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[int] = []
        self.head = Head()
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

    def find_end(self, count: int) -> int:
        """Where the fragments of the first `count` messages end."""
        return self.ends[count - 1] if count else 0


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
        return parts, CarriedParts()


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{uuid.uuid4().hex[:24]}"


def fit_tool_name(name: str) -> str:
    """A tool's name as every provider accepts it. A model may have called a name that no tool has."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unknown"


def encode_arguments(call: Call) -> bytes:
    """A call's arguments as the JSON of an object. Servers insist on one even where the model wrote something else."""
    text = call.arguments
    try:
        _object.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return encode({"invalid_arguments": text})
    return text.encode()


def describe_function(tool: messages.ToolSpec) -> dict[str, Json]:
    """A tool as Chat Completions and its imitations declare it."""
    function: dict[str, Json] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def add_tools(fields: dict[str, Json], request: Request, wrap: Callable[[dict[str, Json]], dict[str, Json]]) -> None:
    """Add the tools to a request's fields. `wrap` builds the entry of a function, or the choice of one by its name."""
    if request.tools:
        fields["tools"] = [wrap(describe_function(tool)["function"]) for tool in request.tools]
        choice = fields.get("tool_choice")
        if request.tool_choice == "none" or choice is None:
            choice = request.tool_choice
        elif isinstance(choice, str) and choice not in ("auto", "none", "required"):
            choice = wrap({"name": choice})
        fields["tool_choice"] = choice
    for name in ("tool_choice", "parallel_tool_calls"):
        if not request.tools or fields.get(name) == "auto":
            fields.pop(name, None)


def build_data_url(part: messages.ImagePart | FilePart) -> str:
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


class FunctionPiece(Struct, gc=False):
    """A call's function, or a piece of it, in Chat Completions and its imitations."""

    name: str | None = None
    arguments: str | dict[str, Json] | None = None


class CallPiece(Struct, gc=False):
    """A call, or a piece of it, in Chat Completions and its imitations."""

    index: int | None = None
    id: str | int | None = None
    function: FunctionPiece | None = None
    extra_content: Raw = MISSING


class TokenDetails(Struct, gc=False):
    """How the protocols break down the tokens of a request or of a reply."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    thinking_tokens: int | None = None


class ReportedUsage(Struct, gc=False):
    """The counts that a provider gives, under the names of all protocols."""

    prompt_tokens: float | None = None
    prompt_tokens_details: TokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    completion_tokens: float | None = None
    completion_tokens_details: TokenDetails | None = None
    cost: Json = None
    input_tokens: int | None = None
    input_tokens_details: TokenDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: TokenDetails | None = None


class OpaqueState(Struct, omit_defaults=True):
    """State that only the model named in `owner` may see again, such as signed reasoning.

    A client that sends a provider's own state back cannot name the model. The owner is then the protocol.
    `prefix` stands for all that came before it, where a provider accepts the state behind nothing else.
    """

    owner: str
    items: list[Raw] = []
    fields: dict[str, Raw] = {}
    prefix: str = ""


_opaque = msgspec.json.Decoder(OpaqueState)


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


def count_attachment_bytes(request: Request) -> int:
    """Count the bytes of a request's images and files. They say nothing about its tokens."""
    return sum(
        len(part.data)
        for message in request.messages
        if not isinstance(message, ModelMessage)
        for part in message.parts
        if not isinstance(part, TextPart)
    )


def estimate_tokens(size: int) -> int:
    """About how many tokens `size` bytes of text or JSON are."""
    return size // 4 + 1
