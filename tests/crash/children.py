"""Real child processes that start in a few milliseconds: a server that has imported treadle forks them.

The server has no event loop, no thread and no connection, so its forks behave like new processes.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest.mock import patch

from tests.crash.notes import Notes

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.crash.preload"])


@cache
def start_fork_server() -> None:
    """Start the server, so that its start is not part of a measurement."""
    here = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, here))):  # the server does not inherit sys.path
        multiprocessing.forkserver.ensure_running()
    child = _context.Process(target=_do_nothing)
    child.start()
    child.join()
    child.close()


def _do_nothing() -> None: ...


def start(target: Callable[..., None], *args: object) -> ForkServerProcess:
    """Start a child that runs the function."""
    start_fork_server()
    child = _context.Process(target=target, args=args)
    child.start()
    return child


@contextmanager
def run_child(target: Callable[..., None], *args: object) -> Iterator[ForkServerProcess]:
    """Run a child for the length of a block, and kill it at the end."""
    child = start(target, *args)
    try:
        yield child
    finally:
        kill(child)
        child.close()


def join_all(notes: Notes, *children: ForkServerProcess) -> None:
    """Wait until all children have ended, and check that none failed."""
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * len(children), notes.read("trouble")


def kill(child: ForkServerProcess) -> None:
    """Kill the child at once, like a power cut, and wait until it is gone."""
    child.kill()
    child.join()


def freeze(child: ForkServerProcess, store: Path, *, writing: bool = False) -> None:
    """Freeze the child at once. SQLite has one writer for the whole file, so there it is not frozen during a write.

    With `writing` it is frozen in the middle of one, and nobody else can write until it continues. A store that is no
    file is a database, which ends a write by itself.
    """
    if not store.exists():
        _stop(child)
        return
    with closing(sqlite3.connect(store, timeout=0, isolation_level=None)) as db:
        while True:
            _stop(child)
            is_writing = False
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except sqlite3.OperationalError:
                is_writing = True
            if is_writing == writing or not child.is_alive():
                return
            thaw(child)
            time.sleep(0.0005 if writing else 0)


def _stop(child: ForkServerProcess) -> None:
    _signal(child, signal.SIGSTOP)
    wait_until(lambda: _is_stopped(child))


def thaw(child: ForkServerProcess) -> None:
    """Let the child continue."""
    _signal(child, signal.SIGCONT)


def _signal(child: ForkServerProcess, number: signal.Signals) -> None:
    assert child.pid is not None
    with suppress(ProcessLookupError):  # it may have just ended
        os.kill(child.pid, number)


def _is_stopped(child: ForkServerProcess) -> bool:
    try:
        state = Path(f"/proc/{child.pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "TZX"


def wait_until(what: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait until a condition is true. Returns how long it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began
