"""Replies in the formats of OpenAI's Chat Completions and Completions, whole and in chunks.

A bare model's calls are handed to the client. An agent's calls run here: only the agent's text is content, and its
calls are sent in the extension field `treadle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treadle import events
from treadle.dialects.base import FINISH_REASONS, Activity, EventTracker, ReplyFormat, RunExtension
from treadle.dialects.openai_requests import FunctionCall
from treadle.messages import Json, Reply, Usage

UsageDocument: TypeAlias = dict[str, int | dict[str, int]]


class ToolCallOut(Struct, frozen=True):
    """A call for the client to run. Only chunks have an `index`."""

    id: str
    function: FunctionCall
    type: str = "function"
    index: int | UnsetType = UNSET


class ChunkDelta(Struct, frozen=True, omit_defaults=True):
    """What one chunk adds to the message."""

    role: str = ""
    content: str | UnsetType | None = UNSET
    reasoning_content: str = ""
    tool_calls: tuple[ToolCallOut, ...] = ()
    function_call: FunctionCall | None = None


class ChoiceLogprobs(Struct, frozen=True):
    """The log-probabilities of a choice's tokens."""

    content: tuple[Json, ...]
    refusal: None = None


class ChunkChoice(Struct, frozen=True):
    """The one choice of a chunk."""

    delta: ChunkDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChoiceLogprobs | None = None


class CompletionDocument(Struct, frozen=True):
    """The fields that every completion begins with."""

    id: str
    created: int
    model: str


class ChatChunk(CompletionDocument, frozen=True):
    """One streamed piece of a chat completion."""

    choices: tuple[ChunkChoice, ...]
    object: str = "chat.completion.chunk"
    usage: UsageDocument | UnsetType | None = UNSET
    treadle: RunExtension | UnsetType = UNSET


class MessageOut(Struct, frozen=True):
    """The assistant's message, whole."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class MessageChoice(Struct, frozen=True):
    """One choice of a chat completion."""

    message: MessageOut
    finish_reason: str
    index: int = 0
    logprobs: ChoiceLogprobs | None = None


class ChatCompletion(CompletionDocument, frozen=True):
    """A chat completion, whole."""

    choices: tuple[MessageChoice, ...]
    usage: UsageDocument
    object: str = "chat.completion"
    treadle: RunExtension | UnsetType = UNSET


class TextLogprobs(Struct, frozen=True):
    """The log-probabilities of a text's tokens, in the old form."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Struct, frozen=True):
    """One choice of a text completion."""

    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: TextLogprobs | None = None


class TextCompletion(CompletionDocument, frozen=True):
    """A text completion: whole, or one chunk of it."""

    choices: tuple[TextChoice, ...]
    object: str = "text_completion"
    usage: UsageDocument | UnsetType | None = UNSET
    treadle: RunExtension | UnsetType = UNSET


class CompletionError(Struct, frozen=True):
    """Why there is no answer."""

    message: str
    type: str
    code: str
    hint: str = ""


class CompletionFailure(Struct, frozen=True):
    """What a stream sends in place of an end when the run has no answer."""

    error: CompletionError


