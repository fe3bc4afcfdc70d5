"""Whether the server can do its work now: the store takes facts, its disk has room, and the models can be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from treadle import Runtime
from treadle.app.absent_model import AbsentModel
from treadle.errors import StoreFull, TreadleError
from treadle.server.model_loader import ModelLoader
from treadle.server.problems import NO_MODEL

FRESH_SECONDS, FRESH_PROBLEM_SECONDS = 2.0, 0.5
"""For how long the result of a check is used again: many probes at once must not slow the server."""
STORE_SECONDS, MODEL_SECONDS = 1.0, 2.0
OK = "ok"


class Readiness:
    """Checks the store and the models of one server."""

    def __init__(self, runtime: Runtime, loader: ModelLoader, list_model_names: Callable[[], Sequence[str]]) -> None:
        self._runtime, self._loader, self._list_model_names = runtime, loader, list_model_names
        self._fresh_until, self._found = float("-inf"), dict[str, str]()
        self._checking: tuple[float, asyncio.Task[dict[str, str]]] | None = None

    async def check(self) -> dict[str, str]:
        """Return what was checked, and for each the word `ok` or what is wrong with it."""
        found = self._found
        if time.monotonic() >= self._fresh_until:
            names = self._list_model_names()
            store, models = await asyncio.gather(
                self._check_store(), asyncio.gather(*(self._check_model(name) for name in names))
            )
            found = {**store, **{f"model {name}": answer for name, answer in zip(names, models, strict=True)}}
            is_well = all(answer == OK for answer in found.values())
            self._fresh_until = time.monotonic() + (FRESH_SECONDS if is_well else FRESH_PROBLEM_SECONDS)
            self._found = found
        found = {**found, **{f"model {name}": "is not loaded" for name in self._loader.blocked}}
        for name, load in self._loader.states.items():
            if load.state == "failed":
                found[f"model {name}"] = f"could not be loaded: {load.error}"
        for model in (agent.resolve_model() for agent in self._runtime.agents.values()):
            if isinstance(model, AbsentModel):
                found["model"] = f"{NO_MODEL} {model.reason}"
        return found

    def find_problem(self, name: str) -> str:
        """Find what the last check of a model found wrong. Empty if it was well, or is not checked yet."""
        found = self._found.get(f"model {name}", OK)
        return "" if found == OK else found

    async def _check_store(self) -> dict[str, str]:
        """Check the store, and wait for it no longer than a probe does. A check that hangs goes on for the next one."""
        began, task = self._checking or (time.monotonic(), asyncio.create_task(self._write_nothing()))
        self._checking = began, task
        done, _ = await asyncio.wait((task,), timeout=STORE_SECONDS + 1)
        if not done:
            return {"store": f"has not answered for {time.monotonic() - began:.0f} s", "disk": OK}
        self._checking = None
        return task.result()

    async def _write_nothing(self) -> dict[str, str]:
        found = {"store": OK, "disk": OK}
        try:
            await self._runtime.log.check_writable(STORE_SECONDS)
        except (TreadleError, TimeoutError) as error:
            found["disk" if isinstance(error, StoreFull) else "store"] = str(error) or "does not answer"
        return found

    async def _check_model(self, name: str) -> str:
        try:
            endpoint = getattr(self._runtime.model(name), "endpoint", None)
            if endpoint is not None:  # connect, but send the model no request
                parts = urlsplit(str(endpoint.base_url))
                async with asyncio.timeout(MODEL_SECONDS):
                    port = parts.port or (443 if parts.scheme == "https" else 80)
                    _, writer = await asyncio.open_connection(parts.hostname, port)
                    writer.close()
                    await writer.wait_closed()
        except TreadleError as error:
            return str(error)
        except (OSError, TimeoutError):
            return "cannot be reached"
        return OK
