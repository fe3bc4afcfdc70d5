"""Facts for tests of the pure engine: a message, a run, its first turn, and facts about calls."""

from typing import Any

import msgspec
import pytest

from treadle import events
from treadle.messages import Call, TextPart


def build_cases(**cases: tuple[Any, ...]) -> list[Any]:
    """Build the rows of a parametrized test. Each keyword is the name of a row."""
    return [pytest.param(*case, id=name.replace("_", " ")) for name, case in cases.items()]


def message(id: str, text: str = "do it", *, interrupt: bool = False) -> events.MessageReceived:
    return events.MessageReceived(id=id, parts=(TextPart(text),), mode="interrupt" if interrupt else "queue")


def new_run(limits: events.Limits | None = None, number: int = 1, trigger: Any = "message") -> events.RunStarted:
    return events.RunStarted(run_id=f"run_{number}", limits=limits or events.Limits(), trigger=trigger)


def start(call: Call, safety: events.Safety = "caution", attempt: int = 1) -> events.CallStarted:
    return events.CallStarted(call_id=call.id, tool=call.tool, safety=safety, attempt=attempt)


def result(call: Call, output: str = "done", status: events.CallStatus = "ok", **options: Any) -> events.CallFinished:
    return events.CallFinished(call_id=call.id, tool=call.tool, status=status, output=output, **options)


def approval(call: Call, rule: str = "", **options: Any) -> events.ApprovalRequested:
    arguments = msgspec.json.decode(call.arguments) if call.arguments else {}
    return events.ApprovalRequested(
        call_id=call.id, tool=call.tool, arguments=arguments, safety="caution", why="", rule=rule, **options
    )


def begin(**limits: Any) -> tuple[events.AnyFact, ...]:
    """Return a message, a run with these limits, and its first turn."""
    return MESSAGE, new_run(events.Limits(**limits)), TURN


MESSAGE, RUN, TURN = message("m1"), new_run(), events.TurnStarted(turn=1, messages=("m1",))
BEGIN = (MESSAGE, RUN, TURN)
