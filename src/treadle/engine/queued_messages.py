"""Messages of users: their parts, and changing them while no run has taken them.

The log decides a race with the run: the edit counts if it is stored before the turn that takes the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, cast

from msgspec.structs import replace

from treadle import events
from treadle.engine.state import State
from treadle.errors import BadInput, Conflict, NotFound
from treadle.log.base import Log
from treadle.messages import FilePart, ImagePart, Part, TextPart, replace_surrogates

Content: TypeAlias = str | Part | Sequence[str | Part]


def build_parts(content: Content) -> tuple[Part, ...]:
    """Build the parts of a message. Raises `BadInput` when it is empty."""
    several = isinstance(content, Sequence) and not isinstance(content, str)
    parts: list[Part] = []
    for piece in cast("Sequence[object]", content if several else [content]):
        if isinstance(piece, str):
            parts.append(TextPart(piece))
        elif isinstance(piece, TextPart | ImagePart | FilePart):
            parts.append(piece)
        else:
            kind = type(piece).__name__
            raise BadInput(f"a message is text, or parts such as TextPart and ImagePart, but this has a {kind}")
    if not any(not isinstance(part, TextPart) or part.text.strip() for part in parts):
        raise BadInput("the message is empty: say what is wanted")
    return tuple(parts)


def clean_parts(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Replace what no store takes: halves of surrogate pairs."""
    return tuple(
        replace(part, text=replace_surrogates(part.text)) if isinstance(part, TextPart) else part for part in parts
    )


async def post_edit(log: Log, session_id: str, state: State, edit: events.MessageEdited) -> None:
    """Store an edit of a queued message. Raises `Conflict` when a run has taken it, also if that was in between."""
    if all(message.id != edit.id for message in state.queue):
        raise await _explain_refusal(log, session_id, edit.id)
    stored = (await log.post(session_id, [events.validate_fact(edit)], wake=False)).facts[0]
    for fact in await log.read(session_id, state.seq, stored.seq - state.seq - 1):
        if isinstance(fact, events.TurnStarted) and edit.id in fact.messages:
            raise _build_taken(edit.id)
        if isinstance(fact, events.MessageEdited) and fact.id == edit.id and not fact.parts:
            raise _build_withdrawn(edit.id)


async def _explain_refusal(log: Log, session_id: str, message_id: str) -> Conflict | NotFound:
    facts = await log.read(session_id)
    if all(not isinstance(fact, events.MessageReceived) or fact.id != message_id for fact in facts):
        return NotFound(f"session {session_id} has no message {message_id!r}")
    is_taken = any(isinstance(fact, events.TurnStarted) and message_id in fact.messages for fact in facts)
    return _build_taken(message_id) if is_taken else _build_withdrawn(message_id)


def _build_taken(message_id: str) -> Conflict:
    return Conflict(f"message {message_id} was not changed: a run has taken it already; send another message")


def _build_withdrawn(message_id: str) -> Conflict:
    return Conflict(f"message {message_id} was not changed: it was withdrawn before; send another message")
