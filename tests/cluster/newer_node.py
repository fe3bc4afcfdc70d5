"""A node of a made-up next release, run as `python -m tests.cluster.newer_node serve …`.

It knows one more kind of fact, and stores one after each message that speaks of a dream.
"""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from treadle import events
from treadle.cli.main import main
from treadle.engine import fold
from treadle.events import AnyDelta, AnyFact, Fact, MessageReceived
from treadle.log import postgres_rows as rows
from treadle.log.base import PostResult
from treadle.log.postgres import PostgresLog
from treadle.messages import render_parts


class DreamDreamt(Fact, frozen=True):
    """What only this release knows."""

    of: str


store = PostgresLog.post


async def post(self: PostgresLog, session_id: str, facts: Sequence[Any], *rest: Any, **options: Any) -> PostResult:
    """Store a dream with each message that speaks of one."""
    told = [render_parts(fact.parts) for fact in facts if isinstance(fact, MessageReceived)]
    dreams = [DreamDreamt(of=text) for text in told if "dream" in text]
    return await store(self, session_id, [*facts, *dreams], *rest, **options)


def become_newer() -> None:
    """Read, write and claim as the next release does."""
    events._fact_decoder = msgspec.json.Decoder(AnyFact | DreamDreamt)
    events._event_decoder = msgspec.json.Decoder(AnyFact | DreamDreamt | AnyDelta)
    fold._APPLY_FACT[DreamDreamt] = lambda state, fact: None
    rows.READER += 1
    rows._MIN_READERS[DreamDreamt] = rows.READER
    PostgresLog.post = post


if __name__ == "__main__":
    become_newer()
    sys.exit(main())
