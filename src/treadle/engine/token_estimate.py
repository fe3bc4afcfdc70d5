"""Estimate tokens where no provider has counted them. Pure. Never use an estimate for a bill."""

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

BYTES_PER_TOKEN = 4
"""Bytes of text per token: right for English and code, a little low for scripts with two or three bytes a letter."""
IMAGE_TOKENS = 1000
MESSAGE_TOKENS = 4
"""The tokens of a message without its content."""


def count_bytes(text: str) -> int:
    """Count the bytes of a text. Tokens are estimated from bytes, in any script."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text."""
    return -(-count_bytes(text) // BYTES_PER_TOKEN)


def estimate_parts(parts: Iterable[Part]) -> int:
    """Estimate the tokens of a message's parts."""
    total = 0
    for part in parts:
        match part:
            case TextPart(text=text):
                total += estimate_text(text)
            case ImagePart():
                total += IMAGE_TOKENS
            case FilePart(data=data):
                total += len(data) * 3 // 4 // BYTES_PER_TOKEN
    return total


def estimate_message(message: Message) -> int:
    """Estimate the tokens of one message."""
    match message:
        case UserMessage(parts=parts):
            return MESSAGE_TOKENS + estimate_parts(parts)
        case ModelMessage(text=text, calls=calls):
            return (
                MESSAGE_TOKENS
                + estimate_text(text)
                + sum(MESSAGE_TOKENS + estimate_text(call.tool + call.arguments) for call in calls)
            )
        case ResultMessage(text=text, parts=parts):
            return MESSAGE_TOKENS + estimate_text(text) + estimate_parts(parts)


def estimate_messages(messages: Iterable[Message]) -> int:
    """Estimate the tokens of a conversation."""
    return sum(map(estimate_message, messages))


def estimate_tools(tools: Iterable[ToolSpec]) -> int:
    """Estimate the tokens of the descriptions of tools."""
    return sum(
        estimate_text(spec.name + spec.description) + -(-len(msgspec.json.encode(spec.parameters)) // BYTES_PER_TOKEN)
        for spec in tools
    )
