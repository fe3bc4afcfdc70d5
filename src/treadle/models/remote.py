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
from treadle.models.http import Endpoint, Exchange, Transport
from treadle.models.reports import Reported
from treadle.models.request_parts import estimate
from treadle.models.sse import Malformed

_ASKED_AT_MOST = 3

_EMBED_SECONDS = 60.0

Probe = Callable[[Transport, str], Awaitable[int | None]]
"""Asks a server how large the window of the model of that name really is."""


class _Embedded(Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(Struct):
    data: list[_Embedded]


class Reader(Protocol):
    """Makes deltas, and at last one reply, out of a response's bytes."""

    @property
    def text(self) -> str:
        """What the model has said so far."""
        ...

    @property
    def done(self) -> bool:
        """Whether the reply is complete, though the connection may still be open."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the model has said why it stopped, so that at most its count of tokens is missing."""
        ...

    def feed(self, data: bytes) -> Iterable[ModelEvent]: ...

    def finish(self) -> Iterable[ModelEvent]:
        """What is left when the last byte has come; the reply is complete after it, or it raises."""
        ...

    def reply(self) -> Reply: ...


class Wire(Protocol):
    """A protocol: how a request is written and a response read, for one model."""

    @property
    def path(self) -> str: ...

    def body(self, request: Request, window: int | None) -> bytes: ...

    def reader(self, request: Request, sent: int) -> Reader: ...


@runtime_checkable
class Closable(Protocol):
    """A model that holds something open between turns."""

    async def close(self) -> None: ...


async def close(model: Model) -> None:
    """Close what a model holds open, if it holds anything."""
    if isinstance(model, Closable):
        await model.close()


async def _more(exchange: Exchange, reader: Reader) -> bytes:
    """The next bytes; what breaks or stalls behind the end of a reply takes nothing from it."""
    try:
        return await exchange.read()
    except ModelError:
        if not reader.ended:
            raise
        return b""


class RemoteModel:
    """A model that answers over HTTP. Keeps its connections between turns; `close` gives them up."""

    def __init__(
        self,
        wire: Wire,
        endpoint: Endpoint,
        model: str,
        *,
        name: str = "",
        window: int | None = None,
        probe: Probe | None = None,
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
        return f"<{self.name} at {self.endpoint.where}>"

    async def status(self, timeout: float) -> int:
        """The status that the server's list of models is answered with. Raises `ModelError` when nothing answers."""
        return await self._transport.status("/models", timeout=timeout)

    async def window_of(self) -> int | None:
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
            await self.window_of()
        wire = self._wire
        body = wire.body(request, self._window)
        if self._checks:
            self._check_fit(request, body)
        exchange = self._transport.exchange()
        reader: Reader | None = None
        try:
            sent = len(body)
            await exchange.start(wire.path, body)
            del body  # a long conversation would be held twice for as long as the model writes
            reader = wire.reader(request, sent)
            while data := await _more(exchange, reader):
                for event in reader.feed(data):
                    yield event
                if reader.done:
                    await exchange.drain()
                    break
            for event in reader.finish():
                yield event
            yield reader.reply()
        except (ModelError, Malformed, Reported, msgspec.DecodeError, UnicodeDecodeError) as error:
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
        answer = await self._transport.ask(path, body=body, root=False, timeout=_EMBED_SECONDS)
        try:
            found = msgspec.convert(answer, _Embeddings).data
            by_index = {each.index: each.embedding for each in found}
            return [by_index[number] for number in range(len(texts))]
        except (msgspec.ValidationError, KeyError):
            raise ModelError(f"{self.name} at {self.endpoint.where} gives no embeddings", kind="bad_request") from None

    def _check_fit(self, request: Request, body: bytes) -> None:
        """Refuse what cannot fit: some servers cut it silently, and the model forgets who it is."""
        window = self._window
        if window is None or estimate(len(body)) <= window:
            return
        pictures = sum(
            len(part.data)
            for message in request.messages
            if not isinstance(message, ModelMessage)
            for part in message.parts
            if not isinstance(part, TextPart)
        )
        tokens = estimate(len(body) - pictures)
        if tokens > window:
            raise ModelError(
                f"the request has about {tokens} tokens and the window of {self.name} has {window} — compact the "
                "session, offer fewer tools, or give the model a larger window",
                kind="too_long",
            )

    def _failure(self, error: Exception) -> ModelError:
        source = self._transport.source
        match error:
            case ModelError():
                return error
            case Reported():
                from treadle.models.failures import from_stream

                return from_stream(error.error, source)
            case _:
                message = f"{source.provider} ({source.where}) does not speak its protocol: {error}"
                return ModelError(source.redact(message), kind="network", retryable=True)

    async def close(self) -> None:
        """Close the connections that no other model uses; they open again when needed."""
        await self._transport.close()
