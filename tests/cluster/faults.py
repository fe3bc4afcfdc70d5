"""What can break while a cluster is at work, at random instants. Each fault is over when its function returns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import psycopg

from tests.cluster.deployment import LEASE, Cluster
from tests.kit.machines import Direction
from tests.kit.small_disk import fill_disk

POOL_SIZE = 20
"""How many connections the pooler has."""


@dataclass(frozen=True)
class Failure:
    """A node that failed, so that others had to take over its sessions, and when."""

    name: str
    owner: str
    since: float


Fault = Callable[[Cluster, random.Random], Failure | None]


def pause(instants: random.Random, least: float, most: float) -> None:
    """Let the fault last: no fact tells when it is enough."""
    time.sleep(instants.uniform(least, most))


def kill_node(cluster: Cluster, instants: random.Random) -> Failure:
    victim = instants.choice(cluster.nodes)
    failure = Failure(victim.name, victim.owner, cluster.read_time())
    victim.process.kill()
    pause(instants, 0, 2 * LEASE)
    victim.start()
    return failure


def freeze_node(cluster: Cluster, instants: random.Random) -> Failure:
    victim = instants.choice(cluster.nodes)
    failure = Failure(victim.name, victim.owner, cluster.read_time())
    victim.process.freeze()
    pause(instants, LEASE, 3 * LEASE)
    victim.process.thaw()
    return failure


def cut_node(direction: Direction) -> Fault:
    def cut(cluster: Cluster, instants: random.Random) -> Failure:
        victim = instants.choice(cluster.nodes)
        failure = Failure(victim.name, victim.owner, cluster.read_time())
        victim.machine.cut(direction)
        pause(instants, LEASE / 2, 3 * LEASE)
        victim.machine.heal()
        return failure

    return cut


def flap(cluster: Cluster, instants: random.Random) -> None:
    """Cut nodes off again and again, for a part of a lease."""
    for _ in range(10):
        victim = instants.choice(cluster.nodes)
        victim.machine.cut(instants.choice(["both", "from_node", "to_node"]))
        pause(instants, 0, LEASE)
        victim.machine.heal()


def restart_pooler(cluster: Cluster, instants: random.Random) -> None:
    assert cluster.pooler is not None
    cluster.pooler.kill()
    pause(instants, 0, 2 * LEASE)
    cluster.pooler.start()


def freeze_pooler(cluster: Cluster, instants: random.Random) -> None:
    assert cluster.pooler is not None
    cluster.pooler.freeze()
    pause(instants, 0, 3 * LEASE)
    cluster.pooler.thaw()


def lose_answers(cluster: Cluster, instants: random.Random) -> None:
    """Lose the answers of the database to what it has done, again and again. No lease ends meanwhile."""
    for _ in range(10):
        cluster.cable.cut("to_client")
        pause(instants, 0, LEASE / 10)
        cluster.cable.heal(lose=True)
        pause(instants, 0, LEASE / 4)


def cut_news(cluster: Cluster, instants: random.Random) -> None:
    cluster.listen_cable.cut()
    pause(instants, 0, 3 * LEASE)
    cluster.listen_cable.heal(lose=instants.random() < 0.5)


def take_connections(cluster: Cluster, instants: random.Random) -> None:
    assert cluster.pooler is not None
    with ExitStack() as connections:
        for _ in range(POOL_SIZE):
            connection = connections.enter_context(psycopg.connect(cluster.pooler.build_url(), prepare_threshold=None))
            connection.execute("SELECT 1")  # its transaction holds one of the pooler's connections
        pause(instants, 0, 3 * LEASE)


def restart_primary(cluster: Cluster, instants: random.Random) -> None:
    cluster.primary.kill()
    pause(instants, 0, 3 * LEASE)
    cluster.primary.start()


def freeze_primary(cluster: Cluster, instants: random.Random) -> None:
    cluster.primary.freeze()
    pause(instants, 0, 3 * LEASE)
    cluster.primary.thaw()


def promote_standby(cluster: Cluster, instants: random.Random) -> None:
    cluster.primary.kill()
    pause(instants, 0, 2 * LEASE)
    cluster.fail_over()


def refuse_connections(cluster: Cluster, instants: random.Random) -> None:
    """Leave the server no connection for the nodes."""
    with ExitStack() as connections:
        cluster.cable.refuse()
        with suppress(psycopg.OperationalError):
            while True:
                connections.enter_context(cluster.server.connect())
        cluster.cable.heal()
        pause(instants, 0, 3 * LEASE)


def fill_the_disk(cluster: Cluster, instants: random.Random) -> None:
    filler = fill_disk(cluster.server.data)
    pause(instants, 0, 3 * LEASE)
    filler.unlink()
    if not cluster.server.is_running():
        cluster.server.start()


OF_NODES: dict[str, Fault] = {
    "kill": kill_node,
    "freeze": freeze_node,
    "cut": cut_node("both"),
    "cut from": cut_node("from_node"),
    "cut to": cut_node("to_node"),
    "flap": flap,
}
OF_DATABASES: dict[str, Fault] = {
    "pooler": restart_pooler,
    "frozen pooler": freeze_pooler,
    "answers": lose_answers,
    "news": cut_news,
    "connections": take_connections,
    "primary": restart_primary,
    "frozen primary": freeze_primary,
    "promote": promote_standby,
}
WITHOUT_POOLER: dict[str, Fault] = {"no connection": refuse_connections, "disk": fill_the_disk}


def break_everything(cluster: Cluster, instants: random.Random) -> None:
    """One fault after another, of every kind that can come back."""
    kinds = [*OF_NODES.values(), *(fault for name, fault in OF_DATABASES.items() if name != "promote")]
    for _ in range(5):
        instants.choice(kinds)(cluster, instants)
        pause(instants, 0, LEASE)
