"""The embedded model behind the model port: finds its weights, loads them when first needed, picks a driver.

llama.cpp runs in a process of its own. Importing this module starts and fetches nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.errors import BadInput
from treadle.messages import Request
from treadle.models.base import EmbeddingInput, Embeddings, ModelEvent
from treadle.models.local import weights
from treadle.models.local.chat_prompt import ChatPrompt
from treadle.models.local.choose_then_fill import ChooseThenFill
from treadle.models.local.driver import Driver
from treadle.models.local.driver_probe import REQUESTS, count_right_calls
from treadle.models.local.json_tools import JsonTools
from treadle.models.local.llama_process import EngineFacts, LlamaEngine
from treadle.models.local.load_progress import PhaseProgress, Progress
from treadle.models.local.loop_detector import end_at_loop
from treadle.models.local.model_cache import ModelCache
from treadle.models.local.native_tools import NativeTools
from treadle.models.local.own_format import OwnFormat, read_call_format
from treadle.models.request_options import build_option_error
from treadle.permissions.paths import find_data_folder

DriverName = Literal["choose", "union", "native", "own"]

SMALL_MODEL_PARAMETERS = 1_000_000_000
"""Models with fewer parameters than this choose and fill, unless their own format does better."""
LEAST_OWN_FORMAT_PARAMETERS = 450_000_000
"""Models with fewer parameters than this are not tried with a call format of their own."""


class LocalStatus(Struct, frozen=True):
    """The state of an embedded model. `memory` is in bytes, held by the engine's own process."""

    state: Literal["missing", "unloaded", "loading", "ready"]
    path: str
    memory: int = 0
    window: int | None = None
    parameters: int | None = None
    driver: DriverName | None = None


class LocalModel:
    """A GGUF model that runs on this machine. Without a path it is the small one, which is fetched once.

    `context` is the window in tokens, at most what the model was made for. `slots` requests run at once. `driver`
    says how tools are offered; by default the model's size and a probe decide. While the model gets ready,
    `progress(message, done, total)` is called from any thread. With `keep_loaded`, processes of this user share the
    engine, and it stays loaded for so many seconds after the last of them closed its model.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        slots: int = 4,
        context: int | None = None,
        driver: DriverName | None = None,
        progress: Progress | None = None,
        keep_loaded: float = 0,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._slots = slots
        self._context = context
        self._requested_driver: DriverName | None = driver
        self.progress = progress
        self.keep_loaded = keep_loaded
        self._engine: LlamaEngine | None = None
        self._driver_name: DriverName | None = None
        self._driver: Driver | None = None

    @property
    def name(self) -> str:
        return "local" if self._path is None else f"local:{self._path}"

    @property
    def window(self) -> int | None:
        """The real window, from the engine. None until it is loaded."""
        facts = self._engine and self._engine.facts
        return facts.window if facts else None

    @property
    def can_summarize(self) -> bool:
        """Whether its summaries are worth reading. A very small model would only mislead itself."""
        facts = self._engine and self._engine.facts
        return not facts or facts.parameters >= SMALL_MODEL_PARAMETERS

    @property
    def status(self) -> LocalStatus:
        """What is loaded, and how much memory it takes."""
        if self._engine is None:
            found = weights.find_weights(self._path)
            return LocalStatus("unloaded" if found else "missing", str(found or self._path or weights.SMALL))
        facts, memory = self._engine.facts, self._engine.memory
        state = "ready" if facts else "loading" if memory else "unloaded"
        window, parameters = (facts.window, facts.parameters) if facts else (None, None)
        return LocalStatus(state, str(self._engine.path), memory, window, parameters, self._driver_name)

    async def load(self) -> LocalStatus:
        """Fetch the weights if they are missing, and load them. `stream` does the same when it is first called."""
        await self._load_engine()
        return self.status

    def unload(self) -> None:
        """End the engine's process and free its memory, also when others use it. The next request loads it again."""
        if self._engine:
            self._engine.stop()

    async def close(self) -> None:
        """Stop using the engine. It ends, unless `keep_loaded` is set."""
        if self._engine:
            self._engine.release()

    async def embed(self, inputs: Sequence[EmbeddingInput], dimensions: int | None = None) -> Embeddings:
        """One vector of length 1 for each input: the mean of the model's states over it."""
        if dimensions is not None:
            # Only models that were trained for it keep a meaning when their vectors are cut.
            raise build_option_error("dimensions", self.name, "leave it out: the vectors of this model cannot be cut")
        engine, _ = await self._load_engine()
        return await engine.embed(inputs)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens of this model."""
        engine, _ = await self._load_engine()
        return await engine.detokenize(tokens)

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        """Answer a request: deltas, then the reply. Closing the iterator stops the generation."""
        engine, facts = await self._load_engine()
        if self._driver is None:
            self._driver = await self._open_driver(engine, facts)
        async with aclosing(self._driver.stream(request)) as events, aclosing(end_at_loop(events, self.name)) as passed:
            async for event in passed:
                yield event

    async def _load_engine(self) -> tuple[LlamaEngine, EngineFacts]:
        progress = PhaseProgress(self.progress, Path(self._path or weights.SMALL).name) if self.progress else None
        if self._engine is None:
            stop = threading.Event()
            try:
                path = await asyncio.to_thread(weights.ensure_weights, self._path, progress, stop)
            finally:
                stop.set()
            self._engine = self._engine or LlamaEngine(
                path, slots=self._slots, context=self._context, keep_loaded=self.keep_loaded
            )
        return self._engine, await self._engine.load(progress)

    async def _open_driver(self, engine: LlamaEngine, facts: EngineFacts) -> Driver:
        cache = ModelCache(find_data_folder() / "cache", engine.path)
        chat = ChatPrompt(engine, facts)
        call_format = await read_call_format(engine, facts)
        drivers: dict[DriverName, Driver] = {"choose": ChooseThenFill(engine, self.name, chat, cache, self.progress)}
        if call_format:
            drivers["own"] = OwnFormat(engine, self.name, chat, call_format)
        drivers["native"] = NativeTools(engine, self.name, chat)
        drivers["union"] = JsonTools(engine, self.name, chat)
        wanted = self._requested_driver
        if wanted == "own" and not call_format:
            raise BadInput(f"The chat template of {engine.path.name} has no call format that a grammar can hold.")
        self._driver_name = wanted or await self._pick_driver(drivers, facts, cache)
        return drivers[self._driver_name]

    async def _pick_driver(
        self, drivers: dict[DriverName, Driver], facts: EngineFacts, cache: ModelCache
    ) -> DriverName:
        """The driver for the model's size and for its answers to a probe, which is asked once and kept."""
        if facts.parameters < LEAST_OWN_FORMAT_PARAMETERS:
            return "choose"
        is_small = facts.parameters < SMALL_MODEL_PARAMETERS
        names: list[DriverName] = ["own"] if is_small else ["own", "native", "union"]
        scores = cache.read("driver-scores", dict[DriverName, int])
        if scores is None:
            scores = dict[DriverName, int]()
            for done, name in enumerate(names):
                if self.progress:
                    self.progress("trying how the model calls tools", done, len(names))
                if name in drivers:
                    scores[name] = await count_right_calls(drivers[name])
            cache.write("driver-scores", scores)
        best = max(scores, key=lambda name: scores[name], default=None)
        # Choosing does about nine of ten tasks with models of this size.
        return "choose" if is_small and scores.get("own") != len(REQUESTS) else best or "choose"
