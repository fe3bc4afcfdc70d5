"""An engine without I/O: it follows `next_step` on a list of facts. Hypothesis plays the model, tools and people.

It uses the real fold, steps, authorization, reply and projection. Every request is checked like by the strictest
provider, and folding again after a crash must give the same state.
"""

from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from tests.kit.facts import start
from tests.kit.sessions import select_events
from tests.kit.strategies import failures, foreign_facts, replies
from tests.kit.strict import check_growth, check_request
from treadle import events
from treadle.engine.authorize import authorize_calls
from treadle.engine.context import Projection
from treadle.engine.fold import apply, fold
from treadle.engine.model_call import build_failure_fact, build_request, compact_or_note_failure
from treadle.engine.reply import build_reply_facts
from treadle.engine.setup import Setup, later
from treadle.engine.state import State, Turn
from treadle.engine.steps import AskModel, Compact, Record, Rest, Work, next_step
from treadle.messages import Json, Message, Reply, Request, ToolSpec
from treadle.testing import ScriptedModel, SteppingClock
from treadle.tools.ask_user import AskUser
from treadle.tools.base import Tool
from treadle.tools.function import tool

T = TypeVar("T")


@tool(safety="safe")
def look(path: str) -> str:
    """Look at a file."""
    return path


@tool
def write(path: str) -> str:
    """Write a file."""
    return path


@tool(safety="destructive")
def erase(path: str) -> str:
    """Erase a file."""
    return path


LOCATE = ToolSpec("locate", "Find a place. The client runs it.", {"type": "object"})
TOOLS: dict[str, Tool] = {one.name: one for one in (look, write, erase, AskUser())}


