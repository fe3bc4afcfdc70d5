"""Machines, clocks and disks of their own are what they say."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.kit.machines import Network, Node, needs_machines
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.processes import PATIENCE, read_state, wait_until
from tests.kit.shifted_clock import ShiftedClock
from tests.kit.small_disk import fill_disk
from tests.kit.tcp_relay import TcpRelay

ECHO = """
import socket
with socket.create_server(("", 7000)) as listener:
    print("ready", flush=True)
    while True:
        client, _ = listener.accept()
        while data := client.recv(100):
            client.sendall(data)
"""
SHORTLY = 0.3
"""Seconds to wait for what must not come."""


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


def start_echo(node: Node) -> None:
    process = node.start([sys.executable, "-c", ECHO], Path("/"), stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"


def is_echoed(client: socket.socket, data: bytes, seconds: float = PATIENCE) -> bool:
    client.settimeout(seconds)
    with suppress(TimeoutError):
        client.sendall(data)
        assert client.recv(len(data)) == data
        return True
    return False


@needs_machines
def test_a_machine_has_process_ids_and_a_network_of_its_own(network: Network) -> None:
    one, two = network.add_node(), network.add_node()
    process = one.start(["sleep", "1000"], Path("/"))
    assert os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    assert f"{process.pid}" not in one.run("ls", "/proc").split()
    assert "sleep" in one.run("ps", "-A", "-o", "comm")
    assert "sleep" not in two.run("ps", "-A", "-o", "comm")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = f"import socket; print(socket.socket().connect_ex(('127.0.0.1', {port})) != 0)"
        assert one.run(sys.executable, "-c", code) == "True\n"


@needs_machines
@needs_postgres
def test_a_machine_reaches_the_database_through_a_relay(network: Network) -> None:
    node = network.add_node()
    with PostgresServer(password="it's a secret") as server, TcpRelay(server.port, host=network.address) as relay:
        url = server.build_url(host=network.address, port=relay.port)
        code = "import psycopg, sys; print(psycopg.connect(sys.argv[1]).execute('SELECT 7').fetchone())"
        assert node.run(sys.executable, "-W", "ignore", "-c", code, url) == "(7,)\n"


@needs_machines
def test_machines_and_the_host_reach_each_other(network: Network) -> None:
    one, two = network.add_node(), network.add_node()
    start_echo(one)
    with socket.create_connection((one.address, 7000), PATIENCE) as client:
        assert is_echoed(client, b"from the host")
    code = f"import socket; socket.create_connection(('{one.address}', 7000)); print('reached')"
    assert two.run(sys.executable, "-c", code) == "reached\n"


@needs_machines
@pytest.mark.parametrize("direction", ["both", "from_node", "to_node"])
def test_a_cut_cable_loses_packets_until_it_heals(network: Network, direction: str) -> None:
    one, two = network.add_node(), network.add_node()
    start_echo(one)
    start_echo(two)
    with (
        socket.create_connection((one.address, 7000), PATIENCE) as cut_off,
        socket.create_connection((two.address, 7000), PATIENCE) as other,
    ):
        assert is_echoed(cut_off, b"before")
        one.cut(direction)
        assert not is_echoed(cut_off, b"during", SHORTLY)
        assert is_echoed(other, b"during")
        one.heal()
        cut_off.settimeout(PATIENCE)
        assert cut_off.recv(6) == b"during"


@needs_machines
def test_a_cut_one_way_leaves_the_other_open(network: Network) -> None:
    node = network.add_node()
    code = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'out', ('{network.address}', PORT))"
    with socket.socket(type=socket.SOCK_DGRAM) as host:
        host.bind((network.address, 0))
        send = code.replace("PORT", str(host.getsockname()[1]))
        node.cut("to_node")
        node.run(sys.executable, "-c", send)
        host.settimeout(PATIENCE)
        assert host.recv(3) == b"out"
        node.heal()
        node.cut("from_node")
        node.run(sys.executable, "-c", send)
        host.settimeout(SHORTLY)
        with pytest.raises(TimeoutError):
            host.recv(3)


@needs_machines
def test_a_process_on_a_machine_is_frozen_killed_and_ends_with_it(network: Network) -> None:
    node = network.add_node()
    sleeper, other, last = (node.start(["sleep", "1000"], Path("/")) for _ in range(3))
    sleeper.freeze()
    assert read_state(sleeper.pid) == "T"
    sleeper.thaw()
    wait_until(lambda: read_state(sleeper.pid) == "S")
    sleeper.send(signal.SIGTERM)
    assert sleeper.wait() == -signal.SIGTERM
    other.freeze()
    other.kill()
    assert last.is_running()
    last.freeze()
    node.switch_off()
    assert not last.is_running()


@needs_machines
def test_nothing_of_a_network_is_left() -> None:
    with Network() as network:
        node = network.add_node()
        assert network.prefix in subprocess.check_output(["ip", "route"], text=True)
    wait_until(lambda: network.prefix not in subprocess.check_output(["ip", "route"], text=True))
    assert read_state(node.pid) in ("", "Z")


@pytest.mark.parametrize("hours", [1, -1])
def test_a_shifted_clock_is_wrong_and_can_jump(tmp_path: Path, hours: int) -> None:
    clock = ShiftedClock(tmp_path / "clock", hours * 3600)
    code = "import time\nwhile True:\n input()\n print(time.time(), time.time_ns(), time.monotonic(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for shift in (hours * 3600, 0, 60):
            clock.shift(shift)
            process.stdin.write("\n")
            process.stdin.flush()
            wall, wall_ns, steady = map(float, process.stdout.readline().split())
            assert wall - time.time() == pytest.approx(shift, abs=30)
            assert wall_ns / 1e9 == pytest.approx(wall, abs=30)
            assert steady <= time.monotonic()
        process.kill()


@needs_postgres
def test_a_server_on_a_full_disk_refuses_writes_and_keeps_what_it_has() -> None:
    with PostgresServer(disk_megabytes=100) as server:
        server.query("CREATE TABLE kept (word text)")
        server.query("INSERT INTO kept VALUES ('before')")
        filler = fill_disk(server.data)
        with pytest.raises(psycopg.Error):
            server.query("INSERT INTO kept SELECT repeat(md5(n::text), 200) FROM generate_series(1, 20000) AS n")
        filler.unlink()
        if not server.is_running():
            server.start()
        wait_until(lambda: can_write(server))
        assert server.query("SELECT word FROM kept ORDER BY word") == [("after",), ("before",)]


def can_write(server: PostgresServer) -> bool:
    with suppress(psycopg.OperationalError):
        server.query("INSERT INTO kept VALUES ('after')")
        return True
    return False
