"""Export a session as Markdown or an HTML page, or as JSON lines that `import_session` reads.

The file contents that a rewind restores are kept outside the log, so no export has them.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle import events
from treadle.errors import NotFound
from treadle.export.html_page import render_page
from treadle.log.base import Artifact, Log
from treadle.messages import ResultMessage, UserMessage, render_message, render_parts

Form = Literal["markdown", "jsonl", "html"]


class TranscriptBlock(Struct, frozen=True):
    """One block of a transcript: its kind, a headline and its text."""

    kind: Literal["user", "agent", "reasoning", "call", "note"]
    head: str = ""
    text: str = ""


async def render_transcript(log: Log, session_id: str, form: Form) -> bytes:
    """Render the session in one of the forms."""
    facts = await log.read(session_id)
    if form == "markdown":
        return render_markdown(facts).encode("utf-8", "replace")
    ids = (fact.truncation.artifact for fact in facts if isinstance(fact, events.CallFinished) and fact.truncation)
    artifacts: list[Artifact] = []
    for artifact_id in dict.fromkeys(ids):
        with suppress(NotFound):
            artifacts.append(await log.get_artifact(session_id, artifact_id))
    return render_json_lines(facts, artifacts) if form == "jsonl" else render_page(facts, artifacts)


def render_json_lines(facts: Iterable[events.AnyFact], artifacts: Iterable[Artifact] = ()) -> bytes:
    """Write each fact on a line, as the log has it, and then the artifacts."""
    lines = [events.serialize_event(fact) for fact in facts]
    for artifact in artifacts:
        data = base64.b64encode(artifact.data).decode()
        line = {"type": "artifact", "id": artifact.id, "media_type": artifact.media_type, "data": data}
        lines.append(msgspec.json.encode(line))
    return b"\n".join([*lines, b""])


def apply_edits(facts: Iterable[events.AnyFact]) -> list[events.AnyFact]:
    """Replace the messages that were edited while they were queued, and leave out those that were withdrawn."""
    kept, places = list[events.AnyFact | None](), dict[str, int]()
    for fact in facts:
        match fact:
            case events.MessageReceived():
                places[fact.id] = len(kept)
            case events.TurnStarted():
                for message_id in fact.messages:
                    places.pop(message_id, None)  # no edit reaches it any more
            case events.MessageEdited() if (place := places.get(fact.id)) is not None:
                message = kept[place]
                assert isinstance(message, events.MessageReceived)
                kept[place] = replace(message, parts=fact.parts) if fact.parts else None
                if not fact.parts:
                    del places[fact.id]
            case _:
                pass
        kept.append(fact)
    return [fact for fact in kept if fact is not None]


def build_blocks(facts: Iterable[events.AnyFact]) -> list[TranscriptBlock]:
    """Build the blocks of a transcript for a person."""
    blocks: list[TranscriptBlock] = []
    arguments: dict[str, str] = {}
    for fact in apply_edits(facts):
        match fact:
            case events.MessageReceived():
                for message in fact.history:
                    text, kind = render_message(message), "user" if isinstance(message, UserMessage) else "agent"
                    if isinstance(message, ResultMessage):
                        blocks.append(TranscriptBlock("call", f"{message.tool}, before this session", text))
                    elif text.strip():
                        blocks.append(TranscriptBlock(kind, text=text))
                blocks.append(TranscriptBlock("user", text=render_parts(fact.parts)))
            case events.ModelReplied():
                blocks += [TranscriptBlock("reasoning", text=fact.reasoning)] if fact.reasoning.strip() else []
                blocks += [TranscriptBlock("agent", text=fact.text)] if fact.text.strip() else []
                arguments |= {call.id: call.arguments for call in fact.calls}
            case events.CallStarted():
                arguments[fact.call_id] = json.dumps(fact.arguments, ensure_ascii=False)
            case events.CallFinished():
                head = f"{fact.tool} {arguments.get(fact.call_id, '')}".strip()
                blocks.append(TranscriptBlock("call", f"{head} → {fact.status.replace('_', ' ')}", fact.output))
            case events.ApprovalAnswered():
                comment = f": {fact.comment}" if fact.comment else ""
                scope = "once" if fact.scope == "call" else f"for this {fact.scope}"
                words = f"Allowed {scope}" if fact.decision == "allow" else "Denied"
                head = f"{words} by {fact.by or 'somebody'}{comment}"
                blocks.append(TranscriptBlock("note", head))
            case events.RunStarted(trigger="command"):
                blocks.append(TranscriptBlock("note", "you ran a command"))
            case events.SessionConfigured() if fact.access is not None:
                before = f"{fact.access_before} → " if fact.access_before else ""
                blocks.append(TranscriptBlock("note", f"access: {before}{fact.access} ({fact.by or 'somebody'})"))
            case events.RunStarted() if fact.trigger != "message":
                blocks.append(TranscriptBlock("note", f"A run began again ({fact.trigger})"))
            case events.ModelFailed():
                blocks.append(TranscriptBlock("note", f"The model gave no reply ({fact.kind}): {fact.message}"))
            case events.ContextCompacted():
                blocks.append(TranscriptBlock("note", f"The context was compacted ({fact.kind})", fact.summary))
            case events.Rewound():
                blocks.append(TranscriptBlock("note", f"Back to position {fact.to} ({fact.what})"))
            case events.RunFinished() if fact.reason != "answered":
                end = f"The run ended: {fact.reason.replace('_', ' ')}"
                blocks.append(TranscriptBlock("note", f"{end}: {fact.error}" if fact.error else end))
            case _:
                pass
    return blocks


def describe_session(facts: Sequence[events.AnyFact]) -> tuple[str, list[str]]:
    """Return the title of a session, and lines about it."""
    first = facts[0]
    assert isinstance(first, events.SessionCreated)
    names = [fact.name for fact in facts if isinstance(fact, events.SessionRenamed)]
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(first.at))
    cost = sum(fact.usage.cost for fact in facts if isinstance(fact, events.RunFinished))
    models = [first.model, *(fact.model for fact in facts if isinstance(fact, events.ModelReplied))]
    model = next(filter(None, models), "unknown")  # an imported session was created without one
    lines = [f"session {first.session_id}", f"began {began}", f"model {model}", f"workspace {first.workspace}"]
    return (names[-1] if names else f"Session {first.session_id[:12]}"), lines + ([f"cost ${cost:.4f}"] if cost else [])


def render_markdown(facts: Sequence[events.AnyFact]) -> str:
    """Render the session as Markdown."""
    title, about = describe_session(facts)
    pieces = [f"# {_join_lines(title)}", "\n".join(f"- {_join_lines(line)}" for line in about)]
    heads = {"user": "## You", "agent": "## Agent"}
    for block in build_blocks(facts):
        if block.kind in heads:
            pieces += [heads[block.kind], block.text.rstrip()]
        elif block.kind == "reasoning":
            pieces.append("\n".join(f"> {line}" for line in block.text.rstrip().splitlines()))
        else:
            pieces.append(f"### {_join_lines(block.head)}" if block.kind == "call" else f"*{_join_lines(block.head)}*")
            if block.text.strip():
                longest = max((len(run) for run in re.findall(r"`{3,}", block.text)), default=2)
                fence = "`" * (longest + 1)
                pieces.append(f"{fence}\n{block.text.rstrip()}\n{fence}")
    return "\n\n".join(pieces) + "\n"


def _join_lines(text: str) -> str:
    return " ".join(text.split())
