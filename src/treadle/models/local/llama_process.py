"""llama.cpp in a child process, spoken to over a private socket. Knows tokens and grammars, not messages or tools.

A child and not a thread: loading holds the interpreter, and killing a process is the only unload that always works.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from treadle.errors import ModelError
from treadle.messages import Json
from treadle.models.local import unix_http as wire

Progress = Callable[[str, float, float], None]
"""Told what is going on, how much of it is done, and how much there is."""

Prompt = str | list[str | int]
"""Text, or text and token ids mixed."""

CACHE_MIB = 512
BATCH = 128
"""Tokens read at once. A batch cannot be interrupted: small ones let a prompt be cancelled within about a second."""

LARGEST_WINDOW = 8192


class EngineFacts(Struct, frozen=True):
    """What a loaded engine says about itself. `window` is in tokens, for prompt and reply together."""

    window: int
    parameters: int
    template: str


class _Timings(Struct):
    cache_n: int = 0


class _Probability(Struct):
    id: int
    prob: float


class _Position(Struct):
    top_probs: list[_Probability] = field(default_factory=list[_Probability])


class CompletionPiece(Struct):
    """A fragment of a completion; the last one has `stop` set and the counts."""

    content: str = ""
    stop: bool = False
    stop_type: str = ""
    tokens_evaluated: int = 0
    tokens_predicted: int = 0
    timings: _Timings = field(default_factory=_Timings)
    completion_probabilities: list[_Position] = field(default_factory=list[_Position])

    @property
    def cached_tokens(self) -> int:
        return self.timings.cache_n


class _Child:
    """One run of the engine's process and the folder of its socket."""

    def __init__(self, settings: dict[str, Json]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-"))
        self.socket = self.folder / "engine.sock"
        self.log = self.folder / "log"
        settings |= {"folder": str(self.folder), "socket": str(self.socket), "parent": os.getpid()}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("llama_child.py")), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.facts: EngineFacts | None = None
        self.stop = weakref.finalize(self, _stop, self.process, self.folder)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def settle(self) -> None:
        """Give a dying process a moment: its socket closes shortly before it is seen as dead."""
        for _ in range(200):
            if self.alive:
                await asyncio.sleep(0.01)

    def last_words(self) -> str:
        try:
            return self.log.read_text("utf-8", "replace").strip()[-500:]
        except OSError:
            return ""

    def memory(self) -> int:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line[:6] == "VmRSS:"), 0)


