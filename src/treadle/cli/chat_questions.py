"""Questions that are open in a chat: answered on the prompt, and taken back when others settle them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from treadle import Answer, ApprovalRequested, CallFinished, InputRequested, RunFinished, Tool
from treadle.cli.console import Console
from treadle.cli.question_text import (
    parse_decision,
    parse_reply,
    render_approval,
    render_choices,
    render_input_question,
)
from treadle.errors import BadInput
from treadle.events import ApprovalAnswered, CancelRequested, Event, InputAnswered


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that waits for the person at this terminal."""

    request: ApprovalRequested | InputRequested
    settled: asyncio.Future[Answer | None]
    answers: list[str] = field(default_factory=list[str])
    is_shown: bool = False

    def show(self, stage: Console, tools: Mapping[str, Tool], folder: Path) -> None:
        """Put it on the screen, whole."""
        self.is_shown = True
        if isinstance(self.request, ApprovalRequested):
            for line in render_approval(self.request, tools, folder, stage.width, colour=stage.has_colour):
                stage.write_line(line)
            for line in render_choices(self.request):
                stage.write_line(line)
        else:
            for line in render_input_question(self.request.questions[len(self.answers)], colour=stage.has_colour):
                stage.write_line(line)

    def accept_answer(self, text: str, folder: Path) -> None:
        """The answer that was typed. Raises `BadInput` when it is none."""
        if isinstance(self.request, ApprovalRequested):
            self.settle(parse_decision(text, self.request, folder))
            return
        self.answers.append(parse_reply(text, self.request.questions[len(self.answers)]))
        self.is_shown = False
        if len(self.answers) == len(self.request.questions):
            self.settle(Answer(answers=tuple(self.answers)))

    def settle(self, answer: Answer | None) -> None:
        if not self.settled.done():
            self.settled.set_result(answer)


class QuestionQueue:
    """The gate of a chat. `changed` is called when there is a question more or less."""

    def __init__(self) -> None:
        self._open: list[OpenQuestion] = []
        self.on_change: Callable[[], None] = lambda: None

    @property
    def first(self) -> OpenQuestion | None:
        return next((one for one in self._open if not one.settled.done()), None)

    async def __call__(self, question: ApprovalRequested | InputRequested) -> Answer | None:
        if isinstance(question, InputRequested) and not question.questions:
            raise BadInput("a question without words cannot be asked")
        one = OpenQuestion(question, asyncio.get_running_loop().create_future())
        self._open.append(one)
        self.on_change()
        try:
            return await one.settled
        finally:
            self._open.remove(one)
            self.on_change()

    def handle_event(self, event: Event) -> None:
        """What others settled is not asked here any more."""
        match event:
            case ApprovalAnswered(call_id=call_id) | InputAnswered(call_id=call_id) | CallFinished(call_id=call_id):
                over = [one for one in self._open if one.request.call_id == call_id]
            case RunFinished() | CancelRequested():
                over = list(self._open)
            case _:
                return
        for one in over:
            one.settle(None)
