"""Reading the state of a long session: in pieces, and the same as at once."""

from typing import Any

import pytest

from tests.kit.sessions import Store, build_agent, either_store
from treadle import events
from treadle.engine.fold import fold
from treadle.errors import BadInput
from treadle.log import hub

store = either_store


async def test_a_long_log_is_read_in_pieces_and_gives_the_same_state(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "FACTS_AT_ONCE", 4)
    agent, _ = build_agent()
    async with agent.session(store.open()) as session:
        names = [events.validate_fact(events.SessionRenamed(name=f"name {number}")) for number in range(11)]
        await session.log.post(session.id, names, wake=False)
        facts, limits = await session.facts(), list[int]()
        read = session.log.read

        async def note_read(*args: Any, limit: int) -> Any:
            limits.append(limit)
            return await read(*args, limit=limit)

        session.log.read = note_read  # type: ignore[method-assign]
        for position in range(1, len(facts) + 1):
            assert await session.at(position) == fold(facts[:position])
        assert await session.state() == fold(facts)
        assert max(limits) == 4
        for position in (0, -1, len(facts) + 1):
            with pytest.raises(BadInput, match=f"has positions 1 to {len(facts)}, not {position}"):
                await session.at(position)
