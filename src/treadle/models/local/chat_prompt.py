"""The words a model is given: a conversation in its own chat format. Not where tools are offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from treadle.engine.context import find_own_text
from treadle.messages import Call, Message, ModelMessage, ResultMessage, UserMessage
from treadle.models.local.llama_process import EngineFacts, LlamaEngine

Role = Literal["system", "user", "assistant"]
Turn = tuple[Role, str]


class ChatPrompt:
    """Writes turns as the loaded model expects them."""

    def __init__(self, engine: LlamaEngine, facts: EngineFacts) -> None:
        self._engine = engine
        self._chatml = "<|im_start|>" in facts.template or not facts.template

    async def render(self, turns: Sequence[Turn]) -> str:
        """The conversation up to where the model's next words begin."""
        # Templates want roles to alternate, and text must not be able to pose as a control token.
        merged: list[Turn] = []
        for role, text in turns:
            text = text.replace("<|", "< |")
            if merged and merged[-1][0] == role:
                text = f"{merged.pop()[1]}\n\n{text}"
            merged.append((role, text))
        if self._chatml:
            # By hand, because templates of this family add a system message that was not asked for.
            written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in merged)
            return f"{written}<|im_start|>assistant\n"
        messages = [{"role": role, "content": text} for role, text in merged]
        return (await self._engine.post("/apply-template", {"messages": messages}))["prompt"]


class Conversation(Struct, frozen=True):
    """A conversation as a small model can take it: what went before, what is asked now, what was done about it."""

    earlier_turns: tuple[Turn, ...]
    request: str
    finished_calls: tuple[tuple[Call, ResultMessage], ...] = ()


def split_conversation(messages: Sequence[Message]) -> Conversation:
    """Find the last request in `messages`, and the calls made since with their results."""
    asked_at = max((i for i, each in enumerate(messages) if isinstance(each, UserMessage)), default=0)
    first = asked_at
    while first and isinstance(messages[first - 1], UserMessage):
        first -= 1
    asked = [find_own_text(each) for each in messages[first : asked_at + 1] if isinstance(each, UserMessage)]
    calls: dict[str, Call] = {}
    done: list[tuple[Call, ResultMessage]] = []
    for message in messages[asked_at:]:
        match message:
            case ModelMessage(calls=made):
                calls |= {call.id: call for call in made}
            case ResultMessage(call_id=call_id) if call_id in calls:
                done.append((calls[call_id], message))
            case _:
                pass
    return Conversation(tuple(build_turns(messages[:first])), "\n\n".join(asked), tuple(done))


def build_turns(messages: Sequence[Message]) -> list[Turn]:
    """The messages as turns; a call and its result stand as one line of what was found."""
    written: list[Turn] = []
    for message in messages:
        match message:
            case UserMessage():
                written.append(("user", find_own_text(message)))
            case ModelMessage(text=said) if said:
                written.append(("assistant", said))
            case ResultMessage(tool=tool):
                written.append(("assistant", f"{tool}: {find_own_text(message).strip()}"))
            case _:
                pass
    return written
