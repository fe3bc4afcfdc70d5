"""Anthropic Messages: requests. Replies are read in anthropic_reader.py.

Results and user messages between two replies are one user turn, results first. Thinking goes back unchanged
to the model that thought it, and to no other. The stable prefix carries cache marks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Raw, Struct

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
)
from treadle.models.anthropic_reader import AnthropicReader
from treadle.models.request_parts import (
    ANTHROPIC_IDS,
    MessageBuffer,
    decode_own_state,
    decode_text_file,
    describe_unreadable_file,
    encode,
    encode_arguments,
    estimate_tokens,
    fit_tool_name,
    get_buffer,
    list_called_tools,
)
from treadle.models.strict_schema import narrow_schema

_MARK = b',"cache_control":{"type":"ephemeral"}}'
_IMAGES = frozenset(("image/jpeg", "image/png", "image/gif", "image/webp"))
_OURS = frozenset(("model", "messages", "stream", "tools", "system", "max_tokens", "thinking", "parallel_tool_calls"))
_DEFAULT_OUTPUT = 8192
_LEAST_OUTPUT = 4096
_LEAST_THINKING = 1024


_Turn = Literal["start", "open", "closed"]
_BEFORE_REPLY: dict[_Turn, bytes] = {"start": b"", "open": b"]},", "closed": b","}
_BEFORE_USER: dict[_Turn, bytes] = {
    "start": b'{"role":"user","content":[',
    "open": b",",
    "closed": b',{"role":"user","content":[',
}


class _Type(Struct):
    type: str = ""


_type = msgspec.json.Decoder(_Type)


class _Head(NamedTuple):
    """All of a request but its messages and limits; `digest` stands for the part that binds thinking."""

    key: tuple[Any, ...]
    tools: tuple[ToolSpec, ...]
    data: bytes
    digest: bytes


class _State(NamedTuple):
    """What must be known behind a message: the turn, a digest of all before, and whether calls await a reply."""

    turn: _Turn
    seen: bytes
    loop: Literal["", "thoughtful", "thoughtless"] = ""


class AnthropicMessages:
    """The wire format of one model behind the Messages API.

    A thinking block is sent back only where system, tools and messages before it are what they were when it
    was thought, since newer models refuse it anywhere else: after a compaction, for instance.
    """

    path = "/messages"

    def __init__(
        self, provider: str, model: str, *, max_output: int | None = None, accepts_sampling: bool = True
    ) -> None:
        self._model = model
        self._owner = f"{provider}:{model}"
        self._key = f"anthropic:{self._owner}"
        self._max_output = max_output
        self._samples = accepts_sampling

    def build_body(self, request: Request, window: int | None) -> bytes:
        head = self._head(request)
        known, state = self._written(request, head)
        is_open = state.turn == "open"
        data = known.take_prefix(len(request.messages))
        room = window - estimate_tokens(len(data)) if window is not None else None
        pieces = [
            head.data[:-1],
            b",",
            encode(self._limits(request, state, room))[1:-1],
            b',"messages":[',
            *_marked(data, self._marks(request.messages, known, is_open)),
            b"]}]}" if is_open else b"]}",
        ]
        return b"".join(pieces)

    def open_reader(self, request: Request, sent: int) -> AnthropicReader:
        head = self._head(request)
        _, state = self._written(request, head)
        return AnthropicReader(self._owner, sent=sent, prefix=_prefix(head.digest, state.seen))

    def _written(self, request: Request, head: _Head) -> tuple[MessageBuffer, _State]:
        """The messages serialised for this head: another one may need another choice of thinking."""
        known = get_buffer(request, f"{self._key}:{head.digest.hex()}")
        write = partial(self._fragment, head.digest)
        return known, known.extend(request.messages, write, _State("start", b""))

    def _marks(self, messages: Sequence[Message], known: MessageBuffer, is_open: bool) -> list[int]:
        """Where the last user turn ends, and the one before it.

        The cache looks back only some twenty blocks from a mark, and a turn with many calls is longer.
        """
        if not is_open:
            return []
        place = len(messages)
        last = known.ends[place - 1]
        while place and not isinstance(messages[place - 1], ModelMessage):
            place -= 1
        if place < 2 or isinstance(messages[place - 2], ModelMessage) or known.ends[place - 2] == last:
            return [last]
        return [known.ends[place - 2], last]

    def _head(self, request: Request) -> _Head:
        key = (request.system, request.tools, request.tool_choice, request.sampling, request.output_schema)
        before = request.render_cache.get(self._key)
        before = before if isinstance(before, _Head) else None
        if before is not None and before.key == key:
            return before
        specs = request.tools
        if not specs:
            # Calls in the history want their tools declared, also in a turn that may not call any.
            specs = before.tools if before is not None else _guessed(request.messages)
        tools = [_tool(tool) for tool in specs]
        data = encode(self._fields(request, tools))
        bound = hashlib.blake2b(encode([request.system, [_tool(tool) for tool in specs]]), digest_size=16)
        head = request.render_cache[self._key] = _Head(key, specs, data, bound.digest())
        return head

    def _fields(self, request: Request, tools: list[dict[str, Json]]) -> dict[str, Json]:
        sampling = request.sampling
        fields: dict[str, Json] = {"model": self._model, "stream": True}
        if tools:
            fields["tools"] = tools
        if request.system.strip():
            mark = {"type": "ephemeral"}
            fields["system"] = [{"type": "text", "text": request.system, "cache_control": mark}]
        elif tools:
            tools[-1]["cache_control"] = {"type": "ephemeral"}
        if sampling.temperature is not None and self._samples and not _thinks(sampling.extra):
            fields["temperature"] = sampling.temperature
        if sampling.top_p is not None and self._samples:
            fields["top_p"] = sampling.top_p
        if stops := [stop for stop in sampling.stop if stop.strip()]:
            fields["stop_sequences"] = stops
        fields |= {k: v for k, v in sampling.extra.items() if k not in _OURS}
        if request.output_schema is not None:
            form = {"type": "json_schema", "schema": narrow_schema(request.output_schema)}
            fields["output_config"] = {**fields.get("output_config", {}), "format": form}
        wanted = fields.pop("tool_choice", request.tool_choice)
        wanted = "none" if not request.tools or request.tool_choice == "none" else wanted
        choice = _choice(wanted, sampling.extra.get("parallel_tool_calls"))
        if tools and choice is not None:
            fields["tool_choice"] = choice
        return fields

    def _limits(self, request: Request, state: _State, room: int | None) -> dict[str, Json]:
        """The token limit, and thinking as far as limit and history allow it."""
        most = self._max_output or _DEFAULT_OUTPUT
        limit = min(request.max_tokens or most, most)
        if room is not None:
            limit = min(limit, max(room, _LEAST_OUTPUT))
        fields: dict[str, Json] = {"max_tokens": limit}
        thinking = request.sampling.extra.get("thinking")
        if not isinstance(thinking, Mapping):
            return fields
        wanted = dict(cast("Mapping[str, Json]", thinking))
        if wanted.get("type") == "enabled":
            wanted["budget_tokens"] = min(wanted.get("budget_tokens", limit), limit - 1)
            # Manual thinking may not begin in the middle of a tool loop that went without.
            if wanted["budget_tokens"] < _LEAST_THINKING or state.loop == "thoughtless":
                return fields
        fields["thinking"] = wanted
        return fields

    def _fragment(self, bound: bytes, message: Message, state: _State) -> tuple[bytes, _State]:
        """One message's JSON, and whether it leaves a user turn open for the next to join."""
        loop = state.loop
        if isinstance(message, ModelMessage):
            blocks, thought = self._model_blocks(message, _prefix(bound, state.seen))
            loop = ("thoughtful" if thought else "thoughtless") if message.calls else ""
            if not blocks:
                return b"", state
            start, turn = _BEFORE_REPLY[state.turn] + b'{"role":"assistant","content":[', "closed"
            data = b"%b%b]}" % (start, b",".join(blocks))
        else:
            if isinstance(message, ResultMessage):
                blocks = [_result(message)]
            else:
                blocks = [encode(block) for part in message.parts if (block := _part(part)) is not None]
                blocks = blocks or [encode({"type": "text", "text": "(an empty message)"})]
            data, turn = _BEFORE_USER[state.turn] + b",".join(blocks), "open"
        return data, _State(turn, hashlib.blake2b(state.seen + data, digest_size=16).digest(), loop)

    def _model_blocks(self, message: ModelMessage, prefix: str) -> tuple[list[bytes], bool]:
        """A reply's blocks, and whether there is thinking among them."""
        calls = [_tool_use(call.id, call.tool, encode_arguments(call)) for call in message.calls]
        own = decode_own_state(message, self._key)
        if own is None or own.prefix != prefix:
            text = [encode({"type": "text", "text": message.text})] if message.text.strip() else []
            return text + calls, False
        blocks: list[bytes] = []
        place = 0
        for item in own.items:
            if _type.decode(item).type != "tool_use":
                blocks.append(bytes(item))
            elif place < len(calls):
                blocks.append(calls[place])
                place += 1
        blocks += calls[place:]
        # Calls that were not kept may leave thoughts at the end, where they are refused.
        while blocks and "thinking" in _type.decode(blocks[-1]).type:
            blocks.pop()
        return blocks, any("thinking" in _type.decode(block).type for block in blocks)


