"""About how many tokens things have, for where no provider has counted them. Pure; a guess, never a bill."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from treadle.messages import (
    FilePart,
    ImagePart,
    Message,
    ModelMessage,
    Part,
    ResultMessage,
    TextPart,
    ToolSpec,
    UserMessage,
)

BYTES = 4
"""Bytes of text to a token: right for English and code, a little low for scripts of two or three bytes a letter."""
IMAGE = 1000
FRAME = 4
"""What a message costs besides its content."""


def count_bytes(text: str) -> int:
    """The bytes of a text: what its tokens are guessed from, in any script."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def in_text(text: str) -> int:
    """The tokens of a text."""
    return -(-count_bytes(text) // BYTES)


def in_parts(parts: Iterable[Part]) -> int:
    """The tokens of a message's parts."""
    total = 0
    for part in parts:
        match part:
            case TextPart(text=text):
                total += in_text(text)
            case ImagePart():
                total += IMAGE
            case FilePart(data=data):
                total += len(data) * 3 // 4 // BYTES
    return total


def in_message(message: Message) -> int:
    """The tokens of one message as a model is shown it."""
    match message:
        case UserMessage(parts=parts):
            return FRAME + in_parts(parts)
        case ModelMessage(text=text, calls=calls):
            return FRAME + in_text(text) + sum(FRAME + in_text(call.tool + call.arguments) for call in calls)
        case ResultMessage(text=text, parts=parts):
            return FRAME + in_text(text) + in_parts(parts)


def in_messages(messages: Iterable[Message]) -> int:
    """The tokens of a conversation."""
    return sum(map(in_message, messages))


def in_tools(tools: Iterable[ToolSpec]) -> int:
    """The tokens of the descriptions of tools."""
    return sum(
        in_text(spec.name + spec.description) + -(-len(msgspec.json.encode(spec.parameters)) // BYTES) for spec in tools
    )
