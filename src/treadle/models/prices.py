"""What a reply costs, and how large known models' windows are: a small table in prices.json.

`TREADLE_PRICES` names a file of the same form whose rows come first. Unknown models cost nothing here.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.errors import BadInput
from treadle.messages import Usage


class Price(Struct, frozen=True, omit_defaults=True):
    """Dollars a million tokens, and the sizes of the model that `match` names, such as `openai:gpt-5`.

    `samples` is False for a model that refuses a temperature.
    """

    match: str
    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    cache_write: float | None = None
    window: int | None = None
    max_output: int | None = None
    samples: bool = True


class _Table(Struct):
    models: tuple[Price, ...]


def find_price(name: str) -> Price | None:
    """The row for a model's full name: the most exact one."""
    return _find(name, os.environ.get("TREADLE_PRICES", ""))


def add_cost(name: str, usage: Usage, cache_write: int = 0) -> Usage:
    """`usage` with what it costs."""
    price = find_price(name)
    if price is None or not (price.input or price.output):
        return usage
    fresh = max(0, usage.input_tokens - usage.cached_tokens - cache_write)
    dollars = (
        fresh * price.input
        + usage.cached_tokens * (price.input if price.cached is None else price.cached)
        + cache_write * (price.input if price.cache_write is None else price.cache_write)
        + usage.output_tokens * price.output
    )
    return replace(usage, cost=dollars / 1e6)


@lru_cache(256)
def _find(name: str, own: str) -> Price | None:
    name = re.sub(r"^openai-\w+:", "openai:", name.lower())
    for rows in (_rows(own) if own else (), _rows("")):
        found = [row for row in rows if _fits(name, row.match.lower())]
        if found:
            return max(found, key=lambda row: len(row.match))
    return None


def _fits(name: str, match: str) -> bool:
    """A row is good for its model, for dated versions of it, and with a `*` for all names that begin so."""
    if match.endswith("*"):
        return name.startswith(match[:-1])
    return name.startswith(match) and re.fullmatch(r"(-latest|[-@]\d{4}.*)?", name[len(match) :]) is not None


@lru_cache(4)
def _rows(path: str) -> tuple[Price, ...]:
    file = Path(path) if path else Path(__file__).with_name("prices.json")
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Table).models
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"the price table {file} cannot be read: {error}") from error
