"""Facts for tests of the pure engine: a message, a run, its first turn, and facts about calls."""

from typing import Any

import msgspec
import pytest

from treadle.events import (
    ApprovalRequested,
    CallFinished,
    CallStarted,
    CallStatus,
    Limits,
    MessageReceived,
    RunStarted,
    Safety,
    TurnStarted,
)
from treadle.messages import Call, TextPart


def build_cases(**cases: tuple[Any, ...]) -> list[Any]:
    """Build the rows of a parametrized test. Each keyword is the name of a row."""
    return [pytest.param(*case, id=name.replace("_", " ")) for name, case in cases.items()]


def message(id: str, text: str = "do it", *, interrupt: bool = False) -> MessageReceived:
    return MessageReceived(id=id, parts=(TextPart(text),), mode="interrupt" if interrupt else "queue")


def new_run(limits: Limits | None = None, number: int = 1, trigger: Any = "message") -> RunStarted:
    return RunStarted(run_id=f"run_{number}", limits=limits or Limits(), trigger=trigger)


def start(call: Call, safety: Safety = "caution", attempt: int = 1) -> CallStarted:
    return CallStarted(call_id=call.id, tool=call.tool, safety=safety, attempt=attempt)


def result(call: Call, output: str = "done", status: CallStatus = "ok", **options: Any) -> CallFinished:
    return CallFinished(call_id=call.id, tool=call.tool, status=status, output=output, **options)


def approval(call: Call, rule: str = "", **options: Any) -> ApprovalRequested:
    arguments = msgspec.json.decode(call.arguments) if call.arguments else {}
    return ApprovalRequested(
        call_id=call.id, tool=call.tool, arguments=arguments, safety="caution", why="", rule=rule, **options
    )


MESSAGE, RUN, TURN = message("m1"), new_run(), TurnStarted(turn=1, messages=("m1",))
BEGIN = (MESSAGE, RUN, TURN)
