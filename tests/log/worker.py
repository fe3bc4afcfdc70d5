"""Another process at the same store, for test_sqlite.py: `worker.py COMMAND PATH ...`.

It says on its standard output what it has done, line by line, so that the test can wait for facts.
"""

import asyncio
import importlib
import os
import sys
from pathlib import Path

from treadle.errors import TreadleError
from treadle.events import Custom, SessionCreated
from treadle.log.base import SessionQuery
from treadle.log.open_log import open_log
from treadle.log.owner import make_owner_name
from treadle.log.sqlite import SqliteLog


def say(*words: object) -> None:
    print(*words, flush=True)


async def append_many(path: str, name: str, count: str) -> None:
    """Append to a session of one's own and post to `s`, which all share."""
    log = SqliteLog(path, busy_timeout=60)
    await log.create(name, [SessionCreated(session_id=name)])
    claim = await log.claim(name, 60, name)
    assert claim is not None
    say("ready")
    sys.stdin.readline()
    for number in range(int(count)):
        await log.append(claim, number + 1, [Custom(name=name, data=number)])
        await log.post("s", [Custom(name=name, data=number)])
    await log.close()
    say("done")


async def append_forever(path: str) -> None:
    log = SqliteLog(path)
    await log.create("s", [SessionCreated(session_id="s")])
    claim = await log.claim(make_owner_name(), 3600, "s")
    assert claim is not None
    seq = 1
    while True:
        await log.append(claim, seq, [Custom(name="a", data="x" * 500), Custom(name="b")], f"k{seq}")
        seq += 2
        say(seq)


async def obey(path: str) -> None:
    """Do what standard input says: post, delete, make, remake or unknown, and a session."""
    log = SqliteLog(path)
    say("ready")
    for line in sys.stdin:
        command, session_id = line.split()
        if command == "post":
            await log.post(session_id, [Custom(name="elsewhere")])
        elif command == "delete":
            await log.delete(session_id)
        elif command in ("make", "remake"):
            if command == "remake":
                await log.delete(session_id)
            await log.create(session_id, [SessionCreated(session_id=session_id), Custom(name="remade")])
        elif command == "unknown":
            with log._file.transaction as db:  # pyright: ignore
                db.execute("INSERT INTO facts SELECT max(place) + 1, ? FROM facts", (UNKNOWN,))
        say(command)
    await log.close()


UNKNOWN = b'{"type":"dream_dreamt","of":"sheep"}'


async def open_as_nobody(path: str) -> None:
    """Try to open a store without the rights of root, which chmod does not bind."""
    for name in ("treadle.log.read_only", "concurrent.futures.thread"):  # nobody may not read the folders of root
        importlib.import_module(name)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        log = SqliteLog(path)
        await log.create("new", [SessionCreated(session_id="new")])
        say("opened")
    except TreadleError as error:
        say(type(error).__name__, error)
    if Path(path).exists():
        async with open_log(path, read_only=True) as log:
            found = [info.id async for info in log.iterate_sessions(SessionQuery())]
            say("read", *found, len(await log.read("s")), len(await log.search("x")))


async def hold(path: str) -> None:
    """Hold the write lock until a line comes in, as a process that is frozen in the middle of a write does."""
    log = SqliteLog(path)
    with log._file.transaction:  # pyright: ignore
        say("held")
        sys.stdin.readline()
    await log.close()
    say("released")


async def open_and_close(path: str) -> None:
    log = SqliteLog(path)
    say((await log.get_info("s")).seq)
    await log.close()


if __name__ == "__main__":
    commands = (append_many, append_forever, obey, open_as_nobody, hold, open_and_close)
    asyncio.run({run.__name__: run for run in commands}[sys.argv[1]](*sys.argv[2:]))
    assert Path(sys.argv[2]).exists()
