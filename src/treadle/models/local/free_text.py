"""Free text from the engine as deltas and a reply: sampling, limits and counts, the same for every driver."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from treadle.errors import ModelError
from treadle.events import TextDelta
from treadle.messages import FinishReason, Json, Reply, Request, Usage
from treadle.models.local import gbnf as grammar
from treadle.models.local.llama_process import CompletionPiece, LlamaEngine


def build_options(request: Request, *, temperature: float, tokens: int) -> dict[str, Json]:
    """What the engine is told about sampling; `temperature` and `tokens` are used where the request is silent."""
    sampling = request.sampling
    chosen: dict[str, Json] = {
        "temperature": temperature if sampling.temperature is None else sampling.temperature,
        "n_predict": tokens if request.max_tokens is None else request.max_tokens,
    }
    if sampling.top_p is not None:
        chosen["top_p"] = sampling.top_p
    if sampling.seed is not None:
        chosen["seed"] = sampling.seed
    if sampling.stop:
        chosen["stop"] = list(sampling.stop)
    if request.output_schema is not None:
        chosen["grammar"] = grammar.build_schema_grammar(request.output_schema)
    return chosen | sampling.extra


async def stream_text(
    engine: LlamaEngine, prompt: str, options: dict[str, Json], before: Reply
) -> AsyncGenerator[TextDelta | Reply, None]:
    """Continue `prompt`: the text as it comes, then the reply, which goes on on a new line after `before`."""
    text = ""
    last = CompletionPiece()
    earlier = f"{before.text}\n" if before.text else ""
    try:
        async with aclosing(engine.stream_pieces(prompt, options)) as pieces:
            async for last in pieces:
                if words := last.content if text else last.content.lstrip():
                    text += words
                    yield TextDelta(text=words)
    except ModelError as error:
        error.partial = earlier + text
        raise
    yield Reply(
        text=earlier + text, finish=read_finish(last), usage=_both(before.usage, read_usage(last)), model=before.model
    )


def _both(first: Usage, second: Usage) -> Usage:
    """What two prompts took: the window is filled by the longer one, not by both."""
    longer = max(first, second, key=lambda usage: usage.input_tokens)
    return Usage(longer.input_tokens, first.output_tokens + second.output_tokens, longer.cached_tokens)


def read_finish(piece: CompletionPiece) -> FinishReason:
    return "length" if piece.stop_type == "limit" else "stop"


def read_usage(piece: CompletionPiece) -> Usage:
    return Usage(piece.tokens_evaluated, piece.tokens_predicted, piece.cached_tokens)
