"""What every log does alike when it takes something in: places for facts, ids for artifacts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.errors import Conflict
from treadle.events import AnyFact, stamp_fact


def number_facts(facts: Sequence[AnyFact], now: float) -> list[AnyFact]:
    """Copies of a session's first facts, with their places; a fact that carries a time keeps it."""
    return [msgspec.structs.replace(fact, seq=seq, at=fact.at or now) for seq, fact in enumerate(facts, 1)]


def stamp_created(facts: Sequence[AnyFact], placed: Sequence[AnyFact]) -> None:
    """Stamp a session's first facts once they are stored, save those that have their place elsewhere."""
    for fact, stored in zip(facts, placed, strict=True):
        if not fact.seq:
            stamp_fact(fact, stored.seq, stored.at)


def stamp_facts(facts: Sequence[AnyFact], head: int, now: float) -> None:
    """Give facts their places after `head`; one that carries a time already keeps it."""
    for fact in facts:
        head += 1
        if fact.seq != head or not fact.at:
            stamp_fact(fact, head, fact.at or now)


def stamp_repeated(facts: Sequence[AnyFact], stored: Sequence[AnyFact], key: str) -> None:
    """Give facts that are sent again the places they got when they were stored under the same key."""
    if len(facts) != len(stored):
        raise Conflict(f"the key {key!r} was used for other facts; use a new key for these")
    for fact, earlier in zip(facts, stored, strict=True):
        stamp_fact(fact, earlier.seq, earlier.at)


def hash_artifact(data: bytes) -> str:
    """The id of an artifact, made from its content."""
    import hashlib

    return hashlib.blake2b(data, digest_size=16).hexdigest()
