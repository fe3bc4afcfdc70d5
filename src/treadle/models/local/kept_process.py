"""Engines that stay loaded between commands, one for each model file and its options.

An engine listens on a socket in a private folder. A process that uses it holds a connection, its lease. An engine
without a lease ends after a while, and at once when another engine is started.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Generator
from pathlib import Path

from msgspec import Struct

from treadle.messages import Json
from treadle.models.local.engine_process import CHILD, EngineFacts, EngineProcess
from treadle.permissions.paths import find_data_folder

LOCK_SECONDS = 10.0
END_SECONDS = 10.0
SILENT_SECONDS = 5.0
PASSED_ON = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR")
"""The variables that a kept engine gets. Others may hold secrets, and it outlives the command that started it."""


_logger = logging.getLogger("treadle")


class KeptEngine(Struct, frozen=True):
    """An engine that is loaded, or loading. `memory` is in bytes."""

    path: str
    pid: int
    memory: int


class KeptProcess(EngineProcess):
    """A lease on an engine that may have other users. Raises `OSError` when no engine of this user answers."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        with contextlib.ExitStack() as stack:
            # The path of a socket may have 107 bytes. This one is short, wherever the folder is.
            here = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, here)
            self.socket = Path(f"/proc/self/fd/{here}/engine.sock")
            self._lease = stack.enter_context(socket.socket(socket.AF_UNIX))
            self._lease.setblocking(False)  # first: an engine that was stopped may have no place for a connection
            self._lease.connect(f"/proc/self/fd/{here}/lease.sock")
            self.pid, uid, _ = struct.unpack("3i", self._lease.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid != os.getuid() or self.pid <= 0:  # there is no number for a process of another container
                raise PermissionError("the engine belongs to another user or another container")
            self._model = (folder / "model").read_text()
            self._process = os.pidfd_open(self.pid)
            stack.callback(os.close, self._process)
            self._folder = folder
            self._last_sign = ([""], 0.0)
            self._close = weakref.finalize(self, stack.pop_all().close)

    @property
    def is_alive(self) -> bool:
        try:
            return self._lease.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def is_stuck(self) -> bool:
        """Whether it takes no processor time, like a process that was stopped. Call it again and again."""
        try:
            used = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        except OSError:
            return False
        if used != self._last_sign[0]:
            self._last_sign = (used, time.monotonic())
        return time.monotonic() - self._last_sign[1] > SILENT_SECONDS

    def take_lease(self, seconds: float) -> None:
        """Keep the engine loaded while this object lives, and `seconds` longer."""
        self._lease.send(f"{seconds}\n".encode())

    async def fetch_facts(self) -> EngineFacts | None:
        if not self.key:
            try:
                self.key = self._lease.recv(64).decode()
            except BlockingIOError:
                return None
            if not self.key:
                raise EOFError("the engine ended")
        return await super().fetch_facts()

    def describe(self) -> KeptEngine:
        return KeptEngine(self._model, self.pid, self.read_memory())

    def stop(self) -> None:
        if self._close.alive:
            with lock_engines():
                if self.is_alive:
                    signal.pidfd_send_signal(self._process, signal.SIGKILL)
                    select.select([self._process], [], [], END_SECONDS)
                    shutil.rmtree(self._folder, ignore_errors=True)
            self._close()

    def release(self) -> None:
        self._close()


def find_engines_folder() -> Path:
    """The folder of the engines that stay loaded. It is in the data folder, which no sandboxed command sees."""
    return find_data_folder() / "engines"


def join_or_start(settings: dict[str, Json], seconds: float) -> KeptProcess | None:
    """A lease on the engine with these settings, which is started if it does not run. None where none can be kept."""
    if sys.platform != "linux":
        return None
    try:
        folder = find_engines_folder() / _compute_digest(settings)
        with lock_engines():
            try:
                found = KeptProcess(folder)
                found.was_running = True
            except (FileNotFoundError, ConnectionRefusedError):
                _start_engine(folder, settings)
                found = KeptProcess(folder)
            found.take_lease(seconds)
            return found
    except (OSError, subprocess.SubprocessError) as error:
        reason = error if isinstance(error, OSError) else "it did not start"
        _logger.warning("No engine can be kept loaded for the next command: %s", reason)
        return None


def list_kept_engines() -> list[KeptEngine]:
    """The engines that are loaded now. Looking does not keep them loaded."""
    found: list[KeptEngine] = []
    for each in _find_running():
        found.append(each.describe())
        each.release()
    return found


def unload_kept_engines() -> list[KeptEngine]:
    """End every engine that is loaded, also one that is in use. Returns those that ended."""
    found: list[KeptEngine] = []
    for each in _find_running():
        found.append(each.describe())
        each.stop()
    return found


@contextlib.contextmanager
def lock_engines() -> Generator[Path, None, None]:
    """Keep other processes from starting and ending engines. Gives the file of the lock."""
    folder = find_engines_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if found.st_mode & 0o022:  # a lock or a socket in it may be somebody else's
        raise PermissionError(f"other users may write to {folder}")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    file = folder / "lock"
    deadline = time.monotonic() + LOCK_SECONDS
    with file.open("ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds {file}") from None
                time.sleep(0.01)
        yield file


def _find_running() -> list[KeptProcess]:
    found: list[KeptProcess] = []
    for folder in sorted(find_engines_folder().glob("*/")):
        with contextlib.suppress(OSError):
            found.append(KeptProcess(folder))
    return found


def _start_engine(folder: Path, settings: dict[str, Json]) -> None:
    """Start an engine that outlives this process, and wait until it listens. The caller holds the lock."""
    running = {each.log.parent for each in _find_running()}
    for other in find_engines_folder().glob("*/"):
        if other not in running:  # its engine was killed
            shutil.rmtree(other, ignore_errors=True)
    os.utime(find_engines_folder() / "lock")  # engines without a lease end when they see this
    folder.mkdir(mode=0o700)
    (folder / "model").write_text(settings["path"])
    with (folder / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-P", str(CHILD), json.dumps(settings | {"folder": str(folder)})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            start_new_session=True,
            timeout=LOCK_SECONDS,
            check=True,
        )


def _compute_digest(settings: dict[str, Json]) -> str:
    """A name for an engine: it changes with the options, the model file, llama.cpp and this code."""
    library = importlib.util.find_spec("xllamacpp")
    files = [Path(settings["path"]), CHILD, *([Path(library.origin)] if library and library.origin else [])]
    states = [(each.stat().st_ino, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    return hashlib.sha256(repr((sorted(settings.items()), states, sys.executable)).encode()).hexdigest()[:16]
