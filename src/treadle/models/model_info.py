"""Prices and sizes of known models, from prices.json.

`TREADLE_PRICES` names a file of the same form as prices.json, whose rows come first. A model without a row costs
nothing here.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct, field

from treadle.errors import BadInput


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
