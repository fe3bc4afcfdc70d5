"""Opening an SQLite file that must not be changed: on a disk that is read-only or full, or damaged."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from urllib.parse import quote

from treadle.errors import NotFound


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a file for reading. It and its folder are left as they are, and other processes may write to it meanwhile.

    Its user closes it. One thread may use it, which need not be this one.
    """
    if not path.is_file():
        raise NotFound(f"there is no store {path}")
    try:
        return _connect(path, "mode=ro")
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode
        if (
            code & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            and code != sqlite3.SQLITE_IOERR_SHMSIZE
        ):
            raise
    # SQLite cannot create the files that it shares with other processes. So no process can have it open.
    log = path.with_name(f"{path.name}-wal")
    if not log.exists() or not log.stat().st_size:
        return _connect(path, "immutable=1")
    with tempfile.TemporaryDirectory(prefix="treadle-") as folder:  # the open files live on without their names
        for file in (path, log):
            shutil.copyfile(file, Path(folder) / file.name)
        return _connect(Path(folder) / path.name, "mode=rw")


def _connect(path: Path, option: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"file:{quote(str(path))}?{option}", uri=True, timeout=10, isolation_level=None, check_same_thread=False
    )
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens all files
    except BaseException:
        db.close()
        raise
    return db
