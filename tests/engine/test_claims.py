"""The keeper of claims tries again what a store that was away did not do."""

import asyncio

from treadle.engine.claims import ClaimKeeper
from treadle.engine.session_entry import SessionEntries
from treadle.engine.setup import Clock, Lease
from treadle.errors import StoreAway
from treadle.log.base import Claimant
from treadle.log.in_memory import InMemoryLog

GIVE_UP_SECONDS = 30


async def test_a_session_whose_time_came_while_the_store_was_away_is_woken_later() -> None:
    tried, was_woken = list[str](), asyncio.Event()

    async def wake(session_id: str) -> None:
        tried.append(session_id)
        if len(tried) == 1:
            raise StoreAway("the database cannot be used now")
        was_woken.set()

    def start(lease: Lease) -> None:
        raise AssertionError("nothing is due in the store")

    async with asyncio.timeout(GIVE_UP_SECONDS), InMemoryLog() as log:
        entries = SessionEntries()
        keeper = ClaimKeeper(log, Claimant("me", 0.3), Clock(), entries, start, wake)
        entries.open("s").wake_at = 1.0
        keeper.ensure_keeper()
        await was_woken.wait()
        await keeper.close()
    assert tried == ["s", "s"] and not entries