class ChatChunkDialect(ReplyFormat):
    """A reply in the format of Chat Completions. The first chunk carries the role.

    `index` is the number of the choice. With `old_calls` a call is a `function_call`, as in the old form of tools.
    """

    def __init__(
        self,
        completion_id: str,
        model: str,
        created: int,
        *,
        usage: bool = False,
        index: int = 0,
        old_calls: bool = False,
    ) -> None:
        self._id, self._model, self._created, self._has_usage = completion_id, model, created, usage
        self._index, self._has_old_calls = index, old_calls
        self._has_begun = False
        self.texts: list[str] = []
        """The pieces of the text so far."""
        self._reasoning: list[str] = []
        self._tracker = EventTracker()

    def begin(self) -> Sequence[ChatChunk]:
        return (self._build_chunk(ChunkDelta()),) if self.session_id else ()

    def feed(self, event: events.Event | Reply) -> Sequence[ChatChunk | CompletionFailure]:
        if text := self._tracker.track(event):
            self.texts.append(text)
            logprobs = event.logprobs if isinstance(event, events.TextDelta) else ()
            return (self._build_chunk(ChunkDelta(content=text), logprobs=logprobs),)
        match event:
            case events.ReasoningDelta():
                self._reasoning.append(event.text)
                return (self._build_chunk(ChunkDelta(reasoning_content=event.text)),)
            case Reply():
                calls = _build_calls(reply=event, indexed=True)
                added = ChunkDelta(tool_calls=calls)
                if calls and self._has_old_calls:
                    added = ChunkDelta(function_call=calls[0].function)
                return (
                    *([self._build_chunk(added)] if calls else ()),
                    self._build_chunk(ChunkDelta(), finish=self._map_finish(event)),
                    *self._build_usage_chunk(event.usage),
                )
            case events.TurnStarted() if self.texts and event.turn > 1:  # separates the turns in the client's text
                self.texts.append("\n\n")
                return (self._build_chunk(ChunkDelta(content="\n\n")),)
            case events.RunFinished() if failure := describe_failed_run(event):
                return (self._build_chunk(ChunkDelta(), event=event), CompletionFailure(failure))
            case events.RunFinished():
                answer = event.answer if not self.texts else ""
                self.texts += [answer]
                return (
                    *([self._build_chunk(ChunkDelta(content=answer))] if answer else ()),
                    self._build_chunk(ChunkDelta(), finish=map_finish_reason(event), event=event),
                    *self._build_usage_chunk(event.usage),
                )
            case _:
                return (self._build_chunk(ChunkDelta(), event=event),) if isinstance(event, Activity) else ()

    def complete_reply(self, reply: Reply) -> ChatCompletion:
        calls = _build_calls(reply)
        is_old = self._has_old_calls and bool(calls)
        message = MessageOut(
            reply.text if reply.text or not calls else None,
            tool_calls=calls if calls and not is_old else UNSET,
            reasoning_content=reply.reasoning or UNSET,
            function_call=calls[0].function if is_old else UNSET,
        )
        logprobs = ChoiceLogprobs(reply.logprobs) if reply.logprobs else None
        choice = MessageChoice(message, self._map_finish(reply), self._index, logprobs)
        usage = build_usage(reply.usage)
        return ChatCompletion(self._id, self._created, self._model, (choice,), usage)

    def complete_run(self, ending: events.RunFinished | Reply, activity: Sequence[events.AnyFact]) -> ChatCompletion:
        self.feed(ending)
        text, reasoning = "".join(self.texts), "".join(self._reasoning)
        if isinstance(ending, Reply):
            extension = RunExtension(self.session_id, events=tuple(activity))
            reply = msgspec.structs.replace(ending, text=text, reasoning=reasoning)
            return msgspec.structs.replace(self.complete_reply(reply), treadle=extension)
        message = MessageOut(text, reasoning_content=reasoning or UNSET)
        extension = RunExtension(self.session_id, events=(*activity, ending))
        return ChatCompletion(
            self._id,
            self._created,
            self._model,
            (MessageChoice(message, map_finish_reason(ending)),),
            build_usage(ending.usage),
            treadle=extension,
        )

    def _map_finish(self, reply: Reply) -> str:
        return "function_call" if self._has_old_calls and reply.finish == "calls" else FINISH_REASONS[reply.finish]

    def _build_usage_chunk(self, usage: Usage) -> Sequence[ChatChunk]:
        if not self._has_usage:
            return ()
        return (ChatChunk(self._id, self._created, self._model, (), usage=build_usage(usage)),)

    def _build_chunk(
        self,
        delta: ChunkDelta,
        finish: str | None = None,
        event: events.AnyFact | None = None,
        logprobs: tuple[Json, ...] = (),
    ) -> ChatChunk:
        is_extended = self.session_id and (event is not None or not self._has_begun)
        treadle = RunExtension(self.session_id, event) if is_extended else UNSET
        if not self._has_begun:
            self._has_begun = True
            content = "" if delta.content is UNSET else delta.content
            delta = msgspec.structs.replace(delta, role="assistant", content=content)
        choice = ChunkChoice(delta, finish, self._index, ChoiceLogprobs(logprobs) if logprobs else None)
        usage = None if self._has_usage else UNSET
        return ChatChunk(self._id, self._created, self._model, (choice,), usage=usage, treadle=treadle)


