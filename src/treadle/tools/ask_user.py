"""`ask_user`: a question to the user. Any surface can answer it, also after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from treadle.events import Question, Safety
from treadle.messages import Json, ToolSpec
from treadle.tools.base import Arguments, ParsedArguments, Tool, ToolContext, ToolError, ToolInputError


class _Arguments(Arguments):
    question: Annotated[str, Meta(description="what to ask")]
    options: Annotated[list[str], Meta(description="answers to choose from, if there are any")] = field(
        default_factory=list[str]
    )


class AskUser(Tool):
    """Ask the user something. While the run waits for the answer, it holds nothing in memory."""

    timeout = None
    spec = ToolSpec(
        name="ask_user",
        description=(
            "Ask the user a question when only the user can know. The answer comes as the result. "
            'Example: {"question": "Shall I go on?", "options": ["yes", "no"]}.'
        ),
        parameters=_Arguments.build_schema(),
        examples=(("ask me which colour I like", {"question": "Which colour do you like?"}),),
    )

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "safe"

    def parse(self, arguments: str) -> ParsedArguments:
        parsed = _Arguments.decode(self.name, arguments)
        if not parsed.arguments["question"].strip():
            raise ToolInputError("ask_user: the question is empty.")
        return parsed

    def questions(self, parsed: ParsedArguments) -> tuple[Question, ...]:
        return (Question(parsed.arguments["question"], tuple(parsed.arguments["options"])),)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        raise ToolError("ask_user is answered by a person, not run")
