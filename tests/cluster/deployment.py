"""Three nodes on machines of their own, a primary, a standby and a pooler: what the tests of faults break.

The nodes reach the pooler through one relay, and the primary for LISTEN through another one.
"""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

from tests.cluster.audit import AUDIT
from tests.crash.notes import Notes
from tests.kit.machines import Network, Node, NodeProcess
from tests.kit.pgbouncer import PgBouncer
from tests.kit.postgres import PostgresServer
from tests.kit.processes import PATIENCE, wait_until
from tests.kit.standby import Standby
from tests.kit.tcp_relay import TcpRelay
from treadle.log.postgres import PostgresLog

PROJECT = Path(__file__).parents[2]
PASSWORD = "it's-a-secret"
NODES = 3
LEASE = 2.0


class NodeUnderTest:
    """One node: its machine, its process, and what it says."""

    def __init__(self, cluster: Cluster, machine: Node, name: str) -> None:
        self.machine, self.name, self._cluster = machine, name, cluster
        self.owner, self.pace, self.thinking, self.is_answering = "", 1.0, 0.05, True
        self._starts = 0

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process, and wait until it runs sessions."""
        self.begin_start(environment)
        self.finish_start()

    def begin_start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the process."""
        self._starts += 1
        name, cluster = f"{self.name}.{self._starts}", self._cluster
        command = [sys.executable, "-m", "tests.cluster.node", str(cluster.notes.folder), str(LEASE)]
        with (cluster.notes.folder / f"{name}.stderr").open("wb") as errors:
            self.process: NodeProcess = self.machine.start(
                [*command, str(self.pace), str(self.thinking), name],
                PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "NODE_URL": cluster.url, **(environment or {})},
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process.stdout, self._lines), daemon=True).start()

    def finish_start(self) -> None:
        """Wait until the process runs sessions."""
        self.owner = self.read_line().split()[1]
        if self.is_answering:
            self.tell("auto")
            assert self.read_line() == "auto"

    @staticmethod
    def _read(stream: Any, lines: queue.SimpleQueue[str]) -> None:
        for line in stream:
            lines.put(line.decode().strip())

    def tell(self, *words: object) -> None:
        """Give the node a command."""
        self.process.stdin.write(f"{' '.join(map(str, words))}\n".encode())
        self.process.stdin.flush()

    def read_line(self, seconds: float = PATIENCE) -> str:
        """Return what the node says next."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            errors = sorted(self._cluster.notes.folder.glob(f"{self.name}.*.stderr"))
            raise AssertionError(f"{self.name} says nothing: {errors[-1].read_text()}") from None


class Cluster:
    """The whole of it. Leaving the block ends everything.

    `pooled` puts PgBouncer before the database. Otherwise the nodes get the addresses of all servers in one URL.
    """

    def __init__(
        self,
        folder: Path,
        *,
        standby: Literal["none", "synchronous", "asynchronous"] = "synchronous",
        pooled: bool = True,
        server: Mapping[str, Any] | None = None,
    ) -> None:
        self._stack, self._folder, self._pooled, self._standby = ExitStack(), folder, pooled, standby
        self._server_options = {"password": PASSWORD, **(server or {})}
        self.nodes: list[NodeUnderTest] = []
        self.sessions: list[str] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._build(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _build(self, stack: ExitStack) -> None:
        self.network = stack.enter_context(Network())
        self.primary = self.server = stack.enter_context(PostgresServer(**self._server_options))
        self.standby: Standby | None = None
        if self._standby != "none":
            self.replication_cable = stack.enter_context(TcpRelay(self.primary.port))
            is_synchronous = self._standby == "synchronous"
            self.standby = stack.enter_context(
                Standby(self.primary, synchronous=is_synchronous, upstream_port=self.replication_cable.port)
            )
        host, self.pooler = self.network.address, None
        if self._pooled:
            self.pooler = stack.enter_context(PgBouncer(self.primary))
        front = self.pooler.port if self.pooler is not None else self.primary.port
        self.cable = stack.enter_context(TcpRelay(front, host=host))
        self.listen_cable = stack.enter_context(TcpRelay(self.primary.port, host=host))
        self.url = self.primary.build_url(host=host, port=self.cable.port)
        if self._pooled:
            self.url += f"?listen={host}:{self.listen_cable.port}"
        elif self.standby is not None:
            second = stack.enter_context(TcpRelay(self.standby.port, host=host))
            place = f"{host}:{self.cable.port}"
            self.url = self.url.replace(place, f"{place},{host}:{second.port}")
        self.notes = Notes(self._folder, self.url)
        self._create_tables()
        self.nodes = [NodeUnderTest(self, self.network.add_node(), f"node{n}") for n in range(1, NODES + 1)]

    def _create_tables(self) -> None:
        async def create() -> None:
            log = PostgresLog(self.primary.build_url())
            await log.get_approval_key()
            await log.close()

        asyncio.run(create())
        for statement in AUDIT:
            self.server.query(statement)

    # --- what tests ask of it

    def start_nodes(self, pace: float = 1.0, *, thinking: float = 0.05, answering: bool = True) -> None:
        """Start all nodes. They answer every approval, unless they should wait for a command."""
        for node in self.nodes:
            node.pace, node.thinking, node.is_answering = pace, thinking, answering
            node.begin_start()
        for node in self.nodes:
            node.finish_start()

    def start_sessions(self, count: int) -> list[str]:
        """Start so many sessions, spread over the nodes, and wait until their messages are stored."""
        names = [f"s{len(self.sessions) + number}" for number in range(count)]
        self.sessions += names
        for place, node in enumerate(self.nodes):
            node.tell("start", *names[place :: len(self.nodes)])
        assert [node.read_line() for node in self.nodes] == ["started"] * len(self.nodes)
        return names

    def find_unfinished(self) -> list[tuple[Any, ...]]:
        """List the sessions that have not ended, as rows of id, status, owner and wake_at."""
        sql = """SELECT id, status, owner, wake_at FROM treadle.sessions
            WHERE (status <> 'answered' OR owner <> '') AND NOT starts_with(id, 'probe')"""
        return self.server.query(sql)

    def wait_until_all_ended(self, seconds: float = 2 * PATIENCE) -> None:
        """Wait until every session has ended."""
        try:
            wait_slowly(lambda: not self.find_unfinished(), seconds)
        except AssertionError:
            said = "\n".join(" ".join(words) for words in self.notes.read("trouble")[-20:])
            raise AssertionError(f"these have not ended: {self.find_unfinished()}\n{said}") from None

    def measure_rest(self, since: float) -> float:
        """How long nobody stored a fact from a moment on. Wait for the first one, if one can come."""
        sql = "SELECT min(at) FROM audit.facts WHERE at > %s"
        wait_slowly(lambda: self.server.query(sql, since) != [(None,)] or not self.find_unfinished())
        first = self.server.query(sql, since)[0][0]
        return 0.0 if first is None else first - since

    def probe(self) -> list[str]:
        """Let every node create a session. Return what they say: `works`, or an error."""
        for node in self.nodes:
            node.tell("probe")
        answers = [node.read_line().removeprefix("probe ") for node in self.nodes]
        print(*answers, sep="\n")
        return [answer.partition(" ")[2] for answer in answers]

    def count_facts(self, condition: str = "true") -> int:
        """Count the facts in the database."""
        return self.server.query(f"SELECT count(*) FROM treadle.facts WHERE {condition}")[0][0]

    def wait_for_facts(self, more: int) -> None:
        """Wait until so many facts more are stored: the nodes are at work."""
        wanted = self.count_facts() + more
        wait_slowly(lambda: self.count_facts() >= wanted or not self.find_unfinished())

    def wait_for_takeover(self, owner: str, since: float) -> None:
        """Wait until nobody is left to take over from a node that failed."""
        taken = "SELECT 1 FROM audit.claims WHERE earlier_owner = %s AND at > %s LIMIT 1"
        held = "SELECT 1 FROM treadle.sessions WHERE owner = %s LIMIT 1"
        wait_slowly(lambda: self.server.query(taken, owner, since) and not self.server.query(held, owner))

    def wait_for_claims(self, owner: str, since: float) -> None:
        """Wait until somebody has taken over the first session of a node that failed."""
        taken = "SELECT 1 FROM audit.claims WHERE earlier_owner = %s AND at > %s LIMIT 1"
        wait_until(lambda: self.server.query(taken, owner, since))

    def read_time(self) -> float:
        """The time of the database."""
        return float(self.server.query("SELECT extract(epoch FROM clock_timestamp())::double precision")[0][0])

    def choose_busy_node(self, but: Sequence[NodeUnderTest] = ()) -> NodeUnderTest:
        """Choose the node that runs most sessions now."""
        sql = "SELECT owner FROM treadle.sessions WHERE owner <> '' GROUP BY owner ORDER BY count(*) DESC"
        owners = [owner for (owner,) in self.server.query(sql)]
        rank = {owner: place for place, owner in enumerate(owners)}
        return min((node for node in self.nodes if node not in but), key=lambda node: rank.get(node.owner, 99))

    def fail_over(self) -> None:
        """Make the standby the primary, and lead the pooler and LISTEN there."""
        assert self.standby is not None
        self.standby.promote()
        self.server = self.standby
        if self.pooler is not None:
            self.pooler.point_at(self.standby)
            self.listen_cable.point_at(self.standby.port)


def wait_slowly(what: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition is true that costs a query."""

    def is_true() -> bool:
        if what():
            return True
        time.sleep(0.1)
        return False

    wait_until(is_true, seconds)
