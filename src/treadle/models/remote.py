"""A model behind HTTP: one wire format, one endpoint, one model name, and the window that its server reports.

Knows no provider by name. A server that does not report a window is no error.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from treadle.errors import ModelError
from treadle.messages import Request
from treadle.models.base import EmbeddingInput, Embeddings, ModelEvent
from treadle.models.failures import ReportedFailure, classify_stream_error
from treadle.models.http import Endpoint, HttpExchange, Transport
from treadle.models.reply_reader import MalformedStream, ReplyReader
from treadle.models.wire_format import ReportedUsage, WireFormat, count_attachment_bytes, estimate_tokens

_MOST_WINDOW_PROBES = 3
_COUNT_SECONDS = 10.0

WindowProbe = Callable[[Transport, str], Awaitable[int | None]]
"""Asks a server how large the window of the model of that name really is."""

ToolProbe = Callable[[Transport, str], Awaitable[bool | None]]
"""Asks a server whether the model of that name can call tools. None: it does not say."""

_TOOL_WORDS = frozenset(("tools", "tool_use", "tool_calling", "function_calling", "supports_tools"))
_MOST_TOOL_PROBES = 20

LARGEST_OLLAMA_WINDOW = 32_768
"""The window to request from Ollama where nothing sets one. It takes memory, and Ollama's default is too small."""

_WINDOW_FIELDS = (
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
    "n_ctx",
)


class ListedModel(NamedTuple):
    """A model that a server lists. `can_call_tools` is None where the server does not say."""

    name: str
    can_call_tools: bool | None


class _Embedding(Struct):
    embedding: list[float]
    index: int = 0


class _Vectors(Struct):
    data: list[_Embedding]
    usage: ReportedUsage | None = None


_vectors = msgspec.json.Decoder(_Vectors)


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
        listed = await self.fetch_listed_models(path, from_root=from_root, timeout=timeout)
        return None if listed is None else [model.name for model in listed]

    async def fetch_listed_models(
        self, path: str = "/models", *, probe: ToolProbe | None = None, from_root: bool = False, timeout: float = 2.0
    ) -> list[ListedModel] | None:
        """The models that the server lists, and which of them can call tools. Those that can come first.

        `probe` asks about the models of which the list does not say it. Returns None when the server does not answer.
        """
        try:
            listed = await self._transport.fetch_json(path, from_root=from_root, timeout=timeout)
            models = [
                ListedModel(str(name), read_tool_support(row))
                for row in _list_rows(listed)
                if (name := row.get("id") or row.get("name"))
            ]
            for place, (name, can_call_tools) in enumerate(models[:_MOST_TOOL_PROBES]):
                if probe is not None and can_call_tools is None:
                    models[place] = ListedModel(name, await probe(self._transport, name))
        finally:
            await self.close()
        models.sort(key=lambda model: (True, None, False).index(model.can_call_tools))
        return None if listed is None else models

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
        if self._probe is not None:
            await self.fetch_window()
        wire = self._wire
        body = wire.build_body(request, self._window)
        if self._checks_size:
            self._check_size(request, len(body))
        exchange = HttpExchange(self._transport)
        reader: ReplyReader[Any] | None = None
        try:
            sent = len(body)
            await exchange.start(wire.path, body)
            del body  # a long conversation would be held twice for as long as the model writes
            reader = wire.open_reader(request, sent)
            while True:
                try:
                    data = await exchange.read()
                except ModelError:
                    # A connection that breaks or stalls after the end of a reply takes nothing from it.
                    if not reader.has_ended:
                        raise
                    break
                if not data:
                    break
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

    async def embed(self, inputs: Sequence[EmbeddingInput], dimensions: int | None = None) -> Embeddings:
        """One vector for each input. Raises `ModelError` where the server has no embeddings."""
        has_path = bool(urlsplit(self.endpoint.base_url).path)
        fields: dict[str, Any] = {"model": self._wire.model, "input": list(inputs)}
        if dimensions is not None:
            fields["dimensions"] = dimensions
        exchange = HttpExchange(self._transport)
        pieces: list[bytes] = []
        no_vectors = f"{self.name} at {self.endpoint.address} gives no embeddings"
        try:
            await exchange.start("/embeddings" if has_path else "/v1/embeddings", msgspec.json.encode(fields))
            while piece := await exchange.read():
                pieces.append(piece)
            answer = _vectors.decode(b"".join(pieces))
            found = {each.index: each.embedding for each in answer.data}
            vectors = [found[number] for number in range(len(inputs))]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
            raise ModelError(no_vectors, kind="bad_request") from None
        except ModelError as error:
            if error.kind == "bad_request":
                param = error.param or ("dimensions" if dimensions is not None and "dimension" in str(error) else "")
                raise ModelError(f"{no_vectors}: {error}", kind="bad_request", param=param) from None
            raise
        finally:
            exchange.close()
        counts = answer.usage or ReportedUsage()
        tokens = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
        return Embeddings(vectors, None if tokens is None else int(tokens))

    async def count_tokens(self, request: Request) -> int | None:
        """The provider's count of a request's tokens, or None where it does not count."""
        wire = self._wire
        if not wire.count_path:
            return None
        fields = msgspec.json.decode(wire.build_body(request, None), type=dict[str, msgspec.Raw])
        body = msgspec.json.encode({name: fields[name] for name in fields if name in wire.count_fields})
        answer = await self._transport.fetch_json(wire.count_path, body=body, from_root=False, timeout=_COUNT_SECONDS)
        count = _as_mapping(answer).get("input_tokens")
        return count if _is_size(count) else None

    async def close(self) -> None:
        """Close the connections that no other model uses. They open again when needed."""
        await self._transport.close()

    def _check_size(self, request: Request, size: int) -> None:
        """Refuse a request that cannot fit. Some servers cut it silently, and the model loses its instructions."""
        window = self._window
        if window is None or estimate_tokens(size) <= window:
            return
        tokens = estimate_tokens(size - count_attachment_bytes(request))
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


