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
from treadle.messages import is_attached, render_parts
from treadle.permissions.data_flow import (
    HISTORY,
    MESSAGE,
    SOURCES,
    UNKNOWN_TOOL_TRAITS,
    Trait,
    explain_flow_risk,
    find_private,
    names_address,
)
from treadle.permissions.policy import Assessment, find_narrowest_tier
from treadle.tools.base import Tool


def find_flow_risk(setup: Setup, state: State, tool: Tool, own: frozenset[Trait], assessment: Assessment) -> str:
    """Say how a call could let private data out or make a lasting change because text of others asked for it.

    `own` are its traits. Return nothing when there is no such risk.
    """
    tier = find_narrowest_tier(setup.grants)
    if assessment.commands is not None and assessment.safety == "safe":  # a command that is known to only read
        return ""
    # A call that reads nothing itself sends its arguments. The model wrote them before it knew any result of the reply.
    known = len(state.seen) if state.turn is None or "private" in own else state.turn.seen
    tools = {name: setup.find_tool(name) for name in islice(state.seen, known)}
    seen: dict[str, frozenset[Trait]] = {}
    for name, used in tools.items():
        unknown = SOURCES[name].labels if name in SOURCES else UNKNOWN_TOOL_TRAITS
        seen[name] = used.list_traits(tier) if used is not None else unknown
    risk = explain_flow_risk(tool.name, own, seen)
    if risk and find_private(own, seen) == [MESSAGE] and tool.party:
        # Only the user's words could leave, and a server gets them with every question. So it may be asked again.
        others = {name: labels for name, labels in seen.items() if getattr(tools[name], "party", "") != tool.party}
        risk = explain_flow_risk(tool.name, own, others)
    if risk and assessment.address and names_address(_list_texts(state, own, seen), assessment.address):
        return ""
    return risk


def _list_texts(state: State, own: frozenset[Trait], seen: dict[str, frozenset[Trait]]) -> Iterator[str]:
    """List the texts whose addresses carry nothing private: the user named them, or a page did before it knew anything.

    The model of another session wrote the messages of a helper, and anyone those of an imported session, so they are
    not the user's. The links of a page carry the choice between them. That is accepted if nothing else is private than
    the user's words.
    """
    created = state.created
    is_helper = created is not None and created.parent is not None and bool(created.parent.call_id)
    is_imported = created is not None and HISTORY in created.sources
    shows_links = find_private(own, seen) == [MESSAGE]
    for entry in state.entries:
        if isinstance(entry, MessageReceived) and not (is_helper or is_imported):
            yield render_parts([part for part in entry.parts if not is_attached(part)])
        elif isinstance(entry, Turn) and shows_links:
            for call in entry.calls.values():
                # The answer to a call that never started may repeat what the model wrote.
                if call.started is not None and call.finished is not None:
                    yield call.finished.output if "untrusted" in seen.get(call.finished.tool, ()) else ""
