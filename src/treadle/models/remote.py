"""A model behind HTTP: one wire format, one endpoint, one model name. Knows no provider by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from treadle.errors import ModelError
from treadle.messages import ModelMessage, Reply, Request, TextPart
from treadle.models.base import Model, ModelEvent
from treadle.models.http import Endpoint, HttpExchange, Transport
from treadle.models.reports import ReportedFailure
from treadle.models.request_parts import estimate_tokens
from treadle.models.sse import MalformedStream

_ASKED_AT_MOST = 3

_EMBED_SECONDS = 60.0

WindowProbe = Callable[[Transport, str], Awaitable[int | None]]
"""Asks a server how large the window of the model of that name really is."""


class _Embedded(Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(Struct):
    data: list[_Embedded]


class ReplyReader(Protocol):
    """Makes deltas, and at last one reply, out of a response's bytes."""

    @property
    def text(self) -> str:
        """What the model has said so far."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the reply is complete, though the connection may still be open."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the model has said why it stopped, so that at most its count of tokens is missing."""
        ...

    def feed(self, data: bytes) -> Iterable[ModelEvent]: ...

    def finish(self) -> Iterable[ModelEvent]:
        """What is left when the last byte has come; the reply is complete after it, or it raises."""
        ...

    def build_reply(self) -> Reply: ...


class WireFormat(Protocol):
    """A protocol: how a request is written and a response read, for one model."""

    @property
    def path(self) -> str: ...

    def build_body(self, request: Request, window: int | None) -> bytes: ...

    def open_reader(self, request: Request, sent: int) -> ReplyReader: ...


@runtime_checkable
class Closable(Protocol):
    """A model that holds something open between turns."""

    async def close(self) -> None: ...


async def close(model: Model) -> None:
    """Close what a model holds open, if it holds anything."""
    if isinstance(model, Closable):
        await model.close()


async def _more(exchange: HttpExchange, reader: ReplyReader) -> bytes:
    """The next bytes; what breaks or stalls behind the end of a reply takes nothing from it."""
    try:
        return await exchange.read()
    except ModelError:
        if not reader.has_ended:
            raise
        return b""


class RemoteModel:
    """A model that answers over HTTP. Keeps its connections between turns; `close` gives them up."""

    def __init__(
        self,
        wire: WireFormat,
        endpoint: Endpoint,
        model: str,
        *,
        name: str = "",
        window: int | None = None,
        probe: WindowProbe | None = None,
    ) -> None:
        self._wire = wire
        self._model = model
        self._name = name or f"{endpoint.provider}:{model}"
        self._transport = Transport(endpoint)
        self._window = window
        self._probe = probe
        self._asked = 0
        self._checks = probe is not None
        self.endpoint = endpoint

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int | None:
        return self._window

    def __repr__(self) -> str:
        return f"<{self.name} at {self.endpoint.address}>"

    async def fetch_status(self, timeout: float) -> int:
        """The status that the server's list of models is answered with. Raises `ModelError` when nothing answers."""
        return await self._transport.fetch_status("/models", timeout=timeout)

    async def fetch_window(self) -> int | None:
        """The window, asked from the server where the server can tell; one that does not say is asked again, twice."""
        if self._probe is not None:
            found = await self._probe(self._transport, self._model)
            self._asked += 1
            if found is not None or self._asked >= _ASKED_AT_MOST:
                self._probe = None
            self._window = found or self._window
        return self._window

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """The reply to `request`, as it comes."""
        if self._probe is not None:
            await self.fetch_window()
        wire = self._wire
        body = wire.build_body(request, self._window)
        if self._checks:
            self._check_fit(request, body)
        exchange = self._transport.open_exchange()
        reader: ReplyReader | None = None
        try:
            sent = len(body)
            await exchange.start(wire.path, body)
            del body  # a long conversation would be held twice for as long as the model writes
            reader = wire.open_reader(request, sent)
            while data := await _more(exchange, reader):
                for event in reader.feed(data):
                    yield event
                if reader.is_done:
                    await exchange.drain()
                    break
            for event in reader.finish():
                yield event
            yield reader.build_reply()
        except (ModelError, MalformedStream, ReportedFailure, msgspec.DecodeError, UnicodeDecodeError) as error:
            failure = self._failure(error)
            failure.partial = reader.text if reader is not None else ""
            raise failure from None
        finally:
            exchange.close()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text, from a server that has embeddings; raises `ModelError` where it has none."""
        versioned = bool(urlsplit(self.endpoint.base_url).path)
        body = msgspec.json.encode({"model": self._model, "input": list(texts)})
        path = "/embeddings" if versioned else "/v1/embeddings"
        answer = await self._transport.fetch_json(path, body=body, from_root=False, timeout=_EMBED_SECONDS)
        try:
            found = msgspec.convert(answer, _Embeddings).data
            by_index = {each.index: each.embedding for each in found}
            return [by_index[number] for number in range(len(texts))]
        except (msgspec.ValidationError, KeyError):
            raise ModelError(
                f"{self.name} at {self.endpoint.address} gives no embeddings", kind="bad_request"
            ) from None

    def _check_fit(self, request: Request, body: bytes) -> None:
        """Refuse what cannot fit: some servers cut it silently, and the model forgets who it is."""
        window = self._window
        if window is None or estimate_tokens(len(body)) <= window:
            return
        pictures = sum(
            len(part.data)
            for message in request.messages
            if not isinstance(message, ModelMessage)
            for part in message.parts
            if not isinstance(part, TextPart)
        )
        tokens = estimate_tokens(len(body) - pictures)
        if tokens > window:
            raise ModelError(
                f"the request has about {tokens} tokens and the window of {self.name} has {window} — compact the "
                "session, offer fewer tools, or give the model a larger window",
                kind="too_long",
            )

    def _failure(self, error: Exception) -> ModelError:
        source = self._transport.error_source
        match error:
            case ModelError():
                return error
            case ReportedFailure():
                from treadle.models.failures import classify_stream_error

                return classify_stream_error(error.error, source)
            case _:
                message = f"{source.provider} ({source.address}) does not speak its protocol: {error}"
                return ModelError(source.redact(message), kind="network", retryable=True)

    async def close(self) -> None:
        """Close the connections that no other model uses; they open again when needed."""
        await self._transport.close()
