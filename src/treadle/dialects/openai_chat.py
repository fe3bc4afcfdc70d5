"""Replies in the format of OpenAI's Chat Completions and Completions, whole and in chunks.

A bare model's calls are handed to the client. An agent's calls run here: they are told in the extension
field `treadle`, and only its text is content.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treadle.dialects.base import ReplyText
from treadle.events import (
    LIMIT_REASONS,
    AnyFact,
    ApprovalRequested,
    CallFinished,
    CallStarted,
    Event,
    InputRequested,
    ModelFailed,
    ModelReplied,
    ReasoningDelta,
    RunFinished,
    TextDelta,
    TurnStarted,
)
from treadle.messages import FinishReason, Reply, Usage

DONE = b"[DONE]"
FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "calls": "tool_calls",
    "length": "length",
    "filter": "content_filter",
    "other": "stop",
}


class FunctionOut(Struct, frozen=True):
    name: str
    arguments: str


class ToolCallOut(Struct, frozen=True):
    id: str
    function: FunctionOut
    type: str = "function"
    index: int | UnsetType = UNSET


class ChunkDelta(Struct, frozen=True, omit_defaults=True):
    role: str = ""
    content: str | UnsetType | None = UNSET
    reasoning_content: str = ""
    tool_calls: tuple[ToolCallOut, ...] = ()


class ChunkChoice(Struct, frozen=True):
    delta: ChunkDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class ChatUsage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatChunk(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    object: str = "chat.completion.chunk"
    usage: ChatUsage | UnsetType | None = UNSET
    treadle: AnyFact | UnsetType = UNSET


class MessageOut(Struct, frozen=True):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class MessageChoice(Struct, frozen=True):
    message: MessageOut
    finish_reason: str
    index: int = 0
    logprobs: None = None


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[MessageChoice, ...]
    usage: ChatUsage
    object: str = "chat.completion"
    treadle: tuple[AnyFact, ...] | UnsetType = UNSET


class TextChoice(Struct, frozen=True):
    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class TextCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: tuple[TextChoice, ...]
    object: str = "text_completion"
    usage: ChatUsage | UnsetType | None = UNSET


class CompletionError(Struct, frozen=True):
    message: str
    type: str
    code: str
    hint: str = ""


class CompletionFailure(Struct, frozen=True):
    """What a stream says in place of an end, when a run came to none."""

    error: CompletionError


class ChatChunkDialect:
    """A reply as chunks: of a bare model's events, up to its `Reply`, or of an agent's run, up to `RunFinished`."""

    def __init__(self, completion_id: str, model: str, created: int, *, usage: bool = False) -> None:
        self._id, self._model, self._created, self._usage = completion_id, model, created, usage
        self._begun = False
        self._said = False
        self._pieces = ReplyText()

    def feed(self, event: Event | Reply) -> Sequence[ChatChunk | CompletionFailure]:
        """The chunks that an event amounts to."""
        match event:
            case TextDelta():
                self._said = True
                self._pieces.add(event.text)
                return (self._chunk(ChunkDelta(content=event.text)),)
            case ReasoningDelta():
                return (self._chunk(ChunkDelta(reasoning_content=event.text)),)
            case Reply():
                return self._replied(event)
            case TurnStarted():  # a reader without the extension field still sees where a turn ends
                self._pieces.clear()
                return (self._chunk(ChunkDelta(content="\n\n")),) if self._said and event.turn > 1 else ()
            case ModelFailed():
                self._pieces.clear()
                return ()
            case ModelReplied():
                rest = self._pieces.take_rest(event.text)
                self._said = self._said or bool(rest)
                return (self._chunk(ChunkDelta(content=rest)),) if rest else ()
            case CallStarted() | CallFinished() | ApprovalRequested() | InputRequested():
                return (self._chunk(ChunkDelta(), treadle=event),)
            case RunFinished() if trouble := describe_failed_run(event):
                return (self._chunk(ChunkDelta(), treadle=event), CompletionFailure(trouble))
            case RunFinished():
                said = () if self._said or not event.answer else (self._chunk(ChunkDelta(content=event.answer)),)
                ending = self._chunk(ChunkDelta(), finish=map_finish_reason(event), treadle=event)
                return (*said, ending, *self._last(event.usage))
            case _:
                return ()

    def _replied(self, reply: Reply) -> Sequence[ChatChunk]:
        calls = () if not reply.calls else (self._chunk(ChunkDelta(tool_calls=_calls(reply, indexed=True))),)
        return (*calls, self._chunk(ChunkDelta(), finish=FINISH_REASONS[reply.finish]), *self._last(reply.usage))

    def _last(self, usage: Usage) -> Sequence[ChatChunk]:
        if not self._usage:
            return ()
        return (ChatChunk(self._id, self._created, self._model, (), usage=build_usage(usage)),)

    def _chunk(self, delta: ChunkDelta, finish: str | None = None, treadle: AnyFact | UnsetType = UNSET) -> ChatChunk:
        if not self._begun:
            self._begun = True
            content = "" if delta.content is UNSET else delta.content
            delta = msgspec.structs.replace(delta, role="assistant", content=content)
        choice = ChunkChoice(delta, finish)
        return ChatChunk(
            self._id, self._created, self._model, (choice,), usage=None if self._usage else UNSET, treadle=treadle
        )


class TextChunkDialect:
    """A reply as chunks of the old Completions, which have text and nothing else: a chat's chunks without the rest."""

    def __init__(self, completion_id: str, model: str, created: int, *, usage: bool = False) -> None:
        self._chat = ChatChunkDialect(completion_id, model, created, usage=usage)

    def feed(self, event: Event | Reply) -> Sequence[TextCompletion | CompletionFailure]:
        """The chunks that an event amounts to."""
        return [
            _as_text(chunk)
            for chunk in self._chat.feed(event)
            if isinstance(chunk, CompletionFailure) or _has_text(chunk)
        ]


