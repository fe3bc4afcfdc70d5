"""A load balancer in front of several nodes: each new connection goes to the next node that takes it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Self
from urllib.parse import urlsplit

CHUNK = 65536


class Balancer:
    """Passes connections on, in turn. It looks at nothing, so a client that keeps a connection stays at its node."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.served: list[str] = []
        """The node of each connection so far."""
        self._turns = count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def host(self) -> str:
        """The name with the port, under which clients reach the nodes."""
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def address(self) -> str:
        return f"http://{self.host}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            to_node = await self._connect()
            writers.append(to_node[1])
            ways = (_pass_on(reader, to_node[1]), _pass_on(to_node[0], writer))
            async with asyncio.TaskGroup() as tasks:
                for way in ways:
                    tasks.create_task(way)
        except* OSError:
            pass
        finally:
            for one in writers:
                one.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        nodes: Sequence[str] = self.nodes
        for _ in nodes:
            node = nodes[next(self._turns) % len(nodes)]
            with suppress(OSError):
                found = await asyncio.open_connection(urlsplit(node).hostname, urlsplit(node).port)
                self.served.append(node)
                return found
        raise ConnectionError("no node takes connections")


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    target.close()