def _prefix(bound: bytes, seen: bytes) -> str:
    return hashlib.blake2b(bound + seen, digest_size=12).hexdigest()


def _guessed(messages: Sequence[Message]) -> tuple[ToolSpec, ...]:
    """Stand-ins for tools that were called when nobody says any more what they look like."""
    return tuple(ToolSpec(fit_tool_name(name), "", {"type": "object"}) for name in list_called_tools(messages))


def _marked(data: bytearray, marks: Sequence[int]) -> list[bytes | bytearray]:
    """`data` with a cache mark in the block that ends at each place."""
    pieces: list[bytes | bytearray] = []
    at = 0
    for end in marks:
        pieces += (data[at : end - 1], _MARK)
        at = end
    pieces.append(data[at:])
    return pieces


def _tool(tool: ToolSpec) -> dict[str, Json]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _tool_use(call_id: str, name: str, arguments: bytes) -> bytes:
    fitted = {
        "type": "tool_use",
        "id": ANTHROPIC_IDS.fit(call_id),
        "name": fit_tool_name(name),
        "input": Raw(arguments),
    }
    return encode(fitted)


def _result(message: ResultMessage) -> bytes:
    content: Json = message.text
    if message.parts:
        blocks = [_part(TextPart(message.text)), *(_part(part) for part in message.parts)]
        content = [block for block in blocks if block is not None]
    fields: dict[str, Json] = {
        "type": "tool_result",
        "tool_use_id": ANTHROPIC_IDS.fit(message.call_id),
        "content": content,
    }
    if not message.ok:
        fields["is_error"] = True
    return encode(fields)


