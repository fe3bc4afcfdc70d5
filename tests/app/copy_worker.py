"""A process that copies a store and kills itself after some writes. It copies in small pieces."""

import asyncio
import os
import signal
import sys
from typing import Any

import msgspec

from treadle.app.store_copy import copy_store
from treadle.log import postgres_copy, sqlite_copy
from treadle.log.postgres_copy import PostgresWriter
from treadle.log.sqlite_copy import SqliteWriter

WRITES = ("begin", "add_incoming", "put_artifact", "publish", "set_approval_key", "discard", "end")


def main(source: str, target: str, writes: str) -> None:
    left = int(writes)
    sqlite_copy.PIECE_FACTS = postgres_copy.PIECE_FACTS = 100

    def replace(kind: Any, name: str) -> None:
        write = getattr(kind, name)

        async def count(*values: Any) -> Any:
            nonlocal left
            result = await write(*values)
            if name != "set_approval_key":
                left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(kind, name, count)

    for name in WRITES:
        replace(PostgresWriter, name)
        replace(SqliteWriter, name)
    done = asyncio.run(copy_store(source, target, lambda _: None))
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
