"""What must hold after any fault, checked in the log of every session, beside it, and in what the database saw."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.cluster.deployment import LEASE, PASSWORD, Cluster
from tests.crash.invariants import CheckCounts, check_session
from tests.crash.notes import Notes, compute_digest
from tests.kit.processes import PATIENCE
from treadle.engine.fold import fold
from treadle.events import AnyFact, ApprovalAnswered, ApprovalRequested, CallFinished, CallStarted
from treadle.log.postgres import PostgresLog


@dataclass
class Takeover:
    """A session that a node took from another one that had not given it back."""

    session: int
    earlier_owner: str
    after_lapse: float
    at: float


@dataclass
class Findings:
    """`violations` must be empty. `unsure` names each side effect that may have happened twice, or of which nobody
    knows whether it happened.
    """

    violations: list[str] = field(default_factory=list[str])
    unsure: list[str] = field(default_factory=list[str])
    takeovers: list[Takeover] = field(default_factory=list[Takeover])
    counts: CheckCounts = field(default_factory=CheckCounts)
    refused: int = 0
    approvals: int = 0
    late_answers: int = 0

    def __str__(self) -> str:
        slowest = max((one.after_lapse for one in self.takeovers), default=0)
        counts = self.counts
        return (
            f"{counts.sessions} sessions, {counts.facts} facts, {counts.acknowledged} acknowledged, "
            f"{len(self.takeovers)} takeovers (slowest {slowest:.2f} s after the lease), "
            f"{self.refused} writes refused, {self.approvals} approvals, {self.late_answers} late answers, "
            f"unsure: {self.unsure}"
        )


def check_cluster(cluster: Cluster, patience: float = 2 * PATIENCE) -> Findings:
    """Wait until all sessions have ended, and check everything."""
    notes, findings = cluster.notes, Findings()
    try:
        cluster.wait_until_all_ended(patience)
    except AssertionError as error:
        findings.violations.append(str(error))
    facts = asyncio.run(_read_facts(cluster))
    numbers = dict(cluster.server.query("SELECT id, num FROM treadle.sessions"))
    lines = Counter(key for key, *_ in notes.read("lines"))
    for session_id in cluster.sessions:
        if session_id not in facts:
            findings.violations.append(f"session {session_id} is lost")
            continue
        try:
            check_session(session_id, facts[session_id], lines, findings.counts)
        except AssertionError as error:
            findings.violations.append(f"session {session_id}: {str(error).strip()}")
        findings.unsure += _name_unsure_calls(session_id, facts[session_id])
    known = {f"{session_id}:{call}" for session_id, one in facts.items() for call in fold(one).calls}
    findings.violations += [f"{key} ran, and the log has no such call" for key in lines if key not in known]
    findings.violations += _find_hidden_repeats(lines, findings.unsure)
    findings.violations += _find_lost_facts(notes, facts, findings)
    findings.violations += _find_zombie_writes(cluster, numbers)
    findings.violations += _find_bad_answers(notes, facts, findings)
    findings.violations += [" ".join(words) for words in notes.read("trouble") if {"Traceback", "lost"} & set(words)]
    findings.violations += _find_passwords(notes)
    findings.refused = len(notes.read("refused"))
    sql = "SELECT session, earlier_owner, at - earlier_lease, at FROM audit.claims WHERE earlier_owner <> ''"
    findings.takeovers = [Takeover(*row) for row in cluster.server.query(sql)]
    return findings


async def _read_facts(cluster: Cluster) -> dict[str, list[AnyFact]]:
    log, facts = PostgresLog(cluster.server.build_url()), dict[str, list[AnyFact]]()
    for (session_id,) in cluster.server.query("SELECT id FROM treadle.sessions"):
        facts[session_id] = await log.read(session_id)
    await log.close()
    return facts


def _name_unsure_calls(session_id: str, facts: list[AnyFact]) -> Iterator[str]:
    """Name the calls that the log itself says may have run, or have run more than once."""
    attempts = Counter(fact.call_id for fact in facts if isinstance(fact, CallStarted))
    for fact in facts:
        if isinstance(fact, CallFinished) and (fact.status == "interrupted" or attempts[fact.call_id] > 1):
            what = "outcome unknown" if fact.status == "interrupted" else f"{attempts[fact.call_id]} attempts"
            yield f"{session_id}:{fact.call_id} ({what})"


def _find_hidden_repeats(lines: Counter[str], unsure: list[str]) -> Iterator[str]:
    named = {item.partition(" ")[0] for item in unsure}
    for key, times in lines.items():
        if times > 1 and key not in named:
            yield f"{key} had its effect {times} times, and nothing in the log says so"


def _find_lost_facts(notes: Notes, facts: dict[str, list[AnyFact]], findings: Findings) -> Iterator[str]:
    for session_id, seq, digest, _ in notes.read("acknowledged"):
        stored, place = facts.get(session_id, []), int(seq) - 1
        findings.counts.acknowledged += 1
        if place >= len(stored):
            yield f"fact {seq} of {session_id} was acknowledged and is lost"
        elif compute_digest(stored[place]) != digest:
            yield f"fact {seq} of {session_id} was acknowledged and is another one"


def _find_zombie_writes(cluster: Cluster, numbers: dict[str, int]) -> Iterator[str]:
    """Find facts that were stored with another epoch than that of the claim at this moment."""
    epochs = {
        (num, seq): epoch for num, seq, epoch in cluster.server.query("SELECT session, seq, epoch FROM audit.facts")
    }
    for session_id, seq, _, epoch in cluster.notes.read("acknowledged"):
        held = epochs.get((numbers.get(session_id, 0), int(seq)))
        if int(epoch) and held is not None and held != int(epoch):
            yield f"fact {seq} of {session_id} was written with epoch {epoch}, when the claim had epoch {held}"


def _find_bad_answers(notes: Notes, facts: dict[str, list[AnyFact]], findings: Findings) -> Iterator[str]:
    """Each approval has one answer, and whoever was told that an answer counts was told the truth."""
    winners: dict[tuple[str, str], str] = {}
    for session_id, one in facts.items():
        asked = [fact.call_id for fact in one if isinstance(fact, ApprovalRequested)]
        answered = [fact for fact in one if isinstance(fact, ApprovalAnswered)]
        findings.approvals += len(answered)
        winners |= {(session_id, fact.call_id): fact.by for fact in answered}
        if sorted(asked) != sorted(fact.call_id for fact in answered):
            yield f"session {session_id} asked for {asked} and got {answered}"
    for session_id, call_id, by, how, winner in notes.read("answers"):
        findings.late_answers += how == "late"
        if winners.get((session_id, call_id)) != winner:
            told = f"{by} was told that the answer of {winner} counts ({how})"
            yield f"{session_id}:{call_id}: {told}, but that of {winners.get((session_id, call_id))} does"


def _find_passwords(notes: Notes) -> Iterator[str]:
    for file in notes.folder.iterdir():
        if file.is_file() and PASSWORD.encode() in file.read_bytes():
            yield f"the password of the database is in {file.name}"


def find_lost_facts(cluster: Cluster) -> list[str]:
    """Find the sessions of which acknowledged facts are gone, or others now."""
    found, facts = Findings(), asyncio.run(_read_facts(cluster))
    return [line.split(" of ")[1].split()[0] for line in _find_lost_facts(cluster.notes, facts, found)]


def measure_takeovers(cluster: Cluster, findings: Findings, owner: str, since: float) -> list[float]:
    """How long the sessions of a node that failed waited for another node, from the fault on."""
    return [one.at - since for one in findings.takeovers if one.earlier_owner == owner and one.at >= since]


def measure_delay(notes: Notes, since: float, stopped: str = "") -> float:
    """The longest time by which the machine was late to run a node, apart from one that was stopped."""
    delays = [words for words in notes.read("delays") if float(words[1]) >= since]
    return max((float(late) for name, _, late in delays if name.partition(".")[0] != stopped), default=0.0)


def find_slow_takeovers(takeovers: list[float], delay: float) -> list[float]:
    """Find the takeovers that took longer than they may, however busy the machine was."""
    return [seconds for seconds in takeovers if seconds > LEASE + 2 + delay]
