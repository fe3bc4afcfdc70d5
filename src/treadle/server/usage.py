"""What all sessions have cost, in all and by model."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter
from pydantic import BaseModel

from treadle import Runtime
from treadle.errors import NotFound, StoreTooNew
from treadle.events import AnyFact, RunFinished
from treadle.log.base import SessionInfo, SessionQuery
from treadle.server.service import CurrentService, Viewer

router = APIRouter(prefix="/v1", tags=["sessions"])
PAGE = 200


class ModelUsage(BaseModel):
    """What the sessions of one model have cost. An empty name stands for the model of the agent."""

    model: str
    sessions: int = 0
    turns: int = 0
    cost: float = 0.0


class UsageView(BaseModel):
    """What all sessions have cost, without those that were deleted. The most expensive model comes first."""

    sessions: int
    turns: int
    cost: float
    models: list[ModelUsage]


@router.get("/usage")
async def get_usage(service: CurrentService, token: Viewer) -> UsageView:
    """Sum up what the finished runs of all sessions have cost."""
    sums: dict[str, ModelUsage] = {}
    cursor, is_first = "", True
    while cursor or is_first:
        page = await service.runtime.sessions(SessionQuery(limit=PAGE, cursor=cursor))
        for info in page.sessions:
            if not info.is_helper:  # its parent's calls have its cost
                turns, cost = await _find_inherited(service.runtime, service.inherited_usage, info)
                one = sums.setdefault(info.model, ModelUsage(model=info.model))
                one.sessions += 1
                one.turns += info.turns - turns
                one.cost += info.cost - cost
        cursor, is_first = page.cursor, False
        await asyncio.sleep(0)  # others go on while many sessions are summed up
    models = sorted(sums.values(), key=lambda one: one.cost, reverse=True)
    return UsageView(
        sessions=sum(one.sessions for one in models),
        turns=sum(one.turns for one in models),
        cost=sum(one.cost for one in models),
        models=models,
    )


async def _find_inherited(
    runtime: Runtime, known: dict[str, tuple[int, float]], info: SessionInfo
) -> tuple[int, float]:
    """Find the turns and the cost that a fork has from its parent. They never change."""
    if info.parent is None:
        return 0, 0.0
    if info.id not in known:
        facts: list[AnyFact] = []
        with suppress(NotFound, StoreTooNew):  # it was deleted meanwhile, or a newer release wrote it
            facts = await runtime.log.read(info.id, limit=info.parent.seq)
        runs = [fact for fact in facts if isinstance(fact, RunFinished)]
        known[info.id] = sum(one.turns for one in runs), sum(one.usage.cost for one in runs)
    return known[info.id]
