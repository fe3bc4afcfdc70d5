"""Nodes on machines of their own, as far as one kernel allows: a network and process ids that only they see.

The machines are joined by a router, which is a network namespace too. All of it is gone when the tests are, because
each namespace lives as long as a process that reads from them. It needs root. A machine has the mounts of the moment
when it was made.
"""

import os
import random
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any, Literal, Self

import pytest

from tests.kit.processes import PATIENCE, STOPPED, list_descendants, read_state, wait_until

NOWHERE = "02:00:00:00:00:99"
"""A hardware address that nobody has: what is sent there is lost without a word."""
Direction = Literal["both", "from_node", "to_node"]
_HOLD = "ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_forward && echo ready && read -r _"
# The shell does not become the command: whoever enters a namespace would be frozen together with it.
_RUN = 'cd "$0" && "$@"; exit $?'
_UNSHARE = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")


@cache
def find_missing_part() -> str:
    """Why machines of their own are not possible here, or nothing."""
    if os.geteuid() != 0:
        return "only root can give a node a network of its own"
    if missing := [program for program in ("ip", "unshare", "nsenter") if not which(program)]:
        return f"there is no program {missing[0]}: apt-get install iproute2 util-linux"
    script = "ip link add veth0 type veth peer name veth1"
    done = subprocess.run([*_UNSHARE, "sh", "-c", script], capture_output=True, text=True, check=False)
    return f"namespaces are not allowed: {done.stderr.strip()}" if done.returncode else ""


needs_machines = pytest.mark.skipif(find_missing_part() != "", reason=f"NOT TESTED, {find_missing_part()}")


class Machine:
    """A network and process ids of its own, until it is switched off."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", find_missing_part()
        self.pid = list_descendants(self._holder.pid)[0]
        """The process with the number 1 of this machine."""
        self._processes: list[NodeProcess] = []

    def start(self, command: Sequence[str], folder: Path, **options: Any) -> "NodeProcess":
        """Start a process on this machine. The options are those of `subprocess.Popen`."""
        self._processes.append(NodeProcess(self, command, folder, **options))
        return self._processes[-1]

    def switch_off(self) -> None:
        """End all processes of the machine at once, and its network with them."""
        if self._holder.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            for process in self._processes:
                process.close()
            self._holder.communicate(timeout=PATIENCE)

    def build_command(self, command: Sequence[str], folder: Path) -> list[str]:
        """Build the command that runs another one on this machine, in a folder."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount"]
        return [*enter, "--", "sh", "-c", _RUN, str(folder), *command]

    def run(self, *command: str) -> str:
        """Run a command on this machine, and return what it writes."""
        words = self.build_command(command, Path("/"))
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


class NodeProcess:
    """A process on a machine. Its `pid` is the one that the tests see; on the machine it has another."""

    def __init__(self, machine: Machine, command: Sequence[str], folder: Path, **options: Any) -> None:
        self._entry = subprocess.Popen(machine.build_command(command, folder), start_new_session=True, **options)
        wait_until(lambda: len(list_descendants(self._entry.pid)) > 1 or not self.is_running())
        assert self.is_running(), f"it did not start: {command}"
        self.pid = list_descendants(self._entry.pid)[1]

    def is_running(self) -> bool:
        """Whether the process has not ended. A frozen one has not."""
        return self._entry.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop the process where it is."""
        self.send(signal.SIGSTOP)
        wait_until(lambda: read_state(self.pid) in STOPPED)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process at once, but not what it has started."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait until the process has ended. Return its exit code, or its signal as a negative number."""
        code = self._entry.wait(seconds)
        return 128 - code if code > 128 else code

    def close(self) -> None:
        """Wait until the process has ended, and close its streams."""
        with self._entry:
            self.wait()

    @property
    def stdin(self) -> Any:
        return self._entry.stdin

    @property
    def stdout(self) -> Any:
        return self._entry.stdout


class Node(Machine):
    """A machine with a cable to the router of its network."""

    def __init__(self, network: "Network", number: int) -> None:
        super().__init__()
        self._network, self._port = network, f"port{number}"
        self.address, self._gateway = f"{network.prefix}.{4 * number + 2}", f"{network.prefix}.{4 * number + 1}"
        connect_machines(network.router, self._port, f"{self._gateway}/30", self, "eth0", f"{self.address}/30")
        self.run("ip", "route", "add", "default", "via", self._gateway)

    def cut(self, direction: Direction = "both") -> None:
        """Lose all that is sent, as a broken cable does. Connections seem open, and TCP sends again after `heal()`."""
        if direction != "to_node":
            self.run("ip", "neigh", "replace", self._gateway, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")
        if direction != "from_node":
            self._network.router.run(
                *("ip", "neigh", "replace", self.address, "lladdr", NOWHERE, "dev", self._port, "nud", "permanent")
            )

    def heal(self) -> None:
        """Repair the cable."""
        for machine, address, port in ((self, self._gateway, "eth0"), (self._network.router, self.address, self._port)):
            if NOWHERE in machine.run("ip", "neigh", "show", address):
                machine.run("ip", "neigh", "del", address, "dev", port)


class Network:
    """Machines that reach each other and the host. They see the host as `address`, and its loopback not at all."""

    def __init__(self) -> None:
        self.prefix = f"10.{random.SystemRandom().randrange(128, 256)}.{random.SystemRandom().randrange(256)}"
        self.address = f"{self.prefix}.1"
        self.nodes: list[Node] = []

    def __enter__(self) -> Self:
        self.router = Machine()
        name = f"treadle{os.urandom(4).hex()}"
        connect_machines(None, name, f"{self.address}/30", self.router, "host", f"{self.prefix}.2/30")
        run_command("ip", "route", "add", f"{self.prefix}.0/24", "via", f"{self.prefix}.2")
        return self

    def __exit__(self, *_: object) -> None:
        for machine in (*self.nodes, self.router):
            machine.switch_off()

    def add_node(self) -> Node:
        """Add a machine that is connected."""
        self.nodes.append(Node(self, len(self.nodes) + 1))
        return self.nodes[-1]


def run_command(*command: str) -> None:
    """Run a command on the host."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def connect_machines(one: Machine | None, port: str, address: str, other: Machine, its_port: str, its: str) -> None:
    """Connect two machines by a cable. None is the host."""
    run = run_command if one is None else one.run
    where = [] if one is None else ["netns", str(one.pid)]
    run_command("ip", "link", "add", port, *where, "type", "veth", "peer", "name", its_port, "netns", str(other.pid))
    run("ip", "addr", "add", address, "dev", port)
    run("ip", "link", "set", port, "up")
    other.run("ip", "addr", "add", its, "dev", its_port)
    other.run("ip", "link", "set", its_port, "up")
