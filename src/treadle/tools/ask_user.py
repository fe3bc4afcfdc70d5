"""`ask_user`: a question to the person, answered from any surface, also after a restart."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.events import Question, Safety
from treadle.messages import Json, ToolSpec
from treadle.tools.base import ParsedArguments, Tool, ToolContext, ToolError, ToolInputError, decode_arguments


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    question: str
    options: list[str] = []


class AskUser(Tool):
    """Ask the user something. The run waits for the answer without holding anything in memory."""

    timeout = None
    spec = ToolSpec(
        name="ask_user",
        description=(
            "Ask the user a question when only the user can know. The answer comes as the result. "
            'Example: {"question": "Shall I go on?", "options": ["yes", "no"]}.'
        ),
        parameters={
            "type": "object",
            "properties": {
                "question": {"type": "string", "description": "what to ask"},
                "options": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "answers to choose from, if there are any",
                },
            },
            "required": ["question"],
        },
        examples=(("ask me which colour I like", {"question": "Which colour do you like?"}),),
    )

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "safe"

    def parse(self, arguments: str) -> ParsedArguments:
        asked = decode_arguments(self.name, arguments, _Asked)
        if not asked.question.strip():
            raise ToolInputError("ask_user: the question is empty.")
        values = {"question": asked.question, "options": asked.options}
        return ParsedArguments(values, values)

    def questions(self, parsed: ParsedArguments) -> tuple[Question, ...]:
        options = parsed.arguments["options"]
        return (Question(parsed.arguments["question"], tuple(options)),)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        raise ToolError("ask_user is answered by a person, not run")
