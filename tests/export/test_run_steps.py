"""Where the time of a run went."""

from typing import Any

from treadle import Limits
from treadle.events import (
    AnyFact,
    ApprovalAnswered,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    ModelFailed,
    ModelReplied,
    RunStarted,
    TurnStarted,
)
from treadle.export.run_steps import build_steps
from treadle.messages import Call


def test_steps_show_what_worked_waited_and_failed() -> None:
    call: dict[str, Any] = {"call_id": "c", "tool": "shell"}
    facts: list[AnyFact] = [
        RunStarted(run_id="r", limits=Limits(), at=1000),
        TurnStarted(turn=1, at=1000),
        ModelFailed(kind="overloaded", message="Provider error 529", wait=3.0, at=1001),
        ModelReplied(calls=(Call("c", "shell", "{}"),), at=1006),
        ApprovalRequested(arguments={}, safety="caution", why="", at=1006, **call),
        ApprovalAnswered(call_id="c", decision="allow", by="ada", at=1016),
        CallStarted(arguments={"command": "make"}, at=1016, **call),
        CallFinished(status="error", output="exit code 2", duration=2.0, at=1018, **call),
    ]
    steps = [(step.kind, step.label, step.start, step.end, step.is_ok) for step in build_steps(facts)]
    assert ("person", "shell", 1006, 1016, True) in steps
    assert ("provider", "overloaded", 1001, 1004, True) in steps
    assert ("tool", "shell", 1016, 1018, False) in steps
