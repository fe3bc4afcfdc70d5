"""Cuts a byte stream into messages: server-sent events, or one JSON document a line. No network here.

All that has arrived is decoded in one go: per event that costs a tenth of decoding them one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
_LONGEST = 1 << 24
_MOST = 1 << 26
"""How many bytes may come without the end of a message: some hold pictures, but none is endless."""
_BEFORE = b"\xef\xbb\xbf \t\r\n"
"""What may stand before the first event and means nothing: a byte order mark, and blanks."""


class MalformedStream(ValueError):
    """The stream holds something that is not a message of this protocol."""


class MessageStream(Generic[T]):
    """The messages in a stream of bytes, whatever the borders at which the bytes arrive.

    `done` is set when `[DONE]` came by. `framed=False` is for streams of bare JSON lines. Where events should be and
    one JSON document comes instead, whatever the response calls itself, `document` gives it.
    """

    __slots__ = ("_begun", "_framed", "_held", "_kind", "_many", "_one", "_parts", "_unfinished", "_whole", "is_done")

    def __init__(self, kind: MessageDecoder[T], *, is_framed: bool = True) -> None:
        self._framed = is_framed
        self._begun = False
        self._held = 0
        self._whole = False
        self._kind = kind
        self._one = kind.one
        self._many = kind.many
        self._parts: list[bytes] = []
        self._unfinished = b""
        self.is_done = False

    def feed(self, data: bytes) -> Iterable[T]:
        """The messages that are complete with `data`; what is wrong is raised behind those that came before it."""
        if not self._begun:
            data = data.lstrip(_BEFORE)
            self._begun = bool(data)
            self._whole = self._framed and data.startswith(b"{")
        cut = 0 if self._whole else data.rfind(b"\n") + 1
        if not cut:
            self._parts.append(data)
            self._held += len(data)
            if self._held > _MOST:
                raise MalformedStream(f"{self._held} bytes and no end of it")
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
        return self._decode(self._payloads(block))

    def finish(self) -> list[T]:
        """What a stream that ended without its last line break still holds."""
        if self._whole:
            return []
        rest = b"".join(self._parts)
        self._parts.clear()
        found = list(self._decode(self._payloads(rest))) if rest.strip() else []
        if self._unfinished:
            raise MalformedStream(_quote(self._unfinished))
        return found

    def join_document(self) -> bytes | None:
        """The whole of a response that is one JSON document, or None where it is a stream."""
        return b"".join(self._parts).decode("utf-8", "replace").encode() if self._whole else None

    def decode_document(self, body: bytes) -> T:
        """A document of this stream's shape."""
        return decode_document(self._one, body)

    def _payloads(self, block: bytes) -> list[bytes]:
        lines = block.splitlines()
        if not self._framed:
            return [line for line in lines if line.strip()]
        # llama-server of 2024 and its descendants report a failure as a field of its own.
        if block.startswith(b"error:") or b"\nerror:" in block:
            lines = [b'data:{"error":%b}' % x[6:] if x.startswith(b"error:") else x for x in lines]
        return [line[5:] for line in lines if line.startswith(b"data:")]

    def _decode(self, payloads: list[bytes]) -> Iterable[T]:
        if self._framed:
            for place in range(len(payloads) - 1, max(len(payloads) - 3, -1), -1):
                if payloads[place].strip() == b"[DONE]":
                    self.is_done = True
                    del payloads[place:]
                    break
        if not payloads:
            return []
        if not self._unfinished:
            try:
                return self._many.decode(b"[%b]" % b",".join(payloads))
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        return self._one_by_one(payloads)

    def _one_by_one(self, payloads: Iterable[bytes]) -> Iterable[T]:
        """The slow way: for events over several `data` lines, and to say which message is bad."""
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                self.is_done = True
                return
            if not payload.strip():
                continue
            text = self._unfinished + b"\n" + payload if self._unfinished else payload
            # Each try reads all that has come, so only what may be the end of an object is tried.
            message = self._message(text) if not self._unfinished or payload.rstrip().endswith(b"}") else None
            if message is not None:
                self._unfinished = b""
                yield message
            elif self._unfinished and (payload.startswith(b" {") or len(text) > _LONGEST):
                raise MalformedStream(_quote(self._unfinished))
            else:
                self._unfinished = text

    def _message(self, text: bytes) -> T | None:
        """The message in `text`, or None where it is no whole JSON document."""
        try:
            return self._one.decode(text)
        except msgspec.ValidationError as error:
            if self._kind.is_unknown_type(text):
                return self._kind.shape()
            raise MalformedStream(f"{error}: {_quote(text)}") from None
        except msgspec.DecodeError:
            pass
        except UnicodeDecodeError:
            text = text.decode("utf-8", "replace").encode()
        # Half a surrogate pair is not JSON to msgspec, but servers that cut strings in two send it.
        try:
            value = json.loads(text)
        except ValueError:
            return None
        clean = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        try:
            return self._one.decode(clean)
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
    """The shape of one message of a protocol; made once, since building decoders is slow.

    `known` are the types of messages that are read; a provider may add others, of any shape.
    """

    __slots__ = ("known", "many", "one", "shape")

    def __init__(self, shape: type[T], known: frozenset[str] = frozenset()) -> None:
        self.shape = shape
        self.known = known
        self.one: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)
        self.many: msgspec.json.Decoder[list[T]] = msgspec.json.Decoder(list[shape])

    def is_unknown_type(self, text: bytes) -> bool:
        """Whether a message is of a type that came later than this program."""
        try:
            kind = _typed.decode(text).type
        except msgspec.ValidationError:
            return False
        return bool(self.known and kind and kind not in self.known)


def _quote(text: bytes) -> str:
    return repr(text[:200].decode("utf-8", "replace"))
