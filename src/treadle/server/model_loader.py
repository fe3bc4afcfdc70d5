"""Loads and unloads models while the server runs, in the background and with progress. The operator sets the limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle import Runtime
from treadle.app.absent_model import AbsentModel
from treadle.app.compose import set_progress_listener
from treadle.errors import BadInput, NotFound, TreadleError
from treadle.events import Progress
from treadle.models.base import Model
from treadle.server.guard import Refusal
from treadle.server.problems import build_field_error
from treadle.server.streams import SHUTDOWN_COMMENT, OpenStreams, PieceStream

PROBE_SECONDS = 5.0
_LOCAL = "local:"


class LoadState(Struct, frozen=True):
    """How far a model is. `fraction` is from 0 to 1, or None when it is unknown. `error` says why a load failed."""

    state: Literal["loading", "loaded", "failed", "unloaded"]
    fraction: float | None = None
    message: str = ""
    error: str = ""


class ModelLoader:
    """The models that requests loaded or unloaded. Agents that started without a model use the one that is loaded.

    No run may start on a `blocked` model: it was unloaded, or it is a new one that is not loaded yet.
    """

    def __init__(self, runtime: Runtime, roots: Sequence[Path]) -> None:
        self._runtime, self._roots = runtime, roots
        self.states: dict[str, LoadState] = {}
        self.blocked: set[str] = set()
        self.watchers: set[asyncio.Event] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._absent: dict[str, AbsentModel] = {}

    def resolve_name(self, name: str) -> str:
        """The full name of a model. A GGUF file must be in one of the operator's folders; links are followed."""
        if not name.startswith(_LOCAL):
            return name
        written = name.removeprefix(_LOCAL)
        if "\0" in written:
            raise build_field_error("model", "a path cannot have null characters")
        roots = [root.expanduser().resolve() for root in self._roots]
        try:
            files = [(root / Path(written).expanduser()).resolve() for root in roots]
            inside = [file for file in files if any(file.is_relative_to(root) for root in roots)]
            for file in inside:
                if file.suffix.lower() == ".gguf" and file.is_file():
                    return f"{_LOCAL}{file}"
        except (OSError, RuntimeError):  # a name that is too long, an unknown home folder, or a circle of links
            raise build_field_error("model", "that file cannot be read") from None
        if inside and len(inside) == len(files):
            raise NotFound(f"there is no GGUF file {written[:500]!r} in the model folders of this server")
        raise Refusal(
            403,
            "outside_model_roots",
            "model: that file is outside the model folders of this server",
            "the operator names them with `treadle serve --model-root DIR`",
            field="model",
        )

    def start_loading(self, name: str, *, is_known: bool) -> None:
        """Load a model in the background. A model that is loaded or loading is left as it is.

        Raises `NotFound` for an unknown name, and `BadInput` when its key is missing.
        """
        model, state = self._runtime.model(name), self.states.get(name)
        if state is not None and state.state in ("loading", "loaded"):
            return
        if not is_known:
            self.blocked.add(name)
        self._set_state(name, LoadState("loading"))
        self._tasks[name] = asyncio.create_task(self._load(name, model))

    async def unload(self, name: str) -> None:
        """Stop loading a model and free what it holds. A current run that needs it loads it again."""
        await self._stop_loading(name)
        self.blocked.add(name)
        await self._runtime.model(name).close()
        self._set_state(name, LoadState("unloaded"))

    async def close(self) -> None:
        """Stop loading."""
        for name in tuple(self._tasks):
            await self._stop_loading(name)

    async def _stop_loading(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _load(self, name: str, model: Model) -> None:
        try:
            set_progress_listener(model, partial(self._report_progress, name))
            if load := getattr(model, "load", None):
                await load()
            elif fetch_status := getattr(model, "fetch_status", None):
                if (status := await fetch_status(PROBE_SECONDS)) in (401, 403):
                    raise BadInput(f"the provider rejects the key ({status})")
        except Exception as error:  # a model may be anybody's code, and nobody awaits this task
            what = str(error) if isinstance(error, TreadleError) else f"{type(error).__name__}: {error}"
            self._set_state(name, LoadState("failed", error=what))
        else:
            self.blocked.discard(name)
            self._fill_agents(model)
            self._set_state(name, LoadState("loaded", 1.0))

    def _report_progress(self, name: str, progress: Progress) -> None:
        state = self.states[name]
        if state.state == "loading":
            fraction = min(1.0, (progress.done or 0.0) / progress.total) if progress.total else None
            self._set_state(name, replace(state, fraction=fraction, message=progress.message))

    def _fill_agents(self, model: Model) -> None:
        """Give the model to the agents that started without one, unless they have one that is still loaded."""
        for agent in self._runtime.agents.values():
            current = agent.resolve_model()
            if isinstance(current, AbsentModel):
                self._absent[agent.name] = current
            elif agent.name not in self._absent or current.name not in self.blocked:
                continue
            agent.use_model(model)
            self._absent[agent.name].use(model)

    def _set_state(self, name: str, state: LoadState) -> None:
        self.states[name] = state
        for watcher in self.watchers:
            watcher.set()


class ModelStream(PieceStream):
    """Sends every model and then each change, until the client leaves or the server stops.

    `describe` returns the models as JSON, by name. A slow client gets the last state only.
    """

    def __init__(self, streams: OpenStreams, loader: ModelLoader, describe: Callable[[], dict[str, bytes]]) -> None:
        super().__init__(streams, self._write_changes(loader, describe))
        self._changed = asyncio.Event()

    async def _write_changes(
        self, loader: ModelLoader, describe: Callable[[], dict[str, bytes]]
    ) -> AsyncGenerator[bytes]:
        sent: dict[str, bytes] = {}
        loader.watchers.add(self._changed)
        try:
            while not self._streams.is_closed:
                self._changed.clear()
                found = describe()
                new = [data for name, data in found.items() if sent.get(name) != data]
                sent = found
                yield b"".join(
                    b'event: model_updated\ndata: {"event":"model_updated","data":%b}\n\n' % data for data in new
                )
                await self._changed.wait()
            yield SHUTDOWN_COMMENT
        finally:
            loader.watchers.discard(self._changed)

    def stop(self) -> None:
        """End the stream."""
        self._changed.set()
