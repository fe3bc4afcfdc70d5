"""Ranking search results: similarity of vectors, and several rankings made into one. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul

_SMOOTHING = 60
"""The usual constant of reciprocal rank fusion. A higher value makes the first places count less."""
_MIN_SIMILARITY = 0.3


def rank_by_similarity(vector: Sequence[float], vectors: Mapping[str, Sequence[float]]) -> list[str]:
    """Rank the names of vectors by their cosine similarity to a vector. Dissimilar ones are left out."""
    length = math.sqrt(sum(map(mul, vector, vector)))
    found: list[tuple[float, str]] = []
    for name, other in vectors.items():
        other_length = math.sqrt(sum(map(mul, other, other)))
        if len(other) == len(vector) and other_length and length:
            similarity = sum(map(mul, vector, other)) / (other_length * length)
            if similarity >= _MIN_SIMILARITY:
                found.append((-similarity, name))
    return [name for _, name in sorted(found)]


def fuse_rankings(*rankings: Sequence[str]) -> list[str]:
    """Fuse several rankings into one. A name that is high in more of them comes first."""
    scores: dict[str, float] = {}
    for ranking in rankings:
        for place, name in enumerate(ranking):
            scores[name] = scores.get(name, 0.0) + 1 / (_SMOOTHING + place)
    return sorted(scores, key=lambda name: (-scores[name], name))