def now_or_never(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited for something")


class SummaryModel(ScriptedModel):
    """Writes a summary when it is asked for one. Hypothesis draws all other replies."""

    async def stream(self, request: Request) -> Any:
        yield Reply("- so it went")


class Simulation:
    """A session and its engine, starting from any history."""

    def __init__(
        self,
        data: st.DataObject,
        history: Sequence[events.AnyFact],
        limits: events.Limits,
        *,
        meddling: int = 0,
        window: int | None = None,
    ) -> None:
        self.draw = data.draw
        self.facts: list[events.AnyFact] = list(history)
        self.state = fold(self.facts)
        self.start = len(self.facts)
        self.clock = SteppingClock(max((fact.at for fact in history), default=0.0))
        self.meddling = meddling
        self.setup = Setup(
            model=SummaryModel(window=window),
            tools=TOOLS,
            config=events.AgentConfig(instructions="Be brief."),
            limits=limits,
            grants=(events.Grant(ask=("write",)),),
            workspace=Path("/w"),
            gate=later,
            approval_ttl=self.draw(st.sampled_from((None, 60.0)), label="time to answer"),
            check_output=lambda text: "not a number" if text == "Done." and self._chance(2) else "",
            clock=self.clock,
            specs=(*(one.spec for one in TOOLS.values()), LOCATE),
            client_tools=frozenset((LOCATE.name,)),
        )
        self.projection = Projection()
        self.shown: tuple[dict[str, Json], list[Message]] = ({}, [])
        self.requests = 0

    def run(self, bound: int = 400) -> None:
        """Run until nothing is left to do. Every question is answered, at the latest when the meddling is over."""
        for _ in range(bound):
            if self.meddling and self._chance(3):
                self._meddle()
            step = next_step(self.state, self.clock.now(), self.setup.limits, self.setup.model.window)
            match step:
                case Record(facts=facts):
                    assert facts, "a decision without facts makes no progress"
                    self.record(*facts)
                case AskModel():
                    self._ask_model(step)
                case Work(calls=calls):
                    assert calls
                    self._work(step)
                case Compact():
                    self._compact()
                case Rest(waiting=False, wake_at=float(at)):
                    assert self.state.retry_at is not None, "nobody is asked, and the provider is not waited for"
                    if self.meddling and self._chance(3):
                        self._meddle()
                    else:
                        self.clock.step(max(0.0, at - self.clock.now()))
                case Rest(waiting=False):
                    assert self.state.run is None, "a run is active, but nobody is asked"
                    if not self.meddling:
                        return
                    self._meddle()
                case Rest():
                    self._answer_question(step)
        raise AssertionError(f"no rest after {bound} steps; the last was {step}")

    def _compact(self) -> None:
        entries = self.state.entries
        assert all(entry.is_settled for entry in entries if isinstance(entry, Turn) and entry.reply)
        if self._chance(4):
            self.crash()
        self.record(*now_or_never(compact_or_note_failure(self.setup, self.state)))

    def record(self, *facts: events.AnyFact) -> None:
        for fact in facts:
            events.stamp_fact(fact, self.state.seq + 1, self.clock.now())
            # Fold the decoded fact, so that no state depends on an object that is not stored.
            stored = events.decode_fact(events.serialize_event(fact))
            apply(self.state, stored)
            self.facts.append(stored)

    def crash(self) -> None:
        """Fold the log like a new process. The state must be the same."""
        again = fold(self.facts)
        assert again == self.state
        self.state, self.projection = again, Projection()

    def _chance(self, of: int) -> bool:
        return self.draw(st.integers(1, of), label="chance") == 1

    def _meddle(self) -> None:
        self.meddling -= 1
        self.record(replace(self.draw(foreign_facts, label="meddling")))
        self.clock.step(self.draw(st.sampled_from((0.0, 20.0)), label="time"))
        if self._chance(2):
            self.crash()

    def _ask_model(self, step: AskModel) -> None:
        request = self._build_checked_request()
        assert self.state.run is not None
        said = self.draw(failures if self._chance(5) else replies, label="model")
        if isinstance(said, Reply):
            self.record(
                *build_reply_facts(
                    self.state, request, self._cut_to_budget(said), self.setup.polling, self.setup.check_output
                )
            )
            return
        self.record(build_failure_fact(self.setup, self.state, said, step.attempt, ""))

    def _build_checked_request(self) -> Request:
        self.requests += 1
        request = build_request(self.setup, self.state, self.projection)
        check_request(request)
        cache, before = self.shown
        if cache is request.render_cache:
            check_growth(before, request)
        self.shown = (request.render_cache, list(request.messages))
        return request

    def _cut_to_budget(self, reply: Reply) -> Reply:
        run, turn = self.state.run, self.state.turn
        assert run is not None and turn is not None
        if run.limits.tokens is None or turn.wrap_up is not None:
            return reply
        left = run.limits.tokens - run.usage.output_tokens
        if reply.usage.output_tokens <= left:
            return reply
        return replace(reply, usage=replace(reply.usage, output_tokens=left), finish="length")

    def _work(self, step: Work) -> None:
        authorization = now_or_never(authorize_calls(self.setup, self.state, step.calls))
        if authorization.facts:
            self.record(*authorization.facts)
            return
        ready_calls = authorization.ready
        count = next((place for place, one in enumerate(ready_calls) if one.safety != "safe"), len(ready_calls))
        batch = ready_calls[: max(count, 1)]
        for ready in batch:
            began = start(ready.call.call, ready.safety, ready.attempt)
            self.record(replace(began, tool=ready.tool.name, arguments=ready.parsed.arguments))
        for ready in self.draw(st.permutations(batch), label="order of completion"):
            how = self.draw(
                st.sampled_from(("ok", "ok", "ok", "error", "timed_out", "fatal", "crash", "crash")), label="tool"
            )
            if how == "crash":
                self.crash()
                return
            status = "error" if how == "fatal" else how
            id, name = ready.call.call.id, ready.tool.name
            self.record(events.CallFinished(call_id=id, tool=name, status=status, output="x", fatal=how == "fatal"))

    def _answer_question(self, rest: Rest) -> None:
        assert rest.wake_at is None or rest.wake_at > self.clock.now(), "it wakes in the past"
        questions = [*self.state.pending, *self.state.client_calls]
        assert questions, "it waits for nobody"
        if rest.wake_at is not None and self._chance(3):
            self.clock.step(rest.wake_at - self.clock.now())
            return
        question = self.draw(st.sampled_from(questions), label="question")
        self.clock.step(5.0)
        if isinstance(question, events.CallStarted):
            self.record(events.CallFinished(call_id=question.call_id, tool=question.tool, status="ok", output="here"))
            return
        if isinstance(question, events.InputRequested):
            self.record(events.InputAnswered(call_id=question.call_id, answers=("this",), by="user"))
            return
        decision = self.draw(st.sampled_from(("allow", "deny")), label="decision")
        scope = self.draw(st.sampled_from(("call", "tool", "pattern", "session")), label="scope")
        self.record(events.ApprovalAnswered(call_id=question.call_id, decision=decision, scope=scope, by="user"))


def split_runs(facts: Iterable[events.AnyFact]) -> list[list[events.AnyFact]]:
    """Return the facts of each run, from its start to the next one."""
    runs: list[list[events.AnyFact]] = []
    for fact in facts:
        if isinstance(fact, events.RunStarted):
            runs.append([])
        if runs:
            runs[-1].append(fact)
    return runs


def check_runs(facts: Iterable[events.AnyFact]) -> int:
    """Check that each run in these facts ends once, within its limits. Returns the number of runs."""
    runs = split_runs(facts)
    for run in runs:
        _check_run(run)
    return len(runs)


def _check_run(run: list[events.AnyFact]) -> None:
    begin, limits = run[0], run[0].limits  # type: ignore[union-attr]
    endings = select_events(run, events.RunFinished)
    assert len(endings) == 1, f"{begin} has {len(endings)} endings"
    end = endings[0]
    assert end.run_id == begin.run_id  # type: ignore[union-attr]
    turns = select_events(run, events.TurnStarted)
    wrap_ups = [turn for turn in turns if turn.wrap_up is not None]
    first, *others = _list_stray_turns(run) or [None]
    # After its first stray reply the model is asked once more without tools. The second one ends the run.
    assert not others or others == [turns[-1]], "it was asked again after the second stray reply"
    assert len(wrap_ups) <= 1 + (first is not None and first.wrap_up is not None)
    if wrap_ups and end.reason not in ("cancelled", "failed"):
        assert end.reason == wrap_ups[0].wrap_up and turns[-1] is wrap_ups[-1]
    allowed = limits.turns or 5  # text only: one, and at most two more for each bad kind of reply
    assert len(turns) - len(wrap_ups) <= allowed
    assert end.turns == len(turns) - len(wrap_ups)
    started = {fact.call_id for fact in select_events(run, events.CallStarted)}
    assert len(started) <= limits.calls and end.calls == len(started)
    assert end.reason == "answered" or end.can_continue
    _check_spending(run, limits, end)


def _list_stray_turns(run: list[events.AnyFact]) -> list[events.TurnStarted]:
    """List the turns in which the model called a tool although none was offered."""
    turns: list[events.TurnStarted] = []
    strays: list[events.TurnStarted] = []
    for fact in run:
        if isinstance(fact, events.TurnStarted):
            turns.append(fact)
        elif isinstance(fact, events.SignalDetected) and fact.kind == "stray_calls":
            strays.append(turns[-1])
    return strays


def _check_spending(run: list[events.AnyFact], limits: events.Limits, end: events.RunFinished) -> None:
    """Check that only a wrap-up turn starts without budget, and that only it exceeds the budget."""
    tokens, cost, wrapping = 0, 0.0, False
    for fact in run:
        if isinstance(fact, events.TurnStarted):
            wrapping = fact.wrap_up is not None
            assert wrapping or not tokens or limits.tokens is None or tokens < limits.tokens
            assert wrapping or not cost or limits.cost is None or cost < limits.cost
        elif isinstance(fact, events.ModelReplied):
            assert not fact.calls or not (wrapping or limits.turns == 0), "a call without tools"
            tokens, cost = tokens + fact.usage.output_tokens, cost + fact.usage.cost
            assert wrapping or limits.tokens is None or tokens <= limits.tokens
    assert (end.usage.output_tokens, end.usage.cost) == (tokens, cost)


def check_results(facts: Sequence[events.AnyFact]) -> int:
    """Check that each call has exactly one result, after it. Returns the number of calls."""
    made = [call.id for fact in select_events(facts, events.ModelReplied) for call in fact.calls]
    results = select_events(facts, events.CallFinished)
    assert Counter(made) == Counter(fact.call_id for fact in results)
    started = {fact.call_id for fact in select_events(facts, events.CallStarted)}
    refused = {fact.call_id for fact in results if fact.status in ("refused", "denied")}
    assert not started & refused, "a call that ran has a result that says it did not"
    return len(made)


def check_session(state: State) -> None:
    """Check that has no open question when a session rests."""
    assert state.run is None and state.turn is None and state.pending == []