def _part(part: Part) -> dict[str, Json] | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text} if part.text.strip() else None
        case ImagePart(url=url) if url:
            return {"type": "image", "source": {"type": "url", "url": url}}
        case ImagePart(media_type=kind) if kind in _IMAGES:
            return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": part.data}}
        case ImagePart():
            return {"type": "text", "text": f"[an image of type {part.media_type} cannot be shown]"}
        case FilePart(media_type="application/pdf"):
            source = {"type": "base64", "media_type": "application/pdf", "data": part.data}
            return {"type": "document", "source": source, "title": part.name}
        case FilePart():
            text = decode_text_file(part)
            if text is None or not text.strip():
                return {"type": "text", "text": describe_unreadable_file(part)}
            source = {"type": "text", "media_type": "text/plain", "data": text}
            return {"type": "document", "source": source, "title": part.name}


def _thinks(extra: Mapping[str, Json]) -> bool:
    thinking = extra.get("thinking")
    return isinstance(thinking, Mapping) and cast("Mapping[str, Json]", thinking).get("type") != "disabled"


def _choice(choice: Any, parallel: Any) -> dict[str, Json] | None:
    """The neutral words for a choice of tools in Anthropic's form."""
    match choice:
        case None | "auto":
            fields = {"type": "auto"} if parallel is False else None
        case "none":
            fields = {"type": "none"}
        case "required" | "any":
            fields = {"type": "any"}
        case str():
            fields = {"type": "tool", "name": choice}
        case _:
            return choice
    if fields is not None and parallel is False and fields["type"] != "none":
        return {**fields, "disable_parallel_tool_use": True}
    return cast("dict[str, Json] | None", fields)
