"""Checkpoints: the positions of a session from which a run can go on, with what the run had there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle import events
from treadle.engine.context import Projection
from treadle.engine.fold import apply
from treadle.engine.model_call import build_request
from treadle.engine.setup import Setup
from treadle.engine.state import State
from treadle.messages import Call, Message, Part, ToolSpec

CheckpointKind: TypeAlias = Literal["after_user_input", "before_llm", "before_tool_calls", "after_tool_calls"]


class Checkpoint(Struct, frozen=True):
    """A position to go on from, and what the run had there.

    `turns` counts the turns that the run had begun. `user_input` is set after user input; `messages` and `tools`, as
    the model would get them now, before the model is asked; `calls` before and after tool calls, `results` after them.
    """

    seq: int
    kind: CheckpointKind
    turns: int = 0
    user_input: tuple[Part, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    calls: tuple[Call, ...] = ()
    results: tuple[events.CallFinished, ...] = ()


def build_checkpoints(
    facts: Sequence[events.AnyFact], setup: Setup | None = None, *, after: int = 0, limit: int | None = None
) -> list[Checkpoint]:
    """Build the checkpoints after a position, at most `limit`. Without a setup, they lack tools and attachments."""
    state, projection, found = State(), Projection(), list[Checkpoint]()
    for fact in facts:
        if limit is not None and len(found) >= limit:
            break
        was_settled = state.turn is not None and state.turn.is_settled
        apply(state, fact)
        turn = state.turn
        turns = state.run.turns if state.run is not None else 0
        if fact.seq <= after:
            continue
        match fact:
            case events.MessageReceived():
                found.append(Checkpoint(fact.seq, "after_user_input", turns, user_input=fact.parts))
            case events.TurnStarted() if fact.turn and turn is not None:
                messages, tools = _build_input(state, projection, setup)
                found.append(Checkpoint(fact.seq, "before_llm", turns, messages=messages, tools=tools))
            case events.ModelReplied() if turn is not None and turn.reply is fact and turn.calls:
                found.append(Checkpoint(fact.seq, "before_tool_calls", turns, calls=fact.calls))
            case events.CallFinished() if turn is not None and turn.is_settled and not was_settled:
                calls = tuple(call.call for call in turn.calls.values())
                results = tuple(call.finished for call in turn.calls.values() if call.finished is not None)
                found.append(Checkpoint(fact.seq, "after_tool_calls", turns, calls=calls, results=results))
            case _:
                pass
    return found


def _build_input(
    state: State, projection: Projection, setup: Setup | None
) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
    if setup is None:
        return tuple(projection.build_messages(state)), ()
    request = build_request(setup, state, projection)
    return tuple(request.messages), request.tools
