"""Checks of every session and of the notes beside the log, whatever happened to the processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.crash.notes import Notes, compute_digest, open_reporting_log
from tests.crash.worker import REPORT, STEER, UNSAFE
from tests.kit.sessions import check_settled, select_events
from tests.kit.strict import check_request
from treadle.engine.context import Projection
from treadle.engine.fold import fold
from treadle.engine.state import OUTCOME_UNKNOWN
from treadle.events import AnyFact, CallFinished, CallStarted, MessageReceived, ModelReplied, RunFinished, TurnStarted
from treadle.log.base import Log, SessionQuery
from treadle.log.sqlite import SqliteLog
from treadle.messages import Request, ToolSpec, render_parts


@dataclass
class CheckCounts:
    """Counts of what was checked, so that a test can see that something was checked."""

    sessions: int = 0
    facts: int = 0
    acknowledged: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    reruns: int = 0
    steered: int = 0
    epochs: int = 0


async def check_store(notes: Notes) -> CheckCounts:
    """Check every session of the store against its own log and against the notes."""
    assert notes.read("trouble") == []
    log = open_reporting_log(notes)
    try:
        if isinstance(log, SqliteLog):
            log.check_integrity()
        counts = CheckCounts()
        facts: dict[str, list[AnyFact]] = {}
        page = await log.list_sessions(SessionQuery(limit=1000))
        for info in page.sessions:
            assert (info.status, info.owner) == ("answered", ""), info
            facts[info.id] = await log.read(info.id)
            assert len(facts[info.id]) == info.seq
            await _check_artifacts(log, info.id, facts[info.id])
    finally:
        await log.close()
    lines = Counter(key for key, *_ in notes.read("lines"))
    for session_id, session_facts in facts.items():
        check_session(session_id, session_facts, lines, counts)
    known = {f"{session_id}:{call}" for session_id, one in facts.items() for call in fold(one).calls}
    assert set(lines) <= known, "a tool ran whose call is not in the log"
    _check_acknowledged(notes, facts, counts)
    return counts


def _check_acknowledged(notes: Notes, facts: dict[str, list[AnyFact]], counts: CheckCounts) -> None:
    for session_id, seq, digest, _ in notes.read("acknowledged"):
        stored = facts[session_id]
        assert int(seq) <= len(stored), f"fact {seq} of {session_id} was acknowledged and is lost"
        assert compute_digest(stored[int(seq) - 1]) == digest, f"fact {seq} of {session_id} is another one"
        counts.acknowledged += 1


def check_session(session_id: str, facts: list[AnyFact], lines: Counter[str], counts: CheckCounts) -> None:
    """Check one session that has ended. `lines` counts the effects of each call."""
    check_settled(facts)
    state = fold(facts)
    assert state.run is None and not state.queue and not state.pending
    check_request(_build_request(session_id, facts))
    _check_answers(facts)
    started = Counter(fact.call_id for fact in select_events(facts, CallStarted))
    for fact in select_events(facts, CallFinished):
        _check_call(fact, started[fact.call_id], lines[f"{session_id}:{fact.call_id}"])
        counts.statuses[fact.status] += 1
        counts.reruns += max(0, started[fact.call_id] - 1)
    counts.sessions += 1
    counts.facts += len(facts)
    counts.epochs += len({fact.epoch for fact in select_events(facts, CallStarted)})
    counts.steered += _has_sweep(facts)


def _has_sweep(facts: list[AnyFact]) -> bool:
    return any(call.tool == "sweep" for fact in select_events(facts, ModelReplied) for call in fact.calls)


def _check_call(fact: CallFinished, started: int, lines: int) -> None:
    where = f"{fact.call_id}: {fact.status}, {started} starts, {lines} lines"
    if fact.tool in UNSAFE:
        assert started == 1, where
        assert lines <= 1, f"a side effect twice: {where}"
    assert lines <= started, where
    assert fact.status in ("ok", "interrupted"), where
    if fact.status == "ok":
        assert lines >= 1, f"a result of nothing: {where}"
    else:
        assert fact.output == OUTCOME_UNKNOWN, where
        assert fact.tool in UNSAFE or started == 3, f"a safe call that was not tried again: {where}"


def _check_answers(facts: list[AnyFact]) -> None:
    """Check that every run answered with all results, and that the model saw each message once."""
    endings, results = select_events(facts, RunFinished), select_events(facts, CallFinished)
    assert {fact.reason for fact in endings} == {"answered"}
    unknown = sum(fact.status == "interrupted" for fact in results)
    assert endings[-1].answer.split() == ["results", str(len(results)), "unknown", str(unknown)]
    received = select_events(facts, MessageReceived)
    texts = {render_parts(fact.parts) for fact in received}
    assert len(texts) == len(received), "a message stored twice"
    promoted = [one for fact in select_events(facts, TurnStarted) for one in fact.messages]
    assert promoted == [fact.id for fact in received], "a message not shown to the model exactly once"
    assert _has_sweep(facts) == (STEER in texts)


async def _check_artifacts(log: Log, session_id: str, facts: list[AnyFact]) -> None:
    for fact in select_events(facts, CallFinished):
        if fact.tool == "report" and fact.status == "ok":
            assert fact.truncation is not None
            artifact = await log.get_artifact(session_id, fact.truncation.artifact)
            assert artifact.data.decode() == REPORT


def _build_request(session_id: str, facts: list[AnyFact]) -> Request:
    tools = tuple(ToolSpec(name, name, {"type": "object"}) for name in (*sorted(UNSAFE), "look", "report"))
    return Request("", Projection().build_messages(fold(facts)), tools, session_id=session_id)
