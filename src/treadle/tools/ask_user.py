"""`ask_user`: a question to the user. Any surface can answer it, also after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from treadle.events import Question, Safety
from treadle.messages import Json, ToolSpec
from treadle.tools.base import (
    ParsedArguments,
    Tool,
    ToolContext,
    ToolError,
    ToolInputError,
    build_parameters,
    decode_arguments,
)


class _Arguments(Struct, forbid_unknown_fields=True):
    question: Annotated[str, Meta(description="what to ask")]
    options: Annotated[list[str], Meta(description="answers to choose from, if there are any")] = []


class AskUser(Tool):
    """Ask the user something. While the run waits for the answer, it holds nothing in memory."""

    timeout = None
    spec = ToolSpec(
        name="ask_user",
        description=(
            "Ask the user a question when only the user can know. The answer comes as the result. "
            'Example: {"question": "Shall I go on?", "options": ["yes", "no"]}.'
        ),
        parameters=build_parameters(_Arguments),
        examples=(("ask me which colour I like", {"question": "Which colour do you like?"}),),
    )

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "safe"

    def parse(self, arguments: str) -> ParsedArguments:
        parsed = decode_arguments(self.name, arguments, _Arguments)
        if not parsed.arguments["question"].strip():
            raise ToolInputError("ask_user: the question is empty.")
        return parsed

    def questions(self, parsed: ParsedArguments) -> tuple[Question, ...]:
        options = parsed.arguments["options"]
        return (Question(parsed.arguments["question"], tuple(options)),)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        raise ToolError("ask_user is answered by a person, not run")