class TextChunkDialect(ReplyFormat):
    """A reply in the format of the old Completions, which have only text. `prefix` is text that goes before it."""

    def __init__(
        self, completion_id: str, model: str, created: int, *, usage: bool = False, index: int = 0, prefix: str = ""
    ) -> None:
        self._id, self._model, self._created = completion_id, model, created
        self._index, self._prefix, self._length = index, prefix, 0
        self._chat = ChatChunkDialect(completion_id, model, created, usage=usage)

    def feed(self, event: events.Event | Reply) -> Sequence[TextCompletion | CompletionFailure]:
        """The chunks of one event: those of a chat that have text, an end or the usage."""
        self._chat.session_id = self.session_id
        chunks: list[TextCompletion | CompletionFailure] = []
        for chunk in self._chat.feed(event):
            if isinstance(chunk, CompletionFailure):
                chunks.append(chunk)
                continue
            choices = tuple(map(self._build_choice, chunk.choices))
            if all(choice.text or choice.finish_reason is not None for choice in choices):
                document = TextCompletion(
                    chunk.id, chunk.created, chunk.model, choices, usage=chunk.usage, treadle=chunk.treadle
                )
                chunks.append(document)
        return chunks

    def complete_reply(self, reply: Reply) -> TextCompletion:
        document = self._complete(reply.text, FINISH_REASONS[reply.finish], reply.usage)
        logprobs = _build_text_logprobs(reply.logprobs, len(self._prefix)) if reply.logprobs else None
        choice = msgspec.structs.replace(document.choices[0], logprobs=logprobs)
        return msgspec.structs.replace(document, choices=(choice,))

    def complete_run(self, ending: events.RunFinished | Reply, activity: Sequence[events.AnyFact]) -> TextCompletion:
        self.feed(ending)
        text = "".join(self._chat.texts)
        if isinstance(ending, Reply):  # this format has no calls
            return self.complete_reply(msgspec.structs.replace(ending, text=text))
        document = self._complete(text, map_finish_reason(ending), ending.usage)
        return msgspec.structs.replace(document, treadle=RunExtension(self.session_id, events=(*activity, ending)))

    def _complete(self, text: str, finish: str, usage: Usage) -> TextCompletion:
        choice = TextChoice(self._prefix + text, finish, self._index)
        return TextCompletion(self._id, self._created, self._model, (choice,), usage=build_usage(usage))

    def _build_choice(self, choice: ChunkChoice) -> TextChoice:
        text = choice.delta.content or ""
        if not self._length:
            text = self._prefix + text
        logprobs = choice.logprobs and _build_text_logprobs(choice.logprobs.content, self._length)
        self._length += len(text)
        return TextChoice(text, choice.finish_reason, self._index, logprobs)


class ChoiceSet:
    """Several replies as the choices of one completion. `dialects` has one format for each choice."""

    end_mark = b"[DONE]"

    def __init__(self, dialects: Sequence[ChatChunkDialect] | Sequence[TextChunkDialect]) -> None:
        self._dialects, self._open = dialects, len(dialects)
        self._usage = Usage()

    def feed(self, number: int, event: events.Event | Reply) -> Sequence[Struct]:
        """The chunks of one event of the choice `number`. The usage of all choices follows the last of them."""
        if not isinstance(event, Reply):
            return self._dialects[number].feed(event)
        self._usage += event.usage
        self._open -= 1
        chunks = self._dialects[number].feed(msgspec.structs.replace(event, usage=self._usage))
        return [chunk for chunk in chunks if not self._open or getattr(chunk, "choices", True)]

    def complete(self, replies: Sequence[Reply]) -> Struct:
        """The whole document of all replies, in the order of the choices."""
        documents = [dialect.complete_reply(reply) for dialect, reply in zip(self._dialects, replies, strict=True)]
        usage = build_usage(sum((reply.usage for reply in replies), Usage()))
        choices = tuple(document.choices[0] for document in documents)
        return msgspec.structs.replace(documents[0], choices=choices, usage=usage)


def describe_failed_run(ending: events.RunFinished) -> CompletionError | None:
    """The error of a run that failed or was cancelled; None for a run with an answer or part of one."""
    if ending.reason not in ("failed", "cancelled"):
        return None
    kind = "run_failed" if ending.reason == "failed" else "cancelled"
    return CompletionError(ending.error or f"the run was {ending.reason}", kind, kind)


def map_finish_reason(ending: events.RunFinished) -> str:
    """An ending as `finish_reason`: a limit is `length`. The exact reason is in the extension field."""
    if ending.reason in events.LIMIT_REASONS:
        return "length"
    return "content_filter" if ending.reason == "failed" and "content filter" in ending.error else "stop"


def build_usage(usage: Usage, read: str = "prompt", written: str = "completion") -> UsageDocument:
    """Tokens in OpenAI's form. Its formats have different names for the tokens `read` and `written`."""
    return {
        f"{read}_tokens": usage.input_tokens,
        f"{written}_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        f"{read}_tokens_details": {"cached_tokens": usage.cached_tokens},
        f"{written}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _build_text_logprobs(entries: Sequence[Json], offset: int) -> TextLogprobs:
    """Log-probabilities in the old form. `offset` is where the first token begins in the text."""
    tokens = [str(entry["token"]) for entry in entries]
    likeliest = [{str(one["token"]): one["logprob"] for one in entry.get("top_logprobs") or ()} for entry in entries]
    offsets = [*accumulate((len(token) for token in tokens), initial=offset)][:-1]
    return TextLogprobs(tokens, [entry["logprob"] for entry in entries], likeliest, offsets)


def _build_calls(reply: Reply, *, indexed: bool = False) -> tuple[ToolCallOut, ...]:
    return tuple(
        ToolCallOut(
            call.id or f"call_{index}", FunctionCall(call.tool, call.arguments), index=index if indexed else UNSET
        )
        for index, call in enumerate(reply.calls)
    )
