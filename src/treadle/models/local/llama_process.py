"""Runs llama.cpp in a child process and talks to it over a private socket. Knows no messages and no tools.

It is a process and not a thread: loading blocks the interpreter, and only killing a process is sure to unload.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from treadle.errors import ModelError
from treadle.messages import FinishReason, Json, Usage
from treadle.models.base import EmbeddingInput, Embeddings
from treadle.models.local.engine_process import EngineFacts, EngineProcess, OwnProcess
from treadle.models.local.kept_process import join_or_start
from treadle.models.local.load_progress import Progress
from treadle.models.local.unix_http import UnixResponse, open_exchange
from treadle.models.reply_reader import MessageDecoder, MessageStream

Prompt = str | list[str | int]
"""Text, or a mix of text and token ids."""

CACHE_MIB = 512
BATCH = 128
"""Tokens that are read at once. A batch cannot be interrupted: with small ones a cancel takes about a second."""

LARGEST_WINDOW = 8192
ANSWER_SECONDS = 5.0

_logger = logging.getLogger("treadle")


class _Timings(Struct):
    cache_n: int = 0


class _Probability(Struct):
    id: int
    prob: float


class _Position(Struct):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None
    top_logprobs: list[Json] = field(default_factory=list[Json])
    top_probs: list[_Probability] = field(default_factory=list[_Probability])

    def describe(self) -> Json:
        """The log-probabilities of this token, in the form of Chat Completions."""
        names = ("token", "logprob", "bytes")
        likeliest = [{name: entry.get(name) for name in names} for entry in self.top_logprobs]
        return {"token": self.token, "logprob": self.logprob, "bytes": self.bytes, "top_logprobs": likeliest}


class CompletionPiece(Struct):
    """A piece of a completion. The last one has `stop` set and the counts."""

    content: str = ""
    stop: bool = False
    stop_type: str = ""
    tokens_evaluated: int = 0
    tokens_predicted: int = 0
    timings: _Timings = field(default_factory=_Timings)
    completion_probabilities: list[_Position] = field(default_factory=list[_Position])
    error: Json = None

    @property
    def usage(self) -> Usage:
        return Usage(self.tokens_evaluated, self.tokens_predicted, self.timings.cache_n)

    @property
    def finish(self) -> FinishReason:
        return "length" if self.stop_type == "limit" else "stop"


_PIECES = MessageDecoder(CompletionPiece)


class LlamaEngine:
    """One GGUF file. It is loaded when it is first needed, and again after its process has died."""

    def __init__(self, path: Path, *, slots: int = 4, context: int | None = None, keep_loaded: float = 0) -> None:
        self.path = path
        self._keep_loaded = keep_loaded
        self._slots = slots
        self._context = context or LARGEST_WINDOW
        # All slots share the cells: sessions are rarely long at the same time, and each cell takes memory.
        self._cells = self._context * min(slots, 2)
        self._used = 0
        self._child: EngineProcess | None = None
        self._lock = threading.Lock()

    @property
    def facts(self) -> EngineFacts | None:
        """The facts of the loaded engine, or None when it is not loaded."""
        return self._child.facts if self._child and self._child.is_alive else None

    @property
    def memory(self) -> int:
        """Bytes of memory that the engine's process takes, 0 when it is not loaded."""
        return self._child.read_memory() if self._child and self._child.is_alive else 0

    def stop(self) -> None:
        """End the process and free its memory, also of an engine that stays loaded. The next request loads it again."""
        with self._lock:
            child, self._child = self._child, None
        if child:
            child.stop()

    def release(self) -> None:
        """Stop using the process. It ends, unless it stays loaded for others."""
        with self._lock:
            child, self._child = self._child, None
        if child:
            child.release()

    async def load(self, progress: Progress | None = None) -> EngineFacts:
        """Load the model if it is not loaded, and wait until it can answer."""
        child = self._get_child()
        began = time.monotonic()
        while child.facts is None:
            try:
                child.facts = await asyncio.wait_for(child.fetch_facts(), ANSWER_SECONDS)
            except (OSError, EOFError):
                if not child.is_alive and child.was_running:
                    child = self._get_child()  # it was ending already when this process joined it
                elif not child.is_alive:
                    raise ModelError(
                        f"The engine could not load {self.path}. Is it a GGUF file of a model that this "
                        f"llama.cpp knows, and is there memory for it? Its log ends with: {child.read_log_end()}"
                    ) from None
            if child.facts is None:
                await asyncio.sleep(0.05)
                # An engine that is loaded already answers within this time, and then there is nothing to report.
                if progress and time.monotonic() - began > 0.3 and self.path.exists():
                    size = self.path.stat().st_size
                    progress("load", min(child.read_memory(), size), size)
                if child.is_stuck:
                    _logger.warning(
                        "The engine that was kept loaded (process %d) does not answer. Loading another one for this "
                        "command; `treadle models unload` ends the first.",
                        child.pid,
                    )
                    self.release()
                    self._keep_loaded = 0
                    child = self._get_child()
        return child.facts

    async def stream_pieces(self, prompt: Prompt, options: dict[str, Json]) -> AsyncGenerator[CompletionPiece, None]:
        """Complete `prompt`, piece by piece."""
        stream = MessageStream(_PIECES)
        body = _build_body(prompt, options, stream=True)
        async with contextlib.aclosing(self.stream_blocks("/completion", body)) as blocks:
            async for block in blocks:
                for piece in stream.feed(block):
                    if piece.error:
                        raise build_refusal(piece.error)
                    yield piece

    async def complete(self, prompt: Prompt, options: dict[str, Json]) -> CompletionPiece:
        """Complete `prompt`: the whole text, with the counts."""
        return msgspec.convert(await self.post("/completion", _build_body(prompt, options)), CompletionPiece)

    async def score_tokens(self, prompt: Prompt, tokens: Sequence[int]) -> dict[int, float]:
        """Log-probabilities of `tokens` after `prompt`, as if no other token could follow."""
        # The same large bias on all of them keeps their proportions and excludes every other token.
        bias = [[token, 100] for token in tokens]
        options: dict[str, Json] = {
            "n_predict": 1, "temperature": 1, "samplers": ["temperature"], "logit_bias": bias,
            "n_probs": len(bias), "post_sampling_probs": True,
        }  # fmt: skip
        positions = (await self.complete(prompt, options)).completion_probabilities
        found = {each.id: each.prob for each in positions[0].top_probs} if positions else {}
        return {token: math.log(max(found.get(token, 0.0), 1e-30)) for token in tokens}

    async def tokenize(self, text: str) -> list[int]:
        """The ids of the tokens of `text`."""
        return (await self.post("/tokenize", {"content": text}))["tokens"]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return (await self.post("/detokenize", {"tokens": tokens}))["content"]

    async def embed(self, inputs: Sequence[EmbeddingInput]) -> Embeddings:
        """One vector of length 1 for each input. A long text gets the mean over its parts."""
        # The engine embeds at most one batch at once.
        tokens = [list(await self.tokenize(each) if isinstance(each, str) else each) or [0] for each in inputs]
        parts = [
            (i, each[start : start + BATCH]) for i, each in enumerate(tokens) for start in range(0, len(each), BATCH)
        ]
        answer = await self.post("/v1/embeddings", {"input": [part for _, part in parts]})
        found: dict[int, list[float]] = {each["index"]: each["embedding"] for each in answer["data"]}
        sums = [[0.0] * len(found[0]) for _ in inputs]
        for number, (i, part) in enumerate(parts):
            sums[i] = [a + b * len(part) for a, b in zip(sums[i], found[number], strict=True)]
        lengths = [math.sqrt(sum(each * each for each in vector)) or 1.0 for vector in sums]
        vectors = [[each / length for each in vector] for vector, length in zip(sums, lengths, strict=True)]
        return Embeddings(vectors, sum(map(len, tokens)))

    async def post(self, path: str, body: Json) -> Json:
        """Send one request and return its JSON response."""
        async with self._open_exchange(path, body) as response:
            return msgspec.json.decode(await response.read())

    async def stream_blocks(self, path: str, body: Json) -> AsyncGenerator[bytes, None]:
        """Send one request and stream the bytes of its response. Closing the iterator stops the generation."""
        async with self._open_exchange(path, body) as response:
            async for block in response.iterate_blocks():
                yield block

    @contextlib.asynccontextmanager
    async def _open_exchange(self, path: str, body: Json) -> AsyncGenerator[UnixResponse, None]:
        facts = await self.load()
        child = self._get_child()
        # An upper bound for the cells that a request can fill: a token has at least two bytes.
        read = body.get("prompt") or body.get("input") or [body.get("messages"), body.get("tools")]
        most = body.get("n_predict", body.get("max_tokens", 0))
        cells = facts.window if most < 0 else min(facts.window, len(msgspec.json.encode(read)) // 2 + most)
        try:
            async with self._reserve(cells), open_exchange(child.socket, path, body, child.key) as response:
                if response.status != 200:
                    error = await response.read()
                    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
                        error = msgspec.json.decode(error)["error"]
                    raise build_refusal(error)
                yield response
        except (OSError, EOFError) as error:
            await child.wait_for_end()
            raise ModelError(
                f"The engine of {self.path.name} stopped during the request ({error}). "
                f"The next request starts it again. {child.read_log_end()}".strip(),
                retryable=True,
            ) from error

    @contextlib.asynccontextmanager
    async def _reserve(self, cells: int) -> AsyncGenerator[None, None]:
        """Reserve cells, and wait until they are free: sessions that need more than all cells would all fail."""
        # A condition of asyncio belongs to one event loop, and an engine may serve several. So this is polled.
        while not self._change_used(cells):  # noqa: ASYNC110 - requests of several loops share it
            await asyncio.sleep(0.02)
        try:
            yield
        finally:
            self._change_used(-cells)

    def _change_used(self, cells: int) -> bool:
        with self._lock:
            fits = self._used + cells <= self._cells or cells <= 0
            self._used += cells if fits else 0
            return fits

    def _get_child(self) -> EngineProcess:
        with self._lock:
            if self._child is None or not self._child.is_alive:
                if self._child:
                    self._child.release()
                if importlib.util.find_spec("xllamacpp") is None:
                    message = "The embedded model needs llama.cpp: pip install 'treadle[local]'"
                    raise ModelError(message, kind="bad_request")
                settings: dict[str, Json] = {
                    "path": str(self.path.resolve()),
                    "slots": self._slots,
                    "window": self._context,
                    "cells": self._cells,
                    "batch": BATCH,
                    "threads": max(1, count_cores() - 1),
                    "cache_mib": CACHE_MIB,
                }
                kept = join_or_start(settings, self._keep_loaded) if self._keep_loaded else None
                self._child = kept or OwnProcess(settings)
            return self._child


def count_cores() -> int:
    """How many processors this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def _build_body(prompt: Prompt, options: dict[str, Json], stream: bool = False) -> dict[str, Json]:
    return {"prompt": prompt, **options, "stream": stream, "cache_prompt": True}


def build_refusal(error: Json) -> ModelError:
    """The error for a request that the engine refused. `error` is the engine's report."""
    match error:
        case {"type": "exceed_context_size_error", "n_prompt_tokens": prompt, "n_ctx": window}:
            return ModelError(
                f"The prompt has {prompt} tokens, and the model's window is {window} for prompt and reply together. "
                "Compact the session, shorten the message, or use a model with a larger window.",
                kind="too_long",
            )
        case {"message": str(message)} if "ontext size" in message:
            message = f"The open sessions together need more memory than the engine has: {message}"
            return ModelError(message, kind="overloaded", retryable=True)
        case {"message": message}:
            return ModelError(f"The engine refused the request: {message}", kind="bad_request")
        case _:
            return ModelError(f"The engine refused the request: {error!r:.200}")
