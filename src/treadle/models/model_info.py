"""What is known about models: prices and sizes from prices.json, and the windows that servers report.

`TREADLE_PRICES` names a file of the same form as prices.json, whose rows come first. A model without a row costs
nothing here. A server that does not report a window is no error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct, field

from treadle.errors import BadInput

if TYPE_CHECKING:
    from treadle.models.http import Transport

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


class ModelInfo(Struct, frozen=True, omit_defaults=True):
    """Dollars per million tokens, and the sizes of the model that `match` names, such as `openai:gpt-5`."""

    match: str
    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None
    window: int | None = None
    max_output: int | None = None
    accepts_sampling: bool = field(default=True, name="samples")


UNKNOWN_MODEL = ModelInfo("")


class _Table(Struct):
    models: tuple[ModelInfo, ...]


def find_model_info(name: str) -> ModelInfo | None:
    """The most exact row for a model's full name."""
    return _find_row(name, os.environ.get("TREADLE_PRICES", ""))


@lru_cache(256)
def _find_row(name: str, own_table: str) -> ModelInfo | None:
    """A row is for its model and for dated versions of it. A `*` at the end of `match` stands for any other end."""
    name = re.sub(r"^openai-\w+:", "openai:", name.lower())
    for rows in (load_table(own_table) if own_table else (), load_table()):
        found: list[ModelInfo] = []
        for row in rows:
            start = row.match.lower().removesuffix("*")
            is_version = re.fullmatch(r"(-latest|[-@]\d{4}.*)?", name[len(start) :]) is not None
            if name.startswith(start) and (is_version or row.match.endswith("*")):
                found.append(row)
        if found:
            return max(found, key=lambda row: len(row.match))
    return None


@lru_cache(4)
def load_table(path: str = "") -> tuple[ModelInfo, ...]:
    """The rows of a price table; without a path those of the table that comes with treadle."""
    file = Path(path) if path else Path(__file__).with_name("prices.json")
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Table).models
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"the price table {file} cannot be read: {error}") from error


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


def _find_listed_window(listed: Any, model: str, names: Sequence[str] = _WINDOW_FIELDS) -> int | None:
    rows = _list_rows(listed)
    for row in rows:
        if row.get("id") == model or len(rows) == 1:
            sizes = [fields.get(name) for fields in (row, _as_mapping(row.get("meta"))) for name in names]
            return next((size for size in sizes if _is_size(size)), None)
    return None


def list_model_names(listed: Any) -> list[str]:
    """The names in a list of models, whichever server sent it."""
    names = [row.get("id") or row.get("name") for row in _list_rows(listed)]
    return [str(name) for name in names if name]


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
