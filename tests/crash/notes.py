"""Notes that a process writes beside the log, to compare the two after it was killed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import warnings
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import msgspec

from treadle.errors import ClaimLost
from treadle.events import AnyFact, serialize_event
from treadle.log.base import Claim, Log, PostResult
from treadle.log.postgres import PostgresLog
from treadle.log.sqlite import SqliteLog

P = ParamSpec("P")


@dataclass(frozen=True)
class Notes:
    """A folder with one store and append-only notes. A note that a kill has cut off has no end mark and is ignored.

    With a `url` the store is that database, and not a file in the folder.
    """

    folder: Path
    url: str = ""

    @property
    def store(self) -> Path:
        return self.folder / "store.db"

    @property
    def lease(self) -> float:
        """For how long a process that was killed keeps its sessions at most. Who shares its file sees that it died."""
        return 1.0 if self.url else 30.0

    def write(self, name: str, *words: object) -> None:
        line = " ".join(str(word).replace("\n", " ") for word in words)
        file = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, f"\n{line} .".encode())
        finally:
            os.close(file)

    def read(self, name: str) -> list[list[str]]:
        try:
            text = (self.folder / name).read_text("utf-8")
        except FileNotFoundError:
            return []
        return [line.split(" ")[:-1] for line in text.split("\n") if line.endswith(" .")]


def compute_digest(fact: AnyFact) -> str:
    """Compute a digest of a fact without its position and time."""
    return hashlib.blake2b(serialize_event(msgspec.structs.replace(fact, seq=0, at=0.0)), digest_size=8).hexdigest()


class _Reports(Log):
    """Writes down acknowledged facts and refused writes of a log.

    With `dies_at` it kills its process right before (at n - 0.5) or right after (at n) the nth write.
    """

    notes: Notes
    dies_at: float = 0
    _reported: float = 0

    async def append(
        self, claim: Claim, expected_seq: int, facts: Sequence[AnyFact], *args: Any, **options: Any
    ) -> None:
        self._may_die()
        try:
            await super().append(claim, expected_seq, facts, *args, **options)
        except ClaimLost:
            self.notes.write("refused", os.getpid(), claim.session_id, claim.epoch, "append")
            raise
        self._may_die()
        self._write_acknowledged(claim.session_id, facts, claim.epoch)

    async def renew(self, claim: Claim) -> None:
        try:
            await super().renew(claim)
        except ClaimLost:
            self.notes.write("refused", os.getpid(), claim.session_id, claim.epoch, "renew")
            raise

    async def post(self, session_id: str, facts: Sequence[AnyFact], *args: Any, **options: Any) -> PostResult:
        self._may_die()
        posted = await super().post(session_id, facts, *args, **options)
        self._may_die()
        self._write_acknowledged(session_id, posted.facts)
        return posted

    def _may_die(self) -> None:
        self._reported += 0.5
        if self._reported == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _write_acknowledged(self, session_id: str, facts: Sequence[AnyFact], epoch: int = 0) -> None:
        """Write down each fact with the epoch of its writer. A post has none."""
        for fact in facts:
            self.notes.write("acknowledged", session_id, fact.seq, compute_digest(fact), epoch)


class ReportingLog(_Reports, SqliteLog):
    """A log in a file that reports."""

    def __init__(self, notes: Notes, dies_at: float = 0) -> None:
        super().__init__(notes.store)
        self.notes, self.dies_at = notes, dies_at


class ReportingPostgresLog(_Reports, PostgresLog):
    """A log in a database that reports."""

    def __init__(self, notes: Notes, dies_at: float = 0) -> None:
        super().__init__(notes.url)
        self.notes, self.dies_at = notes, dies_at


def open_reporting_log(notes: Notes, dies_at: float = 0) -> ReportingLog | ReportingPostgresLog:
    """Open the store of the notes."""
    return ReportingPostgresLog(notes, dies_at) if notes.url else ReportingLog(notes, dies_at)


class _ErrorRecorder(logging.Handler):
    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.INFO)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter().format(record)
        self._notes.write("trouble" if record.levelno >= logging.ERROR else "said", os.getpid(), text)


def record_errors(notes: Notes) -> None:
    """Write down every logged error, because nobody reads the standard error of a killed process."""
    for name in ("treadle", "asyncio"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(_ErrorRecorder(notes))

    def on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        notes.write("trouble", os.getpid(), context.get("message"), repr(context.get("exception")))

    asyncio.get_running_loop().set_exception_handler(on_exception)


def child_process(
    main: Callable[Concatenate[Notes, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Notes, P], None]:
    """Make the main function of a child process of a coroutine function. It writes down why it fails."""

    @wraps(main)
    def run(notes: Notes, *args: P.args, **options: P.kwargs) -> None:
        async def run_main() -> None:
            record_errors(notes)
            await main(notes, *args, **options)

        warnings.simplefilter("error")
        try:
            asyncio.run(run_main())
        except BaseException as error:
            notes.write("trouble", os.getpid(), f"{type(error).__name__}: {error}")
            raise

    return run
