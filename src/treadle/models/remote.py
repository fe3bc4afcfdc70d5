"""A model behind HTTP: one wire format, one endpoint, one model name. Knows no provider by name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from treadle.errors import ModelError
from treadle.messages import ModelMessage, Request, TextPart
from treadle.models.base import ModelEvent
from treadle.models.failures import ReportedFailure, classify_stream_error
from treadle.models.http import Endpoint, HttpExchange, Transport
from treadle.models.model_info import list_model_names
from treadle.models.reply_builder import ReplyReader
from treadle.models.request_parts import WireFormat, estimate_tokens
from treadle.models.sse import MalformedStream

_MOST_WINDOW_PROBES = 3
_EMBED_SECONDS = 60.0

WindowProbe = Callable[[Transport, str], Awaitable[int | None]]
"""Asks a server how large the window of the model of that name really is."""


class _Embedding(Struct):
    embedding: list[float]
    index: int = 0


class _Embeddings(Struct):
    data: list[_Embedding]


class RemoteModel:
    """A model that answers over HTTP. It keeps its connections between turns; `close` gives them up."""

    def __init__(
        self, wire: WireFormat, endpoint: Endpoint, *, name: str = "", probe: WindowProbe | None = None
    ) -> None:
        self.endpoint = endpoint
        self._wire = wire
        self._name = name or f"{endpoint.provider}:{wire.model}"
        self._transport = Transport(endpoint)
        self._window = wire.info.window
        self._probe = probe
        self._probe_count = 0
        self._checks_size = probe is not None

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int | None:
        return self._window

    def __repr__(self) -> str:
        return f"<{self.name} at {self.endpoint.address}>"

    async def fetch_status(self, timeout: float) -> int:
        """The status of the server's list of models. Raises `ModelError` when nothing answers."""
        return await self._transport.fetch_status("/models", timeout=timeout)

    async def fetch_model_names(
        self, path: str = "/models", *, from_root: bool = False, timeout: float = 2.0
    ) -> list[str] | None:
        """The models that the server lists, or None when it does not answer. Closes its connections afterwards."""
        try:
            listed = await self._transport.fetch_json(path, from_root=from_root, timeout=timeout)
        finally:
            await self.close()
        return None if listed is None else list_model_names(listed)

    async def fetch_window(self) -> int | None:
        """The window, from the server where it reports one. A server that does not is asked twice more."""
        if self._probe is not None:
            found = await self._probe(self._transport, self._wire.model)
            self._probe_count += 1
            if found is not None or self._probe_count >= _MOST_WINDOW_PROBES:
                self._probe = None
            self._window = found or self._window
        return self._window

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """The reply to `request`, as it comes."""
        if self._probe is not None:
            await self.fetch_window()
        wire = self._wire
        body = wire.build_body(request, self._window)
        if self._checks_size:
            self._check_size(request, len(body))
        exchange = self._transport.open_exchange()
        reader: ReplyReader[Any] | None = None
        try:
            sent = len(body)
            await exchange.start(wire.path, body)
            del body  # a long conversation would be held twice for as long as the model writes
            reader = wire.open_reader(request, sent)
            while data := await _read_more(exchange, reader):
                for event in reader.feed(data):
                    yield event
                if reader.is_done:
                    await exchange.drain()
                    break
            for event in reader.finish():
                yield event
            yield reader.build_reply()
        except (ModelError, MalformedStream, ReportedFailure, msgspec.DecodeError, UnicodeDecodeError) as error:
            failure = self._build_error(error)
            failure.partial = reader.text if reader is not None else ""
            raise failure from None
        finally:
            exchange.close()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each text. Raises `ModelError` where the server has no embeddings."""
        has_path = bool(urlsplit(self.endpoint.base_url).path)
        body = msgspec.json.encode({"model": self._wire.model, "input": list(texts)})
        path = "/embeddings" if has_path else "/v1/embeddings"
        answer = await self._transport.fetch_json(path, body=body, from_root=False, timeout=_EMBED_SECONDS)
        try:
            found = {each.index: each.embedding for each in msgspec.convert(answer, _Embeddings).data}
            return [found[number] for number in range(len(texts))]
        except (msgspec.ValidationError, KeyError):
            raise ModelError(
                f"{self.name} at {self.endpoint.address} gives no embeddings", kind="bad_request"
            ) from None

    async def close(self) -> None:
        """Close the connections that no other model uses. They open again when needed."""
        await self._transport.close()

    def _check_size(self, request: Request, size: int) -> None:
        """Refuse a request that cannot fit. Some servers cut it silently, and the model loses its instructions."""
        window = self._window
        if window is None or estimate_tokens(size) <= window:
            return
        attachments = sum(
            len(part.data)
            for message in request.messages
            if not isinstance(message, ModelMessage)
            for part in message.parts
            if not isinstance(part, TextPart)
        )
        tokens = estimate_tokens(size - attachments)
        if tokens > window:
            raise ModelError(
                f"the request has about {tokens} tokens and the window of {self.name} has {window} — compact the "
                "session, offer fewer tools, or give the model a larger window",
                kind="too_long",
            )

    def _build_error(self, error: Exception) -> ModelError:
        source = self._transport.error_source
        match error:
            case ModelError():
                return error
            case ReportedFailure():
                return classify_stream_error(error.error, source)
            case _:
                message = f"{source.provider} ({source.address}) does not speak its protocol: {error}"
                return ModelError(source.redact(message), kind="network", retryable=True)


async def _read_more(exchange: HttpExchange, reader: ReplyReader[Any]) -> bytes:
    """The next bytes. A connection that breaks or stalls after the end of a reply takes nothing from it."""
    try:
        return await exchange.read()
    except ModelError:
        if not reader.has_ended:
            raise
        return b""
