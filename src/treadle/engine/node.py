"""A process as a node of a store that several machines share: what others see of it, its folders, and its clock."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from treadle.engine.setup import Clock
from treadle.log.base import Claimant, Log, Node


class LogClock(Clock):
    """Tells the time of the store, so that all nodes agree when a question expires or a pause is over."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def now(self) -> float:
        return self._log.now()


def build_node(claimant: Claimant, started_at: float) -> Node:
    """Build the entry of this process in the list of nodes."""
    try:
        release = version("treadle")
    except PackageNotFoundError:  # it runs from its sources
        release = ""
    roots = None if claimant.roots is None else tuple(claimant.roots)
    host = socket.gethostname()
    return Node(claimant.owner, host, release, started_at, started_at, claimant.ttl, roots)


def list_roots(folders: Sequence[str | Path]) -> tuple[str, ...]:
    """List folders by their absolute paths, and by those that their links lead to: a workspace has either one."""
    paths = [Path(folder).expanduser().absolute() for folder in folders]
    return tuple(dict.fromkeys(str(path) for path in (*paths, *(path.resolve() for path in paths))))
