"""Import a session from JSON lines. The file describes the past: nothing in it grants a right or starts work.

What is taken over is an allow-list, so a field or a kind of fact that is added later is not taken over by itself.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.engine.fold import apply, fold
from treadle.engine.steps import Record, next_step
from treadle.errors import BadInput
from treadle.log.base import Artifact, Log, SessionQuery
from treadle.messages import ImagePart, ModelMessage, Part, TextPart, UserMessage
from treadle.permissions.data_flow import HISTORY

IMPORTED_NOTE_PREFIX = "imported."
"""How the names of notes begin that came with the file. Tools do not read them."""

MAX_NAME_LENGTH = 200
WHY_CLOSED = "the session was imported while it was unfinished"
NOT_RUN = "Not run: the session was imported from elsewhere before this call was finished."

_ARTIFACT_LINE = b'{"type":"artifact"'
# Ids that a program chooses are not taken over: it could later open a session of others under its own id.
_SESSION_ID = re.compile(r"[0-9a-f]{32}")

KEPT_FIELDS: dict[type[events.Fact], tuple[str, ...]] = {
    events.SessionRenamed: ("name", "by"),
    events.SessionMarked: (),  # whoever imports it decides
    events.MessageReceived: ("id", "parts"),
    events.MessageEdited: ("id", "parts", "by"),
    events.RunRequested: ("trigger", "by"),
    events.CancelRequested: ("by", "why"),
    events.RetryRequested: ("by",),
    events.RunStarted: ("run_id", "trigger"),
    events.TurnStarted: ("turn", "messages", "tools", "wrap_up", "calls"),
    # Not `opaque`: it goes to the provider as it is, so it could hold instructions that nobody sees.
    events.ModelReplied: ("text", "reasoning", "calls", "finish", "usage", "model", "confidence", "first_token"),
    events.ModelFailed: ("kind", "message", "retryable", "attempt", "partial", "status"),
    # Neither `digest` nor `rule`: an answer is bound to no call and remembered for none.
    events.ApprovalRequested: ("call_id", "tool", "arguments", "safety", "why"),
    events.ApprovalAnswered: ("call_id", "decision", "by", "comment"),
    events.InputRequested: ("call_id", "questions"),
    events.InputAnswered: ("call_id", "answers", "by"),
    events.CallStarted: ("call_id", "tool", "arguments", "attempt", "safety", "sandbox", "why", "access"),
    events.CallFinished: (
        *("call_id", "tool", "status", "output", "parts", "truncation", "duration", "fatal", "usage", "safety"),
    ),
    events.SignalDetected: ("kind", "detail"),
    events.ContextCompacted: ("kind", "through", "tokens_before", "tokens_after", "summary", "usage"),
    events.RunFinished: (
        *("run_id", "reason", "answer", "usage", "turns", "calls", "can_continue", "error", "confidence"),
    ),
    # `web` only ever switches off what the operator allows. Nothing else of a configuration is taken over.
    events.SessionConfigured: ("web", "by"),
    # No kept files: a rewind would write or delete the files of whoever imports.
    events.FilesKept: ("call_id",),
    events.Rewound: ("to", "what", "by"),
    events.Custom: ("data",),
}
"""The fields of each kind of fact that are taken over as they are."""


class ImportedSession(Struct, frozen=True):
    """The content of a file of JSON lines, as it is in the file."""

    facts: tuple[events.AnyFact, ...]
    artifacts: tuple[Artifact, ...]


def parse_json_lines(data: bytes) -> ImportedSession:
    """Parse the output of `render_json_lines`. Raises `BadInput` with the number of a bad line."""
    facts: list[events.AnyFact] = []
    artifacts: list[Artifact] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            if line.startswith(_ARTIFACT_LINE):
                fields: dict[str, str] = msgspec.json.decode(line, type=dict[str, str])
                content = base64.b64decode(fields["data"], validate=True)
                artifacts.append(Artifact(fields["id"], fields["media_type"], content))
            elif line.strip():
                facts.append(events.decode_fact(line))
        except (msgspec.MsgspecError, UnicodeError, KeyError, ValueError, RecursionError) as error:
            raise BadInput(f"line {number} is no fact of a session: {error}; nothing was imported") from None
    if [isinstance(fact, events.SessionCreated) for fact in facts[:1]] != [True]:
        raise BadInput("a session begins with session_created; this file does not. Nothing was imported")
    if any(isinstance(fact, events.SessionCreated) for fact in facts[1:]):
        raise BadInput("a session has one session_created; this file has more. Nothing was imported")
    if [fact.seq for fact in facts] != list(range(1, len(facts) + 1)):
        raise BadInput("facts are missing or out of order; nothing was imported")
    return ImportedSession(tuple(facts), tuple(artifacts))


async def import_session(
    log: Log, imported: ImportedSession, created: events.SessionCreated, now: float | None = None
) -> str:
    """Create the session in this store and return its id.

    `created` is what a new session of the importer would begin with: its agent, workspace, grants and limits. With an
    empty `session_id`, the session keeps the id of the file.
    """
    now = time.time() if now is None else now
    facts = strip_rights(imported.facts, created, now)
    first = facts[0]
    assert isinstance(first, events.SessionCreated)
    # A session that is opened by its name must stay the importer's own.
    name = fold(facts).name
    if name and any([info.name == name async for info in log.iterate_sessions(SessionQuery(text=name))]):
        facts.append(events.SessionRenamed(name=f"{name} (imported {first.session_id[:6]})", at=facts[-1].at))
    await log.create(first.session_id, facts)
    wanted = {fact.truncation.artifact for fact in facts if isinstance(fact, events.CallFinished) and fact.truncation}
    for artifact in imported.artifacts:
        if artifact.id in wanted:
            await log.put_artifact(first.session_id, artifact.data)
    return first.session_id


def strip_rights(facts: Sequence[events.AnyFact], created: events.SessionCreated, now: float) -> list[events.AnyFact]:
    """Turn the facts of a session from elsewhere into history that grants nothing and waits for nothing.

    Each fact keeps its position. The facts that close unfinished work follow at the end.
    """
    first = facts[0]
    assert isinstance(first, events.SessionCreated)
    session_id = created.session_id or first.session_id
    if not created.session_id and not _SESSION_ID.fullmatch(session_id):
        session_id = os.urandom(16).hex()
    # Others wrote this conversation, and it may hold private data.
    sources, at = (*created.sources, HISTORY), _bound_time(first.at, now)
    past: list[events.AnyFact] = [replace(created, session_id=session_id, sources=sources, at=at)]
    past += [_strip_fact(fact, created.limits, now) for fact in facts[1:]]
    for seq, fact in enumerate(past, 1):
        events.stamp_fact(fact, seq, fact.at)
    return past + close_unfinished_work(past)


def _strip_fact(fact: events.AnyFact, limits: events.Limits, now: float) -> events.AnyFact:
    kept = {name: getattr(fact, name) for name in KEPT_FIELDS[type(fact)]}
    match fact:
        case events.SessionRenamed():
            kept["name"] = fact.name[:MAX_NAME_LENGTH]
        case events.MessageReceived():
            kept["parts"] = _strip_parts(fact.parts)
            kept["mode"] = "follow_up" if fact.mode == "follow_up" else "queue"
            kept["history"] = tuple(
                replace(message, is_system=False, parts=_strip_parts(message.parts))
                if isinstance(message, UserMessage)
                else replace(message, opaque="")
                if isinstance(message, ModelMessage)
                else replace(message, parts=_strip_parts(message.parts))
                for message in fact.history
            )
        case events.CallFinished() | events.MessageEdited():
            kept["parts"] = _strip_parts(fact.parts)
        case events.RunStarted():
            kept["limits"] = limits
        case events.ContextCompacted():  # a summary of the future would replace what the user says later
            kept["through"] = min(fact.through, fact.seq)
        case events.FilesKept():
            kept["left_out"] = (*(file.path for file in fact.files), *fact.left_out)
        case events.Custom():
            kept["name"] = f"{IMPORTED_NOTE_PREFIX}{fact.name.removeprefix(IMPORTED_NOTE_PREFIX)}"
        case _:
            pass
    return type(fact)(**kept, at=_bound_time(fact.at, now))


def _bound_time(at: float, now: float) -> float:
    """Bound the time of a fact: not in the future, and a date. The store would replace 0 by the present."""
    return min(max(at, 1.0), now)


def _strip_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Replace images that are only an address: when the session goes on, the provider would fetch it."""
    return tuple(
        TextPart(f"[image: {part.url}]") if isinstance(part, ImagePart) and part.url else part for part in parts
    )


def close_unfinished_work(past: Sequence[events.AnyFact]) -> list[events.AnyFact]:
    """Close what a run would go on with: an open run and its calls, queued messages and requests."""
    state, closing, at = fold(past), list[events.AnyFact](), past[-1].at
    if state.run is None and not state.queue and state.requested is None:
        return closing
    step = Record((events.CancelRequested(by="import", why=WHY_CLOSED),))
    while isinstance(step, Record):
        for fact in step.facts:
            if isinstance(fact, events.CallFinished) and fact.status == "cancelled":
                fact = replace(fact, status="interrupted", output=NOT_RUN)
            events.stamp_fact(fact, state.seq + 1, at)
            apply(state, fact)
            closing.append(fact)
        step = next_step(state, at)
    return closing
