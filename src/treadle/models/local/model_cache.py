"""Keeps small facts about a model file, such as a calibration, in JSON files that may be deleted at any time.

The package brings some facts about the small model, so that its first use need not compute them.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
EDGE_BYTES = 1 << 20
SHIPPED = Path(__file__).with_name("shipped_facts.json.gz")
"""Facts by the fingerprint of their model file and by their key. `scripts/fit_ready_made_tools.py` writes them."""

ShippedFacts = dict[str, dict[str, msgspec.Raw]]


class ModelCache:
    """A cache for one model file, found by its content. Failures to read or write are ignored."""

    def __init__(self, folder: Path, weights: Path, shipped: Path = SHIPPED) -> None:
        self._fingerprint = compute_fingerprint(weights)
        self._folder = folder / self._fingerprint
        self._shipped = shipped

    def read(self, key: str, kind: type[T]) -> T | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=kind)
        with contextlib.suppress(OSError, EOFError, KeyError, msgspec.MsgspecError):
            return msgspec.json.decode(read_shipped_facts(self._shipped)[self._fingerprint][key], type=kind)
        return None

    def write(self, key: str, value: object) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(value))
            Path(name).replace(self._folder / f"{key}.json")


def read_shipped_facts(file: Path = SHIPPED) -> ShippedFacts:
    """Read the facts that the package brings. Each is decoded when it is used."""
    return msgspec.json.decode(gzip.decompress(file.read_bytes()), type=ShippedFacts)


def compute_fingerprint(weights: Path) -> str:
    """A short hash of a file's size, beginning and end. Hashing all of a large model would take seconds."""
    with weights.open("rb") as file:
        digest = hashlib.sha256(file.read(EDGE_BYTES))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read())
    digest.update(str(size).encode())
    return digest.hexdigest()[:16]
