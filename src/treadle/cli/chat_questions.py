"""Questions that are open in a chat: answered on the prompt, and taken back when others settle them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treadle import Answer, ApprovalRequested, CallFinished, InputRequested, RunFinished, Tool
from treadle.cli.console import Stage
from treadle.cli.question_text import approval_lines, choices, decision, input_lines, reply
from treadle.errors import BadInput
from treadle.events import ApprovalAnswered, CancelRequested, Event, InputAnswered


@dataclass(slots=True, eq=False)
class Open:
    """A question that waits for the person at this terminal."""

    asked: ApprovalRequested | InputRequested
    settled: asyncio.Future[Answer | None]
    answers: list[str] = field(default_factory=list[str])
    shown: bool = False

    def show(self, stage: Stage, tools: Mapping[str, Tool], folder: Path) -> None:
        """Put it on the screen, whole."""
        self.shown = True
        if isinstance(self.asked, ApprovalRequested):
            for line in approval_lines(self.asked, tools, folder, stage.room, colour=stage.colour):
                stage.line(line)
            for line in choices(self.asked):
                stage.line(line)
        else:
            for line in input_lines(self.asked.questions[len(self.answers)], colour=stage.colour):
                stage.line(line)

    def take(self, text: str, folder: Path) -> None:
        """The answer that was typed. Raises `BadInput` when it is none."""
        if isinstance(self.asked, ApprovalRequested):
            self.settle(decision(text, self.asked, folder))
            return
        self.answers.append(reply(text, self.asked.questions[len(self.answers)]))
        self.shown = False
        if len(self.answers) == len(self.asked.questions):
            self.settle(Answer(answers=tuple(self.answers)))

    def settle(self, answer: Answer | None) -> None:
        if not self.settled.done():
            self.settled.set_result(answer)


class Asking:
    """The gate of a chat. `changed` is called when there is a question more or less."""

    def __init__(self) -> None:
        self._open: list[Open] = []
        self.changed: Callable[[], None] = lambda: None

    @property
    def first(self) -> Open | None:
        return next((one for one in self._open if not one.settled.done()), None)

    async def __call__(self, question: ApprovalRequested | InputRequested) -> Answer | None:
        if isinstance(question, InputRequested) and not question.questions:
            raise BadInput("a question without words cannot be asked")
        one = Open(question, asyncio.get_running_loop().create_future())
        self._open.append(one)
        self.changed()
        try:
            return await one.settled
        finally:
            self._open.remove(one)
            self.changed()

    def event(self, event: Event) -> None:
        """What others settled is not asked here any more."""
        match event:
            case ApprovalAnswered(call_id=call_id) | InputAnswered(call_id=call_id) | CallFinished(call_id=call_id):
                over = [one for one in self._open if one.asked.call_id == call_id]
            case RunFinished() | CancelRequested():
                over = list(self._open)
            case _:
                return
        for one in over:
            one.settle(None)
