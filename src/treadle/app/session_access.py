"""Change the access of a session that is open, and accept the plan of a session in plan mode.

Only the program of the person at the terminal calls this. No tool, message, workspace or HTTP request reaches it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from treadle.errors import BadInput, Conflict
from treadle.events import AnyFact, MessageReceived, RunFinished, SessionConfigured, Tier, validate_fact
from treadle.messages import TextPart, replace_surrogates
from treadle.permissions.policy import choose_narrowest, find_narrowest_tier
from treadle.run import Run
from treadle.runtime import Runtime
from treadle.sandbox.registries import REGISTRIES

ACCESS_CYCLE: tuple[Tier, ...] = ("sandbox", "plan", "read-only", "full")
"""The order in which a person goes through the accesses."""

PLAN_ACCEPTED = "I accept this plan. Carry it out:"
"""The first part of the message that gives an accepted plan to the model. The plan is the second part."""

RESUMED = "resume"
"""Who changed the access when a program allows less than the one that had the session before."""

_DESCRIPTIONS: dict[Tier, str] = {
    "plan": "reads and proposes; you accept before it changes",
    "read-only": "reads; asks before it changes anything",
    "sandbox": "writes in this folder only; {network}",
    "full": "all that you can do; danger still asks",
}


def next_access(current: Tier) -> Tier:
    """Choose the access after `current`. Ask the person before you apply `full`: see `change_access`."""
    return ACCESS_CYCLE[(ACCESS_CYCLE.index(current) + 1) % len(ACCESS_CYCLE)]


def describe_access(access: Tier, network: Sequence[str] = ()) -> str:
    """Say in a few words what an access allows. `network` are the hosts of the setting of this name."""
    hosts = len(set(network) - {REGISTRIES})
    named = [f"{hosts} host{'s' if hosts > 1 else ''}"] if hosts else []
    named += ["package registries"] if REGISTRIES in network else []
    reached = "all public hosts" if "*" in network else " and ".join(named)
    return _DESCRIPTIONS[access].format(network=f"network: {reached}" if reached else "no network")


def find_plan(ended: RunFinished, access: Tier) -> str:
    """Find the plan that a run in plan mode ended with. Empty if there is nothing to accept."""
    return ended.answer.strip() if access == "plan" and ended.reason == "answered" else ""


async def find_access(runtime: Runtime, session_id: str) -> Tier:
    """Find the access that the next call of a session has."""
    setup = await runtime.coordinator.build_setup(await runtime.coordinator.load_state(session_id))
    return find_narrowest_tier(setup.grants)


async def change_access(runtime: Runtime, session_id: str, access: Tier, *more: AnyFact, by: str = "user") -> int:
    """Change what a session may do from its next call on. Calls that run now keep the access they began with.

    The change is recorded together with `more` facts. Return the position of the last one. More than the agent's grant
    allows needs a session that is open in this program, and ends with it. Ask the person first.
    """
    before, use = await find_access(runtime, session_id), runtime.find_use(session_id)
    state = await runtime.coordinator.load_state(session_id)
    agent = runtime.agents.get(state.agent)
    if use is None or agent is None:
        raise Conflict(f"session {session_id} is not open here, so its access cannot be changed")
    allowed = use.access or agent.grant.tier
    # Raise what this program allows before the change, because alone that has no effect, and lower it after.
    use.access = allowed if choose_narrowest(allowed, access) == access else access
    facts = [validate_fact(fact) for fact in (SessionConfigured(access=access, access_before=before, by=by), *more)]
    try:
        stored = (await runtime.log.post(session_id, facts, wake=bool(more))).facts
    except BaseException:
        use.access = allowed
        raise
    use.access = access
    return stored[-1].seq


def accept_plan(runtime: Runtime, session_id: str, plan: str, access: Tier = "sandbox") -> Run:
    """Leave plan mode and start the work, in one write to the log. The model gets exactly the text of `plan`.

    Raises `Conflict` if the session works, or is not in plan mode.
    """
    if not plan.strip():
        raise BadInput("the plan is empty: there is nothing to accept")
    parts = (TextPart(PLAN_ACCEPTED), TextPart(replace_surrogates(plan)))
    message = MessageReceived(id=f"msg_{os.urandom(8).hex()}", parts=parts)

    async def begin() -> int:
        state = await runtime.coordinator.load_state(session_id)
        if state.run is not None or await find_access(runtime, session_id) != "plan":
            raise Conflict(f"session {session_id} has no plan to accept: it is working, or it is not in plan mode")
        return await change_access(runtime, session_id, access, message)

    return Run(runtime.coordinator, session_id, begin, message.id)


async def restore_access(runtime: Runtime, session_id: str, flag: Tier | None = None) -> str:
    """Settle the access of a session that was opened again. Return a note for the user, if there is one.

    A `flag` of the command line counts. Otherwise the session keeps its access, unless this program allows less:
    full access ends with the program in which a person confirmed it.
    """
    chosen = (await runtime.coordinator.load_state(session_id)).access
    if flag is not None:
        if flag != chosen:
            await change_access(runtime, session_id, flag)
        return ""
    access = await find_access(runtime, session_id)
    if chosen is not None and chosen != access:
        await change_access(runtime, session_id, access, by=RESUMED)
        return f"access is {access} again: {chosen} was allowed until the session was left"
    return f"access is {access}, as before" if chosen is not None and access != "sandbox" else ""