def _stop(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


class LlamaEngine:
    """One GGUF file, loaded when it is first needed and again after its process has died."""

    def __init__(self, path: Path, *, slots: int = 4, context: int | None = None) -> None:
        self.path = path
        self._slots = slots
        self._context = context or LARGEST_WINDOW
        # Shared by all slots: sessions are rarely long at once, and each cell takes memory.
        self._cells = self._context * min(slots, 2)
        self._used = 0
        self._child: _Child | None = None
        self._lock = threading.Lock()

    @property
    def facts(self) -> EngineFacts | None:
        """What the engine said when it was loaded, while it is."""
        return self._child.facts if self._child and self._child.alive else None

    @property
    def memory(self) -> int:
        """Bytes of memory that the engine's process holds, 0 when it is not loaded."""
        return self._child.memory() if self._child and self._child.alive else 0

    def stop(self) -> None:
        """Unload: end the process and free its memory. The next request loads again."""
        with self._lock:
            child, self._child = self._child, None
        if child:
            child.stop()

    async def load(self, progress: Progress | None = None) -> EngineFacts:
        """Load if needed and wait until requests can be answered."""
        child = self._spawn()
        while child.facts is None:
            try:
                child.facts = await _facts(child.socket)
            except (OSError, EOFError):
                if not child.alive:
                    raise ModelError(
                        f"The engine could not load {self.path}. Is it a GGUF file of a model that this "
                        f"llama.cpp knows, and is there memory for it? Its last words: {child.last_words()}"
                    ) from None
            if child.facts is None:
                if progress and self.path.exists():
                    size = self.path.stat().st_size
                    progress(f"loading {self.path.name}", min(child.memory(), size), size)
                await asyncio.sleep(0.05)
        return child.facts

    async def stream_pieces(self, prompt: Prompt, options: dict[str, Json]) -> AsyncGenerator[CompletionPiece, None]:
        """Complete `prompt`, piece by piece."""
        async with contextlib.aclosing(
            self.stream_events("/completion", _body(prompt, options, stream=True))
        ) as events:
            async for data in events:
                yield msgspec.json.decode(data, type=CompletionPiece)

    async def complete(self, prompt: Prompt, options: dict[str, Json]) -> CompletionPiece:
        """Complete `prompt` and give the text at once, with the counts."""
        return msgspec.convert(await self.post("/completion", _body(prompt, options)), CompletionPiece)

    async def score_tokens(self, prompt: Prompt, tokens: Sequence[int]) -> dict[int, float]:
        """Log-probabilities of `tokens` as what follows `prompt`, as if nothing else could."""
        # Raised alike above all others, they keep their order and share the whole probability among them.
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

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text; of a long text the mean over its parts."""
        # The engine embeds no more than one batch at once.
        tokens = [await self.tokenize(text) or [0] for text in texts]
        parts = [
            (i, each[start : start + BATCH]) for i, each in enumerate(tokens) for start in range(0, len(each), BATCH)
        ]
        answer = await self.post("/v1/embeddings", {"input": [part for _, part in parts]})
        found: dict[int, list[float]] = {each["index"]: each["embedding"] for each in answer["data"]}
        sums = [[0.0] * len(found[0]) for _ in texts]
        for number, (i, part) in enumerate(parts):
            sums[i] = [a + b * len(part) for a, b in zip(sums[i], found[number], strict=True)]
        lengths = [math.sqrt(sum(each * each for each in vector)) or 1.0 for vector in sums]
        return [[each / length for each in vector] for vector, length in zip(sums, lengths, strict=True)]

    async def post(self, path: str, body: Json) -> Json:
        """One request with one answer."""
        async with self._exchange(path, body) as response:
            return msgspec.json.decode(await response.read())

    async def stream_events(self, path: str, body: Json) -> AsyncGenerator[bytes, None]:
        """One request whose answer is a stream; giving up the iterator stops the generation."""
        async with self._exchange(path, body) as response:
            async for data in response.iterate_events():
                if data.startswith(b'{"error"'):
                    raise _refusal(data)
                yield data

    @contextlib.asynccontextmanager
    async def _exchange(self, path: str, body: Json) -> AsyncGenerator[wire.UnixResponse, None]:
        facts = await self.load()
        child = self._spawn()
        try:
            async with self._room(_cells(body, facts.window)), wire.open_exchange(child.socket, path, body) as response:
                if response.status != 200:
                    raise _refusal(await response.read())
                yield response
        except (OSError, EOFError) as error:
            await child.settle()
            raise ModelError(
                f"The engine of {self.path.name} stopped in mid-request ({error}). "
                f"It is started again at the next one. {child.last_words()}".strip(),
                retryable=True,
            ) from error

    @contextlib.asynccontextmanager
    async def _room(self, cells: int) -> AsyncGenerator[None, None]:
        """Wait until so many cells are free: sessions that outgrow them together would all be broken off."""
        # Polled, because a condition of asyncio belongs to one event loop and an engine may serve several.
        while not self._take(cells):  # noqa: ASYNC110 - requests of several loops share it
            await asyncio.sleep(0.02)
        try:
            yield
        finally:
            self._take(-cells)

    def _take(self, cells: int) -> bool:
        with self._lock:
            fits = self._used + cells <= self._cells or cells <= 0
            self._used += cells if fits else 0
            return fits

    def _spawn(self) -> _Child:
        with self._lock:
            if self._child is None or not self._child.alive:
                if self._child:
                    self._child.stop()
                if importlib.util.find_spec("xllamacpp") is None:
                    message = "The embedded model needs llama.cpp: pip install 'treadle[local]'"
                    raise ModelError(message, kind="bad_request")
                self._child = _Child(
                    {
                        "path": str(self.path),
                        "slots": self._slots,
                        "window": self._context,
                        "cells": self._cells,
                        "batch": BATCH,
                        "threads": max(1, count_cores() - 1),
                        "cache_mib": CACHE_MIB,
                    }
                )
            return self._child


def count_cores() -> int:
    """How many processors this process may really use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, max(1, int(quota) // int(period)))
    return count


def _body(prompt: Prompt, options: dict[str, Json], stream: bool = False) -> dict[str, Json]:
    return {"prompt": prompt, **options, "stream": stream, "cache_prompt": True}


def _cells(body: Json, window: int) -> int:
    """The most cells of the cache that a request can fill, guessed from above: a token has two bytes at least."""
    read = body.get("prompt") or body.get("input") or [body.get("messages"), body.get("tools")]
    most = body.get("n_predict", body.get("max_tokens", 0))
    return window if most < 0 else min(window, len(msgspec.json.encode(read)) // 2 + most)


async def _facts(socket: Path) -> EngineFacts | None:
    answers: list[Json] = []
    for path in ("/props", "/v1/models"):
        async with wire.open_exchange(socket, path) as response:
            if response.status != 200:
                return None
            answers.append(msgspec.json.decode(await response.read()))
    props, models = answers
    return EngineFacts(
        window=props["default_generation_settings"]["n_ctx"],
        parameters=models["data"][0]["meta"]["n_params"],
        template=props.get("chat_template", ""),
    )


def _refusal(data: bytes) -> ModelError:
    try:
        error = msgspec.json.decode(data)["error"]
        kind, message = error.get("type", ""), str(error.get("message", ""))
    except (msgspec.DecodeError, KeyError, AttributeError):
        return ModelError(f"The engine refused the request: {data[:200]!r}")
    if kind == "exceed_context_size_error":
        return build_too_long_error(error["n_prompt_tokens"], error["n_ctx"])
    if "ontext size" in message:
        message = f"The sessions need more room together than the engine has: {message}"
        return ModelError(message, kind="overloaded", retryable=True)
    return ModelError(f"The engine refused the request: {message}", kind="bad_request")


def build_too_long_error(prompt: int, window: int) -> ModelError:
    """The error for a prompt that does not fit, with the numbers."""
    return ModelError(
        f"The prompt has {prompt} tokens, and the model's window is {window} for prompt and reply together. "
        "Compact the session, shorten the message, or use a model with a larger window.",
        kind="too_long",
    )
