"""The conversation that a client had before its first message to a session, as part of the session's state. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.events import MessageReceived
from treadle.messages import Call, Message, ModelMessage, ResultMessage, TextPart, UserMessage, estimate_messages


class EarlierMessages(Struct, frozen=True):
    """What the client's conversation had before the session's first message. It stands right before that message."""

    seq: int
    messages: tuple[Message, ...]

    @classmethod
    def from_message(cls, fact: MessageReceived) -> EarlierMessages:
        return cls(fact.seq - 1, close_calls(fact.history))

    @property
    def tokens(self) -> int:
        """The estimated tokens of these messages."""
        return estimate_messages(self.messages)


def close_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return a client's conversation in the form that providers accept.

    Every call has an id of its own, and exactly one result right after it. Results without a call are left out.
    """
    closed: list[Message] = []
    used: set[str] = set()
    for place, message in enumerate(messages):
        if isinstance(message, UserMessage):
            has_content = any(not isinstance(part, TextPart) or part.text.strip() for part in message.parts)
            closed.append(message if has_content else UserMessage((TextPart("(an empty message)"),)))
        if not isinstance(message, ModelMessage) or not (message.text.strip() or message.calls):
            continue
        found: dict[str, ResultMessage] = {}
        for later in messages[place + 1 :]:
            if isinstance(later, ModelMessage):
                break
            if isinstance(later, ResultMessage):
                found.setdefault(later.call_id, later)
        calls: list[Call] = []
        results: list[Message] = []
        for call in message.calls:
            call_id, result = call.id, found.get(call.id)
            while not call_id or call_id in used:
                call_id = f"{call_id or 'call'}_{len(used) + 1}"
            used.add(call_id)
            calls.append(Call(call_id, call.tool, call.arguments))
            text = result.text if result is not None and result.text.strip() else "(no result is known)"
            is_ok, parts = (result.ok, result.parts) if result is not None else (False, ())
            results.append(ResultMessage(call_id, call.tool, text, is_ok, parts))
        closed.append(replace(message, calls=tuple(calls)))
        closed.extend(results)
    return tuple(closed)
