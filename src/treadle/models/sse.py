"""Splits a byte stream into messages: server-sent events, or one JSON document per line. No network here.

All messages that have arrived are decoded together: that costs a tenth of decoding them one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
_LONGEST_EVENT = 1 << 24
_MOST_HELD = 1 << 26
"""How many bytes may come without the end of a message. Some messages hold images, but none is endless."""
_IGNORED_START = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first event and means nothing: a byte order mark, and blanks."""


class MalformedStream(ValueError):
    """The stream has something that is not a message of this protocol."""


class MessageStream(Generic[T]):
    """The messages in a stream of bytes, wherever the bytes are cut when they arrive.

    `is_done` is set after `[DONE]`. `is_framed=False` is for streams of bare JSON lines. Some servers send one JSON
    document instead of events, whatever content type they name: `join_document` returns it.
    """

    __slots__ = ("_decoder", "_has_begun", "_held", "_is_document", "_is_framed", "_parts", "_unfinished", "is_done")

    def __init__(self, decoder: MessageDecoder[T], *, is_framed: bool = True) -> None:
        self._is_framed = is_framed
        self._has_begun = False
        self._held = 0
        self._is_document = False
        self._decoder = decoder
        self._parts: list[bytes] = []
        self._unfinished = b""
        self.is_done = False

    def feed(self, data: bytes) -> Iterable[T]:
        """The messages that `data` completes. An error is raised after the messages before it."""
        if not self._has_begun:
            data = data.lstrip(_IGNORED_START)
            self._has_begun = bool(data)
            self._is_document = self._is_framed and data.startswith(b"{")
        cut = 0 if self._is_document else data.rfind(b"\n") + 1
        if not cut:
            self._parts.append(data)
            self._held += len(data)
            if self._held > _MOST_HELD:
                raise MalformedStream(f"{self._held} bytes without the end of a message")
            return []
        self._held = len(data) - cut
        if self._parts:
            self._parts.append(data[:cut])
            block = b"".join(self._parts)
            self._parts.clear()
        else:
            block = data[:cut]
        if cut < len(data):
            self._parts.append(data[cut:])
        return self._decode(self._extract_payloads(block))

    def finish(self) -> list[T]:
        """The messages that are left in a stream without its last line break."""
        if self._is_document:
            return []
        rest = b"".join(self._parts)
        self._parts.clear()
        found = list(self._decode(self._extract_payloads(rest))) if rest.strip() else []
        if self._unfinished:
            raise MalformedStream(_quote(self._unfinished))
        return found

    def join_document(self) -> bytes | None:
        """The response as one JSON document, or None where it is a stream."""
        return b"".join(self._parts).decode("utf-8", "replace").encode() if self._is_document else None

    def decode_document(self, body: bytes) -> T:
        """A document of this stream's shape."""
        return decode_document(self._decoder.one, body)

    def _extract_payloads(self, block: bytes) -> list[bytes]:
        lines = block.splitlines()
        if not self._is_framed:
            return [line for line in lines if line.strip()]
        # llama-server of 2024 and its descendants report a failure in a field of its own.
        if block.startswith(b"error:") or b"\nerror:" in block:
            lines = [b'data:{"error":%b}' % x[6:] if x.startswith(b"error:") else x for x in lines]
        return [line[5:] for line in lines if line.startswith(b"data:")]

    def _decode(self, payloads: list[bytes]) -> Iterable[T]:
        if self._is_framed:
            for place in range(len(payloads) - 1, max(len(payloads) - 3, -1), -1):
                if payloads[place].strip() == b"[DONE]":
                    self.is_done = True
                    del payloads[place:]
                    break
        if not payloads:
            return []
        if not self._unfinished:
            try:
                return self._decoder.many.decode(b"[%b]" % b",".join(payloads))
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        return self._decode_one_by_one(payloads)

    def _decode_one_by_one(self, payloads: Iterable[bytes]) -> Iterable[T]:
        """Decode slowly: for events over several `data` lines, and to say which message is bad."""
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                self.is_done = True
                return
            if not payload.strip():
                continue
            text = self._unfinished + b"\n" + payload if self._unfinished else payload
            # Each attempt reads all of the text, so only a text that may end an object is tried.
            message = self._decode_message(text) if not self._unfinished or payload.rstrip().endswith(b"}") else None
            if message is not None:
                self._unfinished = b""
                yield message
            elif self._unfinished and (payload.startswith(b" {") or len(text) > _LONGEST_EVENT):
                raise MalformedStream(_quote(self._unfinished))
            else:
                self._unfinished = text

    def _decode_message(self, text: bytes) -> T | None:
        """The message in `text`, or None where the text is no complete JSON document."""
        try:
            return self._decoder.one.decode(text)
        except msgspec.ValidationError as error:
            if self._decoder.is_unknown_type(text):
                return self._decoder.shape()
            raise MalformedStream(f"{error}: {_quote(text)}") from None
        except msgspec.DecodeError:
            pass
        except UnicodeDecodeError:
            text = text.decode("utf-8", "replace").encode()
        # Servers that cut strings in two send half a surrogate pair, which msgspec refuses.
        try:
            value = json.loads(text)
        except ValueError:
            return None
        clean = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        try:
            return self._decoder.one.decode(clean)
        except msgspec.DecodeError as error:
            raise MalformedStream(f"{error}: {_quote(text)}") from None


def decode_document(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """A response that is one JSON document."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise MalformedStream(f"{error}: {_quote(body)}") from None


class _Typed(msgspec.Struct):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed)


class MessageDecoder(Generic[T]):
    """The decoders for the messages of one protocol. They are built once, because building them is slow.

    `known` are the types of messages that are read. A provider may add others, of any shape.
    """

    __slots__ = ("known", "many", "one", "shape")

    def __init__(self, shape: type[T], known: frozenset[str] = frozenset()) -> None:
        self.shape = shape
        self.known = known
        self.one: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)
        self.many: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[shape])

    def is_unknown_type(self, text: bytes) -> bool:
        """Whether a message is of a type that is not read."""
        try:
            kind = _typed.decode(text).type
        except msgspec.ValidationError:
            return False
        return bool(self.known and kind and kind not in self.known)


def _quote(text: bytes) -> str:
    return repr(text[:200].decode("utf-8", "replace"))
