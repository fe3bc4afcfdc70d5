"""The embedded model behind the model port: finds its weights, loads them when first asked, picks how to drive it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from treadle.messages import Request
from treadle.models.base import ModelEvent
from treadle.models.local import native_tools as native
from treadle.models.local import weights
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.choose_then_fill import ChooseThenFill
from treadle.models.local.json_tools import JsonTools
from treadle.models.local.llama_process import EngineFacts, LlamaEngine, Progress
from treadle.models.local.model_cache import ModelCache
from treadle.models.local.native_tools import NativeTools

DriverName = Literal["choose", "union", "native"]

SMALL_MODEL_PARAMETERS = 1_000_000_000
"""Models with fewer parameters than this choose and fill; larger ones can write a call."""


class LocalStatus(Struct, frozen=True):
    """How an embedded model stands. `memory` is in bytes, and the engine's own process holds it."""

    state: Literal["missing", "unloaded", "loading", "ready"]
    path: str
    memory: int = 0
    window: int | None = None
    parameters: int | None = None
    driver: DriverName | None = None


class _Driver(Protocol):
    def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]: ...


class LocalModel:
    """A GGUF model that runs on this machine; without a path the small one that is fetched once.

    `context` is the window in tokens (at most what the model was made for), `slots` how many requests run at
    once, `driver` how tools are offered when the choice made from the model's size and a probe does not suit.
    `progress` is told what getting ready is about: `(message, done, total)`, from any thread.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        slots: int = 4,
        context: int | None = None,
        driver: DriverName | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._slots = slots
        self._context = context
        self._asked_driver: DriverName | None = driver
        self.progress = progress
        self._engine: LlamaEngine | None = None
        self._picked: DriverName | None = None
        self._driver: _Driver | None = None

    @property
    def name(self) -> str:
        return "local" if self._path is None else f"local:{self._path}"

    @property
    def window(self) -> int | None:
        """The real window, asked from the engine; None until it is loaded."""
        facts = self._engine and self._engine.facts
        return facts.window if facts else None

    @property
    def can_summarize(self) -> bool:
        """Whether it can sum up a conversation; what a very small model writes then only misleads it."""
        facts = self._engine and self._engine.facts
        return not facts or facts.parameters >= SMALL_MODEL_PARAMETERS

    @property
    def status(self) -> LocalStatus:
        """What is loaded, and what it costs."""
        if self._engine is None:
            found = weights.find_weights(self._path)
            return LocalStatus("unloaded" if found else "missing", str(found or self._path or weights.SMALL))
        facts, memory = self._engine.facts, self._engine.memory
        state = "ready" if facts else "loading" if memory else "unloaded"
        window, parameters = (facts.window, facts.parameters) if facts else (None, None)
        return LocalStatus(state, str(self._engine.path), memory, window, parameters, self._picked)

    async def load(self) -> LocalStatus:
        """Fetch the weights if need be, and load them. `stream` does the same, so this only saves a wait later."""
        await self._ready()
        return self.status

    def unload(self) -> None:
        """End the engine and give its memory back. The next request loads again."""
        if self._engine:
            self._engine.stop()

    async def close(self) -> None:
        """The same as `unload`."""
        self.unload()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text: the mean of the model's states over it."""
        engine, _ = await self._ready()
        return await engine.embed(texts)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """Answer a request: deltas, then the reply. Giving up the iterator stops the generation."""
        engine, facts = await self._ready()
        if self._driver is None:
            self._driver = await self._drive(engine, facts)
        async with aclosing(self._driver.stream(request)) as events:
            async for event in events:
                yield event

    async def _ready(self) -> tuple[LlamaEngine, EngineFacts]:
        if self._engine is None:
            path = await self._weights()
            self._engine = self._engine or LlamaEngine(path, slots=self._slots, context=self._context)
        return self._engine, await self._engine.load(self.progress)

    async def _weights(self) -> Path:
        stop = threading.Event()
        try:
            return await asyncio.to_thread(weights.ensure_weights, self._path, self.progress, stop)
        finally:
            stop.set()

    async def _drive(self, engine: LlamaEngine, facts: EngineFacts) -> _Driver:
        store = ModelCache(weights.find_data_dir() / "cache", engine.path)
        chat = ChatPrompt(engine, facts)
        union = JsonTools(engine, chat, self.name)
        picked: DriverName = self._asked_driver or await _pick(engine, facts, store)
        self._picked = picked
        if picked == "choose":
            return ChooseThenFill(engine, chat, store, self.name, self.progress)
        return NativeTools(engine, union, self.name) if picked == "native" else union


async def _pick(engine: LlamaEngine, facts: EngineFacts, store: ModelCache) -> DriverName:
    if facts.parameters < SMALL_MODEL_PARAMETERS:
        return "choose"
    calls = store.read("calls-tools", bool)
    if calls is None:
        calls = await native.probe_tool_calls(engine)
        store.write("calls-tools", calls)
    return "native" if calls else "union"
