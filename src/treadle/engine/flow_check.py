"""Compare a call with what its session has seen. Every way out and every lasting change passes through here.

The rule is in `permissions/data_flow.py`. This module finds out what it needs: the labels of all that the session knew
when the call was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from treadle.engine.setup import Setup
from treadle.engine.state import State, Turn
from treadle.events import MessageReceived
from treadle.messages import render_parts
from treadle.permissions.data_flow import (
    MESSAGE,
    SOURCES,
    UNKNOWN_TOOL_TRAITS,
    Trait,
    explain_flow_risk,
    find_private,
    has_effect,
    names_address,
)
from treadle.permissions.policy import Assessment, find_narrowest_tier
from treadle.tools.base import Tool


def find_flow_risk(setup: Setup, state: State, tool: Tool, own: frozenset[Trait], assessment: Assessment) -> str:
    """Say how a call could let private data out or make a lasting change because text of others asked for it.

    `own` are its traits. Return nothing when there is no such risk.
    """
    tier = find_narrowest_tier(setup.grants)
    if not has_effect(own, assessment.safety):
        return ""
    # A call that reads nothing itself sends its arguments. The model wrote them before it knew any result of the reply.
    known = len(state.seen) if state.turn is None or "private" in own else state.turn.seen
    tools = {name: _find_tool(setup, name) for name in islice(state.seen, known)}
    seen: dict[str, frozenset[Trait]] = {}
    for name, used in tools.items():
        unknown = SOURCES[name].labels if name in SOURCES else UNKNOWN_TOOL_TRAITS
        seen[name] = used.list_traits(tier) if used is not None else unknown
    risk = explain_flow_risk(tool.name, own, seen)
    if not risk or (assessment.address and names_address(_list_user_texts(state), assessment.address)):
        return ""
    if find_private(own, seen) != [MESSAGE]:
        return risk
    # Only the user's words could leave. A server that was asked may be asked again: it gets them with every question.
    # The links of a page carry no more than the choice between them.
    others = {name: labels for name, labels in seen.items() if not _has_party(tools[name], tool.party)}
    pages = _list_results(state, seen) if assessment.address else ()
    return "" if names_address(pages, assessment.address) else explain_flow_risk(tool.name, own, others)


def _find_tool(setup: Setup, name: str) -> Tool | None:
    """Find a tool that is offered, or that calls of another tool can resolve to."""
    hidden = (tool.find_hidden_tool(name) for tool in setup.tools.values())
    return setup.tools.get(name) or next(filter(None, hidden), None)


def _has_party(tool: Tool | None, party: str) -> bool:
    return bool(party) and tool is not None and tool.party == party


def _list_user_texts(state: State) -> Iterator[str]:
    """List what the user wrote. The model of another session wrote the messages of a helper."""
    parent = state.created.parent if state.created is not None else None
    if parent is None or not parent.call_id:
        yield from (render_parts(entry.parts) for entry in state.entries if isinstance(entry, MessageReceived))


def _list_results(state: State, seen: dict[str, frozenset[Trait]]) -> Iterator[str]:
    """List what strangers wrote, as the model read it."""
    calls = (call for entry in state.entries if isinstance(entry, Turn) for call in entry.calls.values())
    ended = (call.finished for call in calls if call.finished is not None)
    return (fact.output for fact in ended if "untrusted" in seen.get(fact.tool, ()))
