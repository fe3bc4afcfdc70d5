"""Asks a server how large a model's window really is. A server that cannot tell is no error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.models.http import Transport

LARGEST_OLLAMA_WINDOW = 32_768
"""The window asked of Ollama where nothing says how much: it takes memory, and the default is far too small."""

_NAMES = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length", "n_ctx")


async def probe_llama_server(transport: Transport, model: str) -> int | None:
    """llama-server: the window of one slot, which is what a request gets."""
    return await _in_props(transport) or await probe_model_list(transport, model)


async def probe_ollama(transport: Transport, model: str) -> int | None:
    """Ollama: what the model's file sets, else what the model can do, up to a bound."""
    shown = await transport.fetch_json("/api/show", body=msgspec.json.encode({"model": model}))
    if not isinstance(shown, Mapping):
        return None
    fields = cast("Mapping[str, Any]", shown)
    if found := re.search(r"^\s*num_ctx\s+(\d+)", str(fields.get("parameters") or ""), re.MULTILINE):
        return int(found[1])
    info = _mapping(fields.get("model_info"))
    lengths = [value for key, value in info.items() if key.endswith(".context_length") and _is_size(value)]
    return min(lengths[0], LARGEST_OLLAMA_WINDOW) if lengths else None


async def probe_lm_studio(transport: Transport, model: str) -> int | None:
    """LM Studio: the window the model is loaded with."""
    listed = await transport.fetch_json("/api/v0/models")
    return _listed(listed, model) or await probe_model_list(transport, model)


async def probe_model_list(transport: Transport, model: str) -> int | None:
    """Any OpenAI-compatible server that says so in its list of models."""
    listed = await transport.fetch_json("/models", from_root=False)
    if window := _listed(listed, model):
        return window
    # A llama-server lists what the model was made for, which may be far more than it was started with.
    trained = _listed(listed, model, ("n_ctx_train",))
    return trained and (await _in_props(transport) or trained)


async def _in_props(transport: Transport) -> int | None:
    match await transport.fetch_json("/props"):
        case {"default_generation_settings": {"n_ctx": int(window)}} if window > 0:
            return window
        case {"n_ctx": int(window)} if window > 0:
            return window
        case _:
            return None


def _listed(listed: Any, model: str, names: Sequence[str] = _NAMES) -> int | None:
    rows: list[Any]
    match listed:
        case {"data": [*rows]} | [*rows]:
            pass
        case _:
            return None
    for row in rows:
        if isinstance(row, Mapping):
            fields = cast("Mapping[str, Any]", row)
            meta = _mapping(fields.get("meta"))
            if fields.get("id") == model or len(rows) == 1:
                sizes = [each.get(name) for each in (fields, meta) for name in names]
                return next((size for size in sizes if _is_size(size)), None)
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0


def list_model_names(listed: Any) -> list[str]:
    """The names in a list of models, whichever server gave it."""
    rows: list[Any]
    match listed:
        case {"data": [*rows]} | {"models": [*rows]} | [*rows]:
            pass
        case _:
            return []
    names = [cast("Mapping[str, Any]", row) for row in rows if isinstance(row, Mapping)]
    return [str(row.get("id") or row.get("name")) for row in names if row.get("id") or row.get("name")]
