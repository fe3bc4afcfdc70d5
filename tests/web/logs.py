"""Sessions that are written into a store directly: long ones, and ones whose every field is hostile."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.web.payloads import IN_ONE_LINE, OUTSIDE, PAYLOADS
from treadle import events
from treadle.engine.compaction import TODO
from treadle.log.sqlite import SqliteLog
from treadle.messages import Call, FilePart, ImagePart, TextPart, Usage

ALL = "\n\n".join(PAYLOADS)
SVG = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciIG9ubG9hZD0iYWxlcnQoMSkiLz4="
TURNS_IN_A_RUN = 50


async def write_sessions(home: Path, *sessions: Sequence[events.AnyFact]) -> None:
    """Write sessions into the store that `serve_page` with the same home opens."""
    home.mkdir(parents=True, exist_ok=True)
    async with SqliteLog(home / "store.db") as log:
        for facts in sessions:
            created = facts[0]
            assert isinstance(created, events.SessionCreated)
            if isinstance(facts[-1], events.InputRequested):
                await _write_waiting_session(log, created.session_id, facts)
            else:
                await log.create(created.session_id, facts)


async def _write_waiting_session(log: SqliteLog, session_id: str, facts: Sequence[events.AnyFact]) -> None:
    """Write a session as its owner does: with its questions open."""
    await log.create(session_id, facts[:1])
    claim = await log.claim("tests", 30.0, session_id)
    assert claim is not None
    await log.append(claim, 1, facts[1:])
    await log.release(claim, len(facts), waiting=True)


def _build_call(number: int, tool: str, **arguments: Any) -> Call:
    return Call(f"call_{number}", tool, msgspec.json.encode(arguments).decode())


def _create(session_id: str, home: Path, **fields: Any) -> events.SessionCreated:
    known = {"agent": events.AgentConfig(name="default"), "workspace": str(home / "work")}
    return events.SessionCreated(session_id=session_id, **{**known, **fields})


def _run_calls(calls: Sequence[Call], output: str = "", **fields: Any) -> Iterator[events.AnyFact]:
    """The facts of calls that ran to their end."""
    for call in calls:
        arguments = msgspec.json.decode(call.arguments)
        yield events.CallStarted(call_id=call.id, tool=call.tool, arguments=arguments)
        finished = {"status": "ok", "output": output, "duration": 0.25, **fields}
        yield events.CallFinished(call_id=call.id, tool=call.tool, **finished)


# --- a long session


def build_long_session(
    session_id: str, home: Path, turns: int, turns_in_a_run: int = TURNS_IN_A_RUN
) -> list[events.AnyFact]:
    """A session whose every turn draws two rows: a text with some Markdown, and two calls."""
    facts: list[events.AnyFact] = [_create(session_id, home), events.SessionRenamed(name="A long session")]
    for first in range(1, turns + 1, turns_in_a_run):
        facts += _build_run(first, min(turns_in_a_run, turns + 1 - first))
    return facts


def _build_run(first: int, turns: int) -> Iterator[events.AnyFact]:
    yield events.MessageReceived(id=f"message_{first}", parts=(TextPart(f"Go on with part {first}."),))
    yield events.RunStarted(run_id=f"run_{first}", limits=events.Limits())
    for number in range(first, first + turns):
        taken = (f"message_{first}",) if number == first else ()
        yield events.TurnStarted(turn=number - first + 1, messages=taken)
        path = f"src/part_{number}.py"
        calls = (
            _build_call(2 * number, "read_file", path=path),
            _build_call(2 * number + 1, "shell", command=f"python -m pytest tests/test_part_{number}.py"),
        )
        text = f"Part {number} needs a **closer look**: `{path}` reads its settings twice.\n\n- at the start\n- later"
        yield events.ModelReplied(text=text, calls=calls, finish="calls", usage=Usage(900 + number, 40))
        yield from _run_calls(calls, f"line one of {number}\nline two\n3 passed in 0.25s")
    yield events.RunFinished(run_id=f"run_{first}", reason="answered", answer="Done.", turns=turns, calls=2 * turns)


# --- hostile sessions


def build_hostile_sessions(home: Path) -> list[list[events.AnyFact]]:
    """Sessions that have the payloads in every field that a model, a tool, a file or a person can write."""
    named = [
        [_create(f"named{number}", home), events.SessionRenamed(name=text)] for number, text in enumerate(IN_ONE_LINE)
    ]
    return [
        *named,
        _build_hostile_texts(home),
        _build_hostile_calls(home),
        _build_hostile_endings(home),
        _build_hostile_questions(home),
        _build_hostile_helper(home),
    ]


def _begin(session_id: str, home: Path, *parts: Any, **fields: Any) -> list[events.AnyFact]:
    return [
        _create(session_id, home, **fields),
        events.SessionRenamed(name=IN_ONE_LINE[0]),
        events.MessageReceived(id="message_1", parts=parts or (TextPart(ALL),)),
        events.RunStarted(run_id="run_1", limits=events.Limits()),
        events.TurnStarted(turn=1, messages=("message_1",)),
    ]


def _build_hostile_texts(home: Path) -> list[events.AnyFact]:
    """What people, the model and its plan say, with files and pictures."""
    parts = (
        TextPart(ALL),
        *(TextPart(text, file=text) for text in IN_ONE_LINE[:8]),
        *(FilePart(text, data="aGFybQ==", media_type=text[:40]) for text in IN_ONE_LINE),
        ImagePart(data=SVG, media_type="image/svg+xml"),
        ImagePart(url=f"{OUTSIDE}/picture.png"),
        ImagePart(url="javascript:window.__hit(0)"),
    )
    name = IN_ONE_LINE[2]
    plan = [{"text": text, "status": "doing"} for text in IN_ONE_LINE]
    return [
        *_begin("texts", home, *parts),
        events.ModelReplied(text=ALL, reasoning=ALL, model=name, sources=tuple(IN_ONE_LINE)),
        events.Custom(name=TODO, data=plan),
        events.RunFinished(run_id="run_1", reason="answered", answer=ALL, turns=1),
        *(
            events.MessageReceived(id=f"queued_{number}", parts=(TextPart(text),))
            for number, text in enumerate(PAYLOADS)
        ),
    ]


def _build_hostile_calls(home: Path) -> list[events.AnyFact]:
    """Tools, arguments, outputs, file names, diffs and who answered."""
    facts, calls = _begin("calls", home, TextPart("go")), list[Call]()
    for number, text in enumerate(IN_ONE_LINE):
        calls += [
            _build_call(7 * number, text, **{text: text}),
            _build_call(7 * number + 1, "shell", command=PAYLOADS[number]),
            _build_call(7 * number + 2, "write_file", path=text, content=PAYLOADS[number]),
            _build_call(7 * number + 3, "edit_file", path=text, old=PAYLOADS[number], new=PAYLOADS[-1 - number]),
            _build_call(7 * number + 4, "read_file", path=text),
            _build_call(7 * number + 5, "fetch_url", url=text),
            Call(f"call_{7 * number + 6}", "ask_user", f"no JSON {text}"),
        ]
    facts.append(events.ModelReplied(calls=tuple(calls), finish="calls"))
    statuses = ("ok", "error", "denied", "refused", "interrupted", "timed_out", "cancelled")
    for number, call in enumerate(calls):
        text = PAYLOADS[number % 40]
        if number % 7 == 1:
            facts += [
                events.ApprovalRequested(
                    call_id=call.id, tool="shell", arguments={"command": text}, safety="caution", why=text, rule=text
                ),
                events.ApprovalAnswered(call_id=call.id, decision="allow", by=text, comment=text),
            ]
        if number % 7 != 6:
            facts.append(events.CallStarted(call_id=call.id, tool=call.tool, arguments={}, why=text, sandbox=text))
        picture = ImagePart(data=SVG, media_type="image/svg+xml")
        facts.append(
            events.CallFinished(
                call_id=call.id,
                tool=call.tool,
                status=statuses[(number // 7) % 7],
                output=text,
                parts=(picture, TextPart(text, file=text), FilePart(text)),
                truncation=events.Truncation(10, 10, text) if number % 7 == 4 else None,
            )
        )
    facts.append(events.RunFinished(run_id="run_1", reason="answered", answer="ok", turns=1, calls=len(calls)))
    return facts


def _build_hostile_endings(home: Path) -> list[events.AnyFact]:
    """Failures, retries, signals, summaries and errors."""
    facts = _begin("endings", home, TextPart("go"))
    for text in PAYLOADS:
        facts += [
            events.ModelFailed(kind="internal", message=text, retryable=True, wait=0.1, partial=text, status=500),
            events.SignalDetected(kind="doom_loop", detail=text),
        ]
    facts += [
        events.ModelReplied(text="at last"),
        events.RunFinished(run_id="run_1", reason="failed", error=ALL, turns=1, can_continue=True),
        events.ContextCompacted(kind="summary", through=len(facts), tokens_before=900, tokens_after=90, summary=ALL),
        events.SessionConfigured(model=IN_ONE_LINE[4]),
        events.Rewound(to=len(facts) + 2, what="conversation", by=IN_ONE_LINE[5]),
    ]
    return facts


def _build_hostile_questions(home: Path) -> list[events.AnyFact]:
    """Questions that are open, so they stand in the inbox too."""
    asked = tuple(events.Question(text, tuple(IN_ONE_LINE)) for text in PAYLOADS[:4])
    calls = (
        *(_build_call(number, "shell", command=text) for number, text in enumerate(PAYLOADS)),
        _build_call(40, "ask_user", question=ALL, options=IN_ONE_LINE),
    )
    questions = [
        events.ApprovalRequested(
            call_id=call.id,
            tool="shell",
            arguments={"command": text, IN_ONE_LINE[number]: text},
            safety="caution",
            why=text,
            rule=text,
            digest="d",
        )
        for number, (call, text) in enumerate(zip(calls, PAYLOADS, strict=False))
    ]
    return [
        *_begin("questions", home, TextPart("go")),
        events.ModelReplied(text=ALL, calls=calls, finish="calls"),
        *questions,
        events.InputRequested(call_id="call_40", questions=asked),
    ]


def _build_hostile_helper(home: Path) -> list[events.AnyFact]:
    """A helper that a call of the session "calls" started."""
    name = IN_ONE_LINE[6]
    parent = events.Parent(session_id="calls", seq=5, call_id="call_0")
    return [
        _create("helper", home, agent=events.AgentConfig(name=name), model=name, parent=parent),
        events.SessionRenamed(name=name),
    ]