async def probe_llama_server(transport: Transport, model: str) -> int | None:
    """llama-server: the window of one slot, which is what a request gets."""
    return await _probe_props(transport) or await probe_model_list(transport, model)


async def probe_ollama(transport: Transport, model: str) -> int | None:
    """Ollama: the window that the model's file sets, else what the model can do, up to a bound."""
    shown = _as_mapping(await transport.fetch_json("/api/show", body=msgspec.json.encode({"model": model})))
    if found := re.search(r"^\s*num_ctx\s+(\d+)", str(shown.get("parameters") or ""), re.MULTILINE):
        return int(found[1])
    info = _as_mapping(shown.get("model_info"))
    lengths = [value for key, value in info.items() if key.endswith(".context_length") and _is_size(value)]
    return min(lengths[0], LARGEST_OLLAMA_WINDOW) if lengths else None


async def probe_lm_studio(transport: Transport, model: str) -> int | None:
    """LM Studio: the window that the model is loaded with."""
    listed = await transport.fetch_json("/api/v0/models")
    return _find_listed_window(listed, model) or await probe_model_list(transport, model)


async def probe_model_list(transport: Transport, model: str) -> int | None:
    """Any OpenAI-compatible server that reports windows in its list of models."""
    listed = await transport.fetch_json("/models", from_root=False)
    if window := _find_listed_window(listed, model):
        return window
    # llama-server lists the window the model was trained for, which may be far more than it was started with.
    trained = _find_listed_window(listed, model, ("n_ctx_train",))
    return trained and (await _probe_props(transport) or trained)


async def _probe_props(transport: Transport) -> int | None:
    match await transport.fetch_json("/props"):
        case {"default_generation_settings": {"n_ctx": int(window)}} if window > 0:
            return window
        case {"n_ctx": int(window)} if window > 0:
            return window
        case _:
            return None


def read_tool_support(document: Any) -> bool | None:
    """Whether what a server says about a model means that it can call tools. None: it does not say."""
    fields = _as_mapping(document)
    if fields.get("type") in ("embedding", "embeddings", "rerank"):
        return False
    named: Any = None
    for named in (fields.get("capabilities"), fields.get("supported_parameters"), fields.get("chat_template_caps")):
        if isinstance(named, list):
            return not _TOOL_WORDS.isdisjoint(str(word) for word in cast("list[Any]", named))
        known = [bool(value) for word, value in _as_mapping(named).items() if word in _TOOL_WORDS]
        if known:
            return any(known)
    return None


async def probe_ollama_tools(transport: Transport, model: str) -> bool | None:
    """Ollama: what it shows about the model. Older servers do not say it."""
    return read_tool_support(await transport.fetch_json("/api/show", body=msgspec.json.encode({"model": model})))


async def probe_llama_server_tools(transport: Transport, model: str) -> bool | None:
    """llama-server: what the chat template of its one model can do."""
    return read_tool_support(await transport.fetch_json("/props"))


async def probe_lm_studio_tools(transport: Transport, model: str) -> bool | None:
    """LM Studio: its own list says more than the one in OpenAI's format."""
    rows = _list_rows(await transport.fetch_json("/api/v0/models"))
    return next((read_tool_support(row) for row in rows if row.get("id") == model), None)


def _find_listed_window(listed: Any, model: str, names: Sequence[str] = _WINDOW_FIELDS) -> int | None:
    rows = _list_rows(listed)
    for row in rows:
        if row.get("id") == model or len(rows) == 1:
            sizes = [fields.get(name) for fields in (row, _as_mapping(row.get("meta"))) for name in names]
            return next((size for size in sizes if _is_size(size)), None)
    return None


def _list_rows(listed: Any) -> list[Mapping[str, Any]]:
    rows: list[Any]
    match listed:
        case {"data": [*rows]} | {"models": [*rows]} | [*rows]:
            return [cast("Mapping[str, Any]", row) for row in rows if isinstance(row, Mapping)]
        case _:
            return []


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0
