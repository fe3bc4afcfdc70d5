"""Writes a conversation in the chat format of the loaded model. Tools are offered elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from treadle.engine.context import find_own_text, is_note
from treadle.messages import Call, Message, ModelMessage, ResultMessage, UserMessage
from treadle.models.local.llama_process import EngineFacts, LlamaEngine
from treadle.models.local.plain_reply import HINT

Role = Literal["system", "user", "assistant", "tool"]
Turn = tuple[Role, str]


class ChatPrompt:
    """Renders turns as the loaded model expects them."""

    def __init__(self, engine: LlamaEngine, facts: EngineFacts) -> None:
        self._engine = engine
        self._chatml = "<|im_start|>" in facts.template or not facts.template

    async def render(self, turns: Sequence[Turn], *, by_template: bool = False) -> str:
        """The prompt, up to where the model's next words begin. It has no results of tools.

        Templates may add a system message of their own. They are used where that is wanted, and for unknown formats.
        """
        # Templates want roles to alternate. Text must not look like a control token.
        merged: list[Turn] = []
        for role, text in turns:
            if role == "tool":
                continue
            text = text.replace("<|", "< |")
            if merged and merged[-1][0] == role:
                text = f"{merged.pop()[1]}\n\n{text}"
            merged.append((role, text))
        if self._chatml and not by_template:
            prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in merged)
            return f"{prompt}<|im_start|>assistant\n"
        messages = [{"role": role, "content": text} for role, text in merged]
        return (await self._engine.post("/apply-template", {"messages": messages}))["prompt"]


class Conversation(Struct, frozen=True):
    """A conversation in three parts: the earlier turns, the request, and the calls that were made for it."""

    earlier_turns: tuple[Turn, ...]
    request: str
    finished_calls: tuple[tuple[Call, ResultMessage], ...] = ()


def split_conversation(messages: Sequence[Message]) -> Conversation:
    """Find the last request in `messages`, and the calls since then with their results."""
    messages = [each for each in messages if not is_note(each)] or messages
    last = max((i for i, each in enumerate(messages) if isinstance(each, UserMessage)), default=0)
    first = last
    while first and isinstance(messages[first - 1], UserMessage):
        first -= 1
    request = [find_own_text(each) for each in messages[first : last + 1] if isinstance(each, UserMessage)]
    calls: dict[str, Call] = {}
    finished: list[tuple[Call, ResultMessage]] = []
    for message in messages[last:]:
        match message:
            case ModelMessage(calls=new):
                calls |= {call.id: call for call in new}
            case ResultMessage(call_id=call_id) if call_id in calls:
                finished.append((calls[call_id], message))
            case _:
                pass
    return Conversation(tuple(build_turns(messages[:first])), "\n\n".join(request), tuple(finished))


def build_turns(messages: Sequence[Message]) -> list[Turn]:
    """The messages as turns. The hint of an earlier reply is left out."""
    turns: list[Turn] = []
    for message in messages:
        match message:
            case UserMessage():
                turns.append(("user", find_own_text(message)))
            case ModelMessage(text=text) if text:
                turns.append(("assistant", text.removesuffix(HINT).rstrip()))
            case ResultMessage():
                turns.append(("tool", find_own_text(message).strip()))
            case _:
                pass
    return turns
