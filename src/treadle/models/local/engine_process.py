"""The process that runs llama.cpp, as the process that uses it sees it. `kept_process.py` has the shared kind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.messages import Json
from treadle.models.local.unix_http import open_exchange

CHILD = Path(__file__).with_name("llama_child.py")
LONGEST_TEMPORARY = 70
"""Bytes in the path of the folder for temporary files. A socket's path may have 103 on macOS, 107 on Linux."""


class EngineFacts(Struct, frozen=True):
    """The facts that a loaded engine reports about its model. `window` is in tokens, for prompt and reply together."""

    window: int
    parameters: int
    template: str


class EngineProcess(ABC):
    """An engine's process, its socket, and the key that its requests need."""

    pid: int
    socket: Path
    log: Path
    key = ""
    facts: EngineFacts | None = None
    was_running = False

    @property
    @abstractmethod
    def is_alive(self) -> bool: ...

    @property
    def is_stuck(self) -> bool:
        """Whether it will not answer, although it is alive."""
        return False

    @abstractmethod
    def stop(self) -> None:
        """End the process, whoever uses it."""

    @abstractmethod
    def release(self) -> None:
        """Stop using the process."""

    async def fetch_facts(self) -> EngineFacts | None:
        """The facts of the loaded model, or None while it loads."""
        answers: list[Json] = []
        for path in ("/props", "/v1/models"):
            async with open_exchange(self.socket, path, key=self.key) as response:
                if response.status != 200:
                    return None
                answers.append(msgspec.json.decode(await response.read()))
        props, models = answers
        return EngineFacts(
            window=props["default_generation_settings"]["n_ctx"],
            parameters=models["data"][0]["meta"]["n_params"],
            template=props.get("chat_template", ""),
        )

    async def wait_for_end(self) -> None:
        """Wait a moment for a process that is ending: its socket closes before the process is gone."""
        for _ in range(200):
            if self.is_alive:
                await asyncio.sleep(0.01)

    def read_log_end(self) -> str:
        try:
            return self.log.read_text("utf-8", "replace").strip()[-500:]
        except OSError:
            return ""

    def read_memory(self) -> int:
        return read_memory(self.pid)


class OwnProcess(EngineProcess):
    """An engine that only this process uses. It ends with this process."""

    def __init__(self, settings: dict[str, Json]) -> None:
        folder = create_socket_folder()
        self.socket, self.log = folder / "engine.sock", folder / "log"
        settings = settings | {"folder": str(folder), "parent": os.getpid()}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(CHILD), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._end = weakref.finalize(self, _end_process, self._process, folder)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._end()

    def release(self) -> None:
        self._end()


def create_socket_folder() -> Path:
    """A new private folder, with a path so short that it fits a socket's address with a file name."""
    is_short = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TEMPORARY
    return Path(tempfile.mkdtemp(prefix="treadle-", dir=None if is_short else "/tmp"))


def read_memory(pid: int) -> int:
    """Bytes of memory that a process takes, 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line[:6] == "VmRSS:"), 0)


def _end_process(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    if process.stdin:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
