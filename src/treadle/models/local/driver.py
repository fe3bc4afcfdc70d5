"""The base of the engine's drivers: sampling options, free text as deltas and a reply, one call as a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing

from treadle.errors import ModelError
from treadle.events import CallDelta
from treadle.messages import Call, Json, Reply, Request, Usage
from treadle.models.base import ModelEvent
from treadle.models.local import gbnf
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.llama_process import CompletionPiece, LlamaEngine
from treadle.models.local.plain_reply import SentenceReader
from treadle.models.reply_reader import ReplyBuilder
from treadle.models.request_options import OptionTable, write_options, write_to
from treadle.models.wire_format import new_call_id

TEMPERATURE = 0.3
"""For models that write calls themselves, where the request names none."""

_OPTIONS: OptionTable = {
    **{name: write_to(name) for name in ("frequency_penalty", "ignore_eos", "min_p", "presence_penalty", "top_k")},
    "chat_template_kwargs": write_to("chat_template_kwargs"),
    "logit_bias": write_to("logit_bias"),
    "logprobs": lambda asked: {},
    "repetition_penalty": write_to("repeat_penalty"),
    "top_logprobs": lambda count: {"n_probs": count} if count else {},
    "typical_p": write_to("typical_p"),
}
_OWN_FIELDS = frozenset(
    (
        "prompt",
        "messages",
        "stream",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "n_predict",
        "max_tokens",
        "cache_prompt",
        "id_slot",
        "lora",
        "n",
        "n_keep",
        "n_probs",
        "post_sampling_probs",
        "response_fields",
    )
)


class Driver(ABC):
    """A way to get calls and answers from the engine. `name` is the model's name in its replies."""

    def __init__(self, engine: LlamaEngine, name: str, chat: ChatPrompt) -> None:
        self._engine = engine
        self._name = name
        self._chat = chat

    @abstractmethod
    def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]: ...

    def _build_call(self, tool: str, arguments: str, usage: Usage) -> tuple[CallDelta, Reply]:
        call = Call(new_call_id(), tool, arguments)
        reply = Reply(calls=(call,), finish="calls", usage=usage, model=self._name)
        return CallDelta(index=0, tool=tool, arguments=arguments), reply

    async def _stream_text(
        self,
        prompt: str,
        options: dict[str, Json],
        before: Reply | None = None,
        sentences: SentenceReader | None = None,
    ) -> AsyncGenerator[ModelEvent, None]:
        """Continue `prompt`: the text as it comes, then the reply. Its text begins on a new line after `before`.

        Where `sentences` reads the text, the reply ends before a sentence that was there already.
        """
        before = before or Reply()
        builder = ReplyBuilder()
        has_begun = False
        last = CompletionPiece()
        earlier = f"{before.text}\n" if before.text else ""
        try:
            async with aclosing(self._engine.stream_pieces(prompt, options)) as pieces:
                async for last in pieces:
                    builder.logprobs += [position.describe() for position in last.completion_probabilities]
                    words = last.content if has_begun else last.content.lstrip()
                    has_begun = has_begun or bool(words)
                    if words := sentences.feed(words) if sentences else words:
                        builder.add_text(words)
                        for delta in builder.take_deltas():
                            yield delta
                    if sentences and sentences.has_repeated:
                        break
        except ModelError as error:
            error.partial = earlier + builder.join_text()
            raise
        if sentences:
            builder.add_text(sentences.finish(is_cut_off=last.finish == "length"))
        for delta in builder.finish():
            yield delta
        text, reasoning = builder.join_texts()
        # Only the longer prompt counts as input: the window holds one of them at a time.
        used = last.usage
        longer = max(before.usage, used, key=lambda usage: usage.input_tokens)
        output = before.usage.output_tokens + used.output_tokens
        usage = Usage(longer.input_tokens, output, longer.cached_tokens)
        logprobs = (*before.logprobs, *builder.logprobs)
        finish = "stop" if sentences else last.finish
        yield Reply(earlier + text, reasoning, finish=finish, usage=usage, model=self._name, logprobs=logprobs)


def build_options(request: Request, *, temperature: float, tokens: int) -> dict[str, Json]:
    """The engine's sampling options. `temperature` and `tokens` are used where the request sets none."""
    sampling = request.sampling
    options: dict[str, Json] = {
        "temperature": temperature if sampling.temperature is None else sampling.temperature,
        "n_predict": tokens if request.max_tokens is None else request.max_tokens,
    }
    more: dict[str, Json] = {"top_p": sampling.top_p, "seed": sampling.seed, "stop": list(sampling.stop) or None}
    options |= {name: value for name, value in more.items() if value is not None}
    if request.output_schema is not None:
        options["grammar"] = gbnf.build_schema_grammar(request.output_schema)
    if sampling.extra.get("logprobs"):
        options["n_probs"] = 1
    return options | write_options(sampling.extra, _OPTIONS, "the embedded model", ignored=_OWN_FIELDS)
