"""Unified diffs of lines. Two large files that differ in every other line are compared in seconds too."""

from __future__ import annotations

import difflib
import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

MAX_WORK = 4_000_000
"""How many pairs of lines are compared in detail. difflib takes minutes for more, if few lines are equal."""
_CONTEXT = 3

_Block: TypeAlias = tuple[int, int, int]
"""Equal lines: where they begin in the old and in the new ones, and how many there are."""


class _Matched(difflib.SequenceMatcher[str]):
    """Two sequences whose equal lines are known already."""

    def __init__(self, blocks: Sequence[_Block]) -> None:
        super().__init__()
        self._blocks = [difflib.Match(*block) for block in blocks]

    def get_matching_blocks(self) -> list[difflib.Match]:
        return self._blocks


def diff_lines(
    old: Sequence[str], new: Sequence[str], old_name: str, new_name: str, line_end: str = "\n"
) -> Iterator[str]:
    """Yield a unified diff. In large files, lines that are unique in both align the others."""
    if len(old) * len(new) <= MAX_WORK:
        yield from difflib.unified_diff(old, new, old_name, new_name, lineterm=line_end)
        return
    blocks = [*match_lines(old, new), (len(old), len(new), 0)]
    for place, group in enumerate(_Matched(blocks).get_grouped_opcodes(_CONTEXT)):
        if not place:
            yield f"--- {old_name}{line_end}"
            yield f"+++ {new_name}{line_end}"
        first, last = group[0], group[-1]
        yield f"@@ -{_write_range(first[1], last[2])} +{_write_range(first[3], last[4])} @@{line_end}"
        for kind, start, end, new_start, new_end in group:
            if kind == "equal":
                yield from (f" {line}" for line in old[start:end])
                continue
            yield from (f"-{line}" for line in old[start:end])
            yield from (f"+{line}" for line in new[new_start:new_end])


def _write_range(start: int, end: int) -> str:
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def match_lines(old: Sequence[str], new: Sequence[str]) -> list[_Block]:
    """Match lines in their order: those at both ends, those that are unique, and those between two of them."""
    most = min(len(old), len(new))
    head = next((at for at in range(most) if old[at] != new[at]), most)
    tail = next((at for at in range(most - head) if old[-1 - at] != new[-1 - at]), most - head)
    ends = len(old) - tail, len(new) - tail
    anchors = [(head - 1, head - 1), *_find_anchors(old, new, head, ends), ends]
    blocks: list[_Block] = [(0, 0, head)] if head else []
    work = MAX_WORK
    for (old_at, new_at), (old_end, new_end) in itertools.pairwise(anchors):
        between = old[old_at + 1 : old_end], new[new_at + 1 : new_end]
        work -= (needed := len(between[0]) * len(between[1]))
        if needed and work >= 0:
            found = difflib.SequenceMatcher(None, *between).get_matching_blocks()
            blocks += [(old_at + 1 + one.a, new_at + 1 + one.b, one.size) for one in found if one.size]
        if (old_end, new_end) != ends:
            blocks.append((old_end, new_end, 1))
    return _join_blocks([*blocks, (*ends, tail)])


def _find_anchors(old: Sequence[str], new: Sequence[str], start: int, ends: tuple[int, int]) -> list[tuple[int, int]]:
    """Find the longest series of lines that are unique in both and in the same order in both."""
    counts = Counter(old[start : ends[0]]), Counter(new[start : ends[1]])
    places = {line: start + at for at, line in enumerate(new[start : ends[1]])}
    pairs = (
        (start + at, places[line])
        for at, line in enumerate(old[start : ends[0]])
        if counts[0][line] == counts[1][line] == 1
    )
    lowest: list[int] = []  # the smallest last place in `new` of a series of each length
    series: list[tuple[int, tuple[int, int], int]] = []  # length, the pair, and the index of the pair before it
    last: list[int] = []  # the index in `series` of the end of the series of each length
    for pair in pairs:
        length = bisect_left(lowest, pair[1])
        series.append((length, pair, last[length - 1] if length else -1))
        lowest[length : length + 1] = [pair[1]]
        last[length : length + 1] = [len(series) - 1]
    found: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        _, pair, at = series[at]
        found.append(pair)
    return found[::-1]


def _join_blocks(blocks: Sequence[_Block]) -> list[_Block]:
    """Join blocks that touch, and leave out empty ones."""
    joined: list[_Block] = []
    for old_at, new_at, size in blocks:
        if not size:
            continue
        if joined and (joined[-1][0] + joined[-1][2], joined[-1][1] + joined[-1][2]) == (old_at, new_at):
            joined[-1] = (joined[-1][0], joined[-1][1], joined[-1][2] + size)
        else:
            joined.append((old_at, new_at, size))
    return joined
