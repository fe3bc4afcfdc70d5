"""The engine's own process: loads one GGUF file with llama.cpp and serves it on a private socket.

engine_process.py and kept_process.py run it as a plain script, so it imports nothing of treadle. With a `parent` in its
settings it ends with that process. Otherwise it is kept: it ends when nobody has used it for a while.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
TICK_SECONDS = 1.0


def main() -> None:
    settings = json.loads(sys.argv[1])
    os.umask(0o077)
    os.chdir(settings["folder"])

    def exit_now(*_: object) -> None:
        if "parent" in settings:  # the folder of a kept engine may be in use again
            shutil.rmtree(settings["folder"], ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, exit_now)
    leases: Leases | None = None
    if "parent" not in settings:
        leases = Leases(move_to_background())
        # The prompts in its memory are private, also after the commands that sent them.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    else:
        if sys.platform == "linux":
            # The end of standard input is noticed too late: loading blocks the interpreter, and it is not read.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != settings["parent"]:
            exit_now()
    try:
        _server = start_server(settings, leases.key if leases else "")
    except RuntimeError as error:
        sys.exit(f"{error}")
    if leases:
        leases.serve()
    else:
        sys.stdin.buffer.read()
    exit_now()


def move_to_background() -> socket.socket:
    """Fork. The first process ends when the second one listens for leases, so that its starter need not poll."""
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("lease.sock")
    listener.listen(64)
    os.close(done)
    return listener


class Leases:
    """The connections of the processes that use this engine. Only processes of the same user get the key."""

    def __init__(self, listener: socket.socket) -> None:
        self.key = secrets.token_hex(16)
        self._listener = listener
        self._visitors: list[socket.socket] = []
        self._holders: list[socket.socket] = []
        self._seconds = 0.0
        self._last_start = read_last_start()

    def serve(self) -> None:
        """Serve until there has been no lease for as long as the last holder asked for, or another engine started."""
        deadline = time.monotonic()
        while True:
            for each in select.select([self._listener, *self._visitors, *self._holders], [], [], TICK_SECONDS)[0]:
                if each is self._listener:
                    self._accept()
                elif self._read(each):
                    deadline = time.monotonic() + self._seconds
            if not self._holders and (time.monotonic() >= deadline or read_last_start() != self._last_start):
                # Processes connect while they hold the lock. So nobody connects now, if nobody has.
                with open("../lock", "ab") as lock:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    if not select.select([self._listener, *self._visitors], [], [], 0)[0]:
                        shutil.rmtree(os.getcwd(), ignore_errors=True)
                        os._exit(0)

    def _accept(self) -> None:
        visitor, _ = self._listener.accept()
        _, uid, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid == os.getuid():
            self._visitors.append(visitor)
        else:
            visitor.close()

    def _read(self, connection: socket.socket) -> bool:
        """Give a lease to a visitor that says how long to keep the engine. Whether it got one, or gave one back."""
        with contextlib.suppress(OSError, ValueError):
            if text := connection.recv(64):
                self._seconds = float(text)
                connection.send(self.key.encode())
                self._visitors.remove(connection)
                self._holders.append(connection)
                return True
        connection.close()
        is_holder = connection in self._holders
        (self._holders if is_holder else self._visitors).remove(connection)
        return is_holder


def read_last_start() -> int:
    return os.stat("../lock").st_mtime_ns


def start_server(settings: dict[str, Any], key: str) -> object:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.hostnames = ["engine.sock"]
    if key:
        params.api_keys = [key]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["cells"]
    params.kv_unified = True
    params.kv_unified_per_slot = settings["window"]
    params.n_batch = params.n_ubatch = settings["batch"]
    params.cache_ram_mib = settings["cache_mib"]
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.ui = False
    params.endpoint_slots = False
    params.cors_origins = ""
    params.offline = True
    params.verbosity = -1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
