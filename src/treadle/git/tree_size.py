"""How many files and folders a tree stands for when git goes through all of it.

Eight small trees that name each other ten times stand for 100 million files. Git does not count them before it starts:
`git status` runs out of memory, or out of stack if they are very deep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from treadle.git.object_links import Link

MAX_ENTRIES = 2_000_000
MAX_DEPTH = 1_000
"""Deeper folders have no path that the system could open."""

_MAX_REMEMBERED = 200_000


class TreeSize(Struct, frozen=True, gc=False):
    """How many entries a tree has with all trees below it, and how deep these are."""

    entries: int
    depth: int

    @property
    def is_too_large(self) -> bool:
        """Whether git could not go through the tree."""
        return self.entries > MAX_ENTRIES or self.depth > MAX_DEPTH


_remembered: dict[str, TreeSize] = {}  # an id stands for one content for ever, in whichever repository


def measure_tree(tree: str, read_links: Callable[[str], Sequence[Link]]) -> TreeSize:
    """Measure a tree. Each tree is read once, and never again in this process."""
    if len(_remembered) > _MAX_REMEMBERED:
        _remembered.clear()
    sizes: dict[str, TreeSize] = {}
    opened: dict[str, Sequence[Link]] = {}
    waiting = [tree]
    while waiting:
        here = waiting[-1]
        if known := sizes.get(here) or _remembered.get(here):
            sizes[here] = known
            waiting.pop()
            continue
        links = opened.setdefault(here, opened.get(here) or read_links(here))
        folders = [link for link, kind in links if kind == "tree"]
        if missing := dict.fromkeys(folder for folder in folders if folder not in sizes):
            waiting.extend(missing)
            continue
        below = [sizes[folder] for folder in folders]
        entries = len(links) + sum(size.entries for size in below)
        sizes[here] = TreeSize(min(entries, MAX_ENTRIES + 1), 1 + max((size.depth for size in below), default=0))
        del opened[here]
    _remembered.update(sizes)
    return sizes[tree]
