"""Keeps small facts about a model file, such as a calibration, in JSON files that may be deleted at any time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
EDGE_BYTES = 1 << 20


class ModelCache:
    """A cache for one model file, found by its content. Failures to read or write are ignored."""

    def __init__(self, folder: Path, weights: Path) -> None:
        self._folder = folder / compute_fingerprint(weights)

    def read(self, key: str, kind: type[T]) -> T | None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self._folder / f"{key}.json").read_bytes(), type=kind)
        return None

    def write(self, key: str, value: object) -> None:
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(value))
            Path(name).replace(self._folder / f"{key}.json")


def compute_fingerprint(weights: Path) -> str:
    """A short hash of a file's size, beginning and end. Hashing all of a large model would take seconds."""
    with weights.open("rb") as file:
        digest = hashlib.sha256(file.read(EDGE_BYTES))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read())
    digest.update(str(size).encode())
    return digest.hexdigest()[:16]
