"""A relay between a node and a server, in a process of its own, that a test can cut like a cable.

Run as a program it is the relay: it reads commands from its standard input and ends with it.
"""

import asyncio
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from tests.kit.processes import PATIENCE, find_free_port

PROJECT = Path(__file__).parents[2]
CHUNK = 65536
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
Direction = Literal["both", "to_server", "to_client"]


class TcpRelay:
    """Takes connections on a port of its own and passes them on to a port of loopback.

    `host` is the address where it listens, for nodes in network namespaces of their own.
    """

    def __init__(self, target_port: int, *, host: str = "127.0.0.1") -> None:
        self.host, self.port, self._target_port = host, find_free_port(), target_port

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.kit.tcp_relay", self.host, str(self.port), str(self._target_port)]
        self._process = subprocess.Popen(
            command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._read_answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE)

    def cut(self, direction: Direction = "both") -> None:
        """Let nothing through any more, while all connections seem open and new ones are taken.

        As with a real cable, what is sent meanwhile is on its way: it arrives after `heal()`.
        """
        self._tell(f"cut {direction}")

    def heal(self, *, lose: bool = False) -> None:
        """Let everything through again. With `lose` the connections of before end, and what was on its way is lost."""
        self._tell("heal lose" if lose else "heal")

    def reset(self) -> None:
        """End all connections with a TCP reset. New ones are taken."""
        self._tell("reset")

    def refuse(self) -> None:
        """End all connections with a TCP reset, and refuse new ones until `heal()`."""
        self._tell("refuse")

    def point_at(self, port: int) -> None:
        """Pass new connections on to another port, as after a failover."""
        self._tell(f"target {port}")

    def count_connections(self) -> int:
        """Count the connections that are open."""
        return int(self._tell("count"))

    def _tell(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._read_answer()

    def _read_answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, "the relay has ended"
        return answer.strip()


class _Connection:
    """A client, the server that it talks to, and what passes between them."""

    def __init__(self, relay: "_Relay", client: socket.socket) -> None:
        self._relay, self._client, self._server = relay, client, socket.socket()
        self._server.setblocking(False)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: relay.connections.discard(self))

    async def _run(self) -> None:
        loop, relay = asyncio.get_running_loop(), self._relay
        with self._client, self._server, suppress(OSError):
            try:
                await asyncio.gather(relay.open["to_server"].wait(), relay.open["to_client"].wait())
                await loop.sock_connect(self._server, ("127.0.0.1", relay.target_port))
                for end in (self._client, self._server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass_on(self._client, self._server, relay.open["to_server"]))
                    tasks.create_task(self._pass_on(self._server, self._client, relay.open["to_client"]))
            except* (OSError, asyncio.CancelledError):  # one end is gone, or a test wants it gone: so is the other
                for end in (self._client, self._server):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)

    @staticmethod
    async def _pass_on(source: socket.socket, target: socket.socket, is_open: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(source, CHUNK):
            await is_open.wait()
            await loop.sock_sendall(target, data)
        await is_open.wait()
        target.shutdown(socket.SHUT_WR)

    async def reset(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class _Relay:
    """The relay itself."""

    def __init__(self, host: str, port: int, target_port: int) -> None:
        self._address, self.target_port = (host, port), target_port
        self.open = {"to_server": asyncio.Event(), "to_client": asyncio.Event()}
        self.connections: set[_Connection] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._open_all()

    async def obey(self, command: str) -> object:
        """Do what a line asks for, and return the answer."""
        match command.split():
            case ["cut", direction]:
                for name in self.open if direction == "both" else (direction,):
                    self.open[name].clear()
            case ["heal", *how]:
                if how == ["lose"]:
                    await self._reset()
                self._open_all()
            case ["reset"]:
                await self._reset()
            case ["refuse"]:
                await self._stop_listening()
                await self._reset()
            case ["target", port]:
                self.target_port = int(port)
            case ["count"]:
                return len(self.connections)
            case _:
                raise ValueError(command)
        return "done"

    def _open_all(self) -> None:
        for event in self.open.values():
            event.set()
        if self._accepting is None:
            listener = socket.create_server(self._address, backlog=1024)
            listener.setblocking(False)
            self._accepting = asyncio.create_task(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                client.setblocking(False)
                self.connections.add(_Connection(self, client))

    async def _stop_listening(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None

    async def _reset(self) -> None:
        for connection in list(self.connections):
            await connection.reset()


async def run_relay(host: str, port: int, target_port: int) -> None:
    """Relay until the standard input ends."""
    relay = _Relay(host, port, target_port)
    print("listening", flush=True)
    while command := await asyncio.to_thread(sys.stdin.readline):
        print(await relay.obey(command), flush=True)
    await relay.obey("refuse")


if __name__ == "__main__":
    asyncio.run(run_relay(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
