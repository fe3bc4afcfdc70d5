"""Asks a server how large a model's window really is. A server that cannot tell is no error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from treadle.models.http import Transport

LARGEST_UNASKED = 32_768
"""The window asked of Ollama where nothing says how much: it takes memory, and the default is far too small."""

_NAMES = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")


async def from_props(transport: Transport, model: str) -> int | None:
    """llama-server: the window of one slot, which is what a request gets."""
    match await transport.ask("/props"):
        case {"default_generation_settings": {"n_ctx": int(window)}} if window > 0:
            return window
        case {"n_ctx": int(window)} if window > 0:
            return window
        case _:
            return await from_models(transport, model)


async def from_show(transport: Transport, model: str) -> int | None:
    """Ollama: what the model's file sets, else what the model can do, up to a bound."""
    shown = await transport.ask("/api/show", body=msgspec.json.encode({"model": model}))
    if not isinstance(shown, Mapping):
        return None
    fields = cast("Mapping[str, Any]", shown)
    if found := re.search(r"^\s*num_ctx\s+(\d+)", str(fields.get("parameters") or ""), re.MULTILINE):
        return int(found[1])
    info: Mapping[str, Any] = fields.get("model_info") or {}
    lengths = [value for key, value in info.items() if key.endswith(".context_length") and isinstance(value, int)]
    return min(lengths[0], LARGEST_UNASKED) if lengths else None


async def from_studio(transport: Transport, model: str) -> int | None:
    """LM Studio: the window the model is loaded with."""
    listed = await transport.ask("/api/v0/models")
    return _listed(listed, model) or await from_models(transport, model)


async def from_models(transport: Transport, model: str) -> int | None:
    """Any OpenAI-compatible server that says so in its list of models."""
    return _listed(await transport.ask("/models", root=False), model)


def _listed(listed: Any, model: str) -> int | None:
    rows: list[Any]
    match listed:
        case {"data": [*rows]} | [*rows]:
            pass
        case _:
            return None
    for row in rows:
        if isinstance(row, Mapping):
            fields = cast("Mapping[str, Any]", row)
            meta: Mapping[str, Any] = fields.get("meta") or {}
            if fields.get("id") == model or len(rows) == 1:
                sizes = [*(fields.get(name) for name in _NAMES), meta.get("n_ctx"), meta.get("n_ctx_train")]
                return next((size for size in sizes if isinstance(size, int) and size > 0), None)
    return None


def listed_models(listed: Any) -> list[str]:
    """The names in a list of models, whichever server gave it."""
    rows: list[Any]
    match listed:
        case {"data": [*rows]} | {"models": [*rows]} | [*rows]:
            pass
        case _:
            return []
    names = [cast("Mapping[str, Any]", row) for row in rows if isinstance(row, Mapping)]
    return [str(row.get("id") or row.get("name")) for row in names if row.get("id") or row.get("name")]
