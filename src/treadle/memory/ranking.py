"""Putting what was found in order: nearness of vectors, and several orders made into one. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul

_STEADY = 60
"""How little the first places count for more than the next; the usual constant of reciprocal rank fusion."""
_NEAR = 0.3


def rank_by_similarity(vector: Sequence[float], vectors: Mapping[str, Sequence[float]]) -> list[str]:
    """The names of the vectors that point about the same way, the nearest first."""
    length = math.sqrt(sum(map(mul, vector, vector)))
    found: list[tuple[float, str]] = []
    for name, other in vectors.items():
        size = math.sqrt(sum(map(mul, other, other)))
        if len(other) == len(vector) and size and length:
            likeness = sum(map(mul, vector, other)) / (size * length)
            if likeness >= _NEAR:
                found.append((-likeness, name))
    return [name for _, name in sorted(found)]


def fuse_rankings(*orders: Sequence[str]) -> list[str]:
    """One order from several: what stands high in more of them comes first."""
    scores: dict[str, float] = {}
    for order in orders:
        for place, name in enumerate(order):
            scores[name] = scores.get(name, 0.0) + 1 / (_STEADY + place)
    return sorted(scores, key=lambda name: (-scores[name], name))