def _has_text(chunk: ChatChunk) -> bool:
    choices = chunk.choices
    return not choices or bool(choices[0].delta.content) or choices[0].finish_reason is not None


def _as_text(chunk: ChatChunk | CompletionFailure) -> TextCompletion | CompletionFailure:
    if isinstance(chunk, CompletionFailure):
        return chunk
    choices = tuple(TextChoice(choice.delta.content or "", choice.finish_reason) for choice in chunk.choices)
    return TextCompletion(chunk.id, chunk.created, chunk.model, choices, usage=chunk.usage)


def build_chat_completion(completion_id: str, model: str, created: int, reply: Reply) -> ChatCompletion:
    """A bare model's reply, whole."""
    message = MessageOut(
        reply.text if reply.text or not reply.calls else None,
        tool_calls=_calls(reply) if reply.calls else UNSET,
        reasoning_content=reply.reasoning or UNSET,
    )
    choice = MessageChoice(message, FINISH_REASONS[reply.finish])
    return ChatCompletion(completion_id, created, model, (choice,), build_usage(reply.usage))


def build_agent_completion(
    completion_id: str, model: str, created: int, ending: RunFinished, activity: Sequence[AnyFact]
) -> ChatCompletion:
    """An agent's answer, whole, with what its tools did in the extension field."""
    choice = MessageChoice(MessageOut(ending.answer), map_finish_reason(ending))
    return ChatCompletion(
        completion_id, created, model, (choice,), build_usage(ending.usage), treadle=(*activity, ending)
    )


def build_text_completion(completion_id: str, model: str, created: int, reply: Reply | RunFinished) -> TextCompletion:
    """A model's reply to a bare prompt, or an agent's answer, whole."""
    text, finish = (
        (reply.text, FINISH_REASONS[reply.finish])
        if isinstance(reply, Reply)
        else (reply.answer, map_finish_reason(reply))
    )
    return TextCompletion(completion_id, created, model, (TextChoice(text, finish),), usage=build_usage(reply.usage))


def describe_failed_run(ending: RunFinished) -> CompletionError | None:
    """What to say of a run that has no answer, not even part of one, because it failed or was cancelled."""
    if ending.reason not in ("failed", "cancelled"):
        return None
    kind = "run_failed" if ending.reason == "failed" else "cancelled"
    return CompletionError(ending.error or f"the run was {ending.reason}", kind, kind)


def map_finish_reason(ending: RunFinished) -> str:
    """An ending as `finish_reason`: a limit is `length`; the exact reason is in the extension field."""
    if ending.reason in LIMIT_REASONS:
        return "length"
    return "content_filter" if ending.reason == "failed" and "content filter" in ending.error else "stop"


def build_usage(usage: Usage) -> ChatUsage:
    return ChatUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens + usage.output_tokens,
        {"cached_tokens": usage.cached_tokens},
        {"reasoning_tokens": usage.reasoning_tokens},
    )


def _calls(reply: Reply, *, indexed: bool = False) -> tuple[ToolCallOut, ...]:
    return tuple(
        ToolCallOut(
            call.id or f"call_{index}",
            FunctionOut(call.tool, call.arguments),
            index=index if indexed else UNSET,
        )
        for index, call in enumerate(reply.calls)
    )
