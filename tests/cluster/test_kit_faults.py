"""The faults that the other tests rely on are real."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.kit.processes import PATIENCE, wait_until
from tests.kit.tcp_relay import TcpRelay


class Line:
    """Both ends of a connection through a relay."""

    def __init__(self, relay: TcpRelay, listener: socket.socket) -> None:
        self.client = socket.create_connection((relay.host, relay.port), PATIENCE)
        self.server = listener.accept()[0]
        self.server.settimeout(PATIENCE)

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        yield listener


@pytest.fixture
def relay(listener: socket.socket) -> Iterator[TcpRelay]:
    with TcpRelay(listener.getsockname()[1]) as relay:
        yield relay


@pytest.fixture
def line(relay: TcpRelay, listener: socket.socket) -> Iterator[Line]:
    line = Line(relay, listener)
    yield line
    line.close()


def arrives(sender: socket.socket, receiver: socket.socket, data: bytes, seconds: float = PATIENCE) -> bool:
    """Send something, and tell whether it arrives."""
    sender.sendall(data)
    return is_received(receiver, data, seconds)


def is_received(receiver: socket.socket, data: bytes, seconds: float = PATIENCE) -> bool:
    receiver.settimeout(seconds)
    with suppress(TimeoutError):
        assert receiver.recv(len(data), socket.MSG_WAITALL) == data
        return True
    return False


SHORTLY = 0.3
"""Seconds to wait for what must not come."""


def test_a_cut_stops_both_ways_and_what_was_sent_arrives_when_it_heals(relay: TcpRelay, line: Line) -> None:
    assert arrives(line.client, line.server, b"ping")
    assert arrives(line.server, line.client, b"pong")
    relay.cut()
    assert not arrives(line.client, line.server, b"late", SHORTLY)
    assert not arrives(line.server, line.client, b"slow", SHORTLY)
    relay.heal()
    assert is_received(line.server, b"late")
    assert is_received(line.client, b"slow")


@pytest.mark.parametrize("to_server", [True, False])
def test_a_cut_one_way_leaves_the_other_open(relay: TcpRelay, line: Line, to_server: bool) -> None:
    relay.cut("to_server" if to_server else "to_client")
    ends = (line.client, line.server) if to_server else (line.server, line.client)
    assert arrives(*reversed(ends), b"open")
    assert not arrives(*ends, b"shut", SHORTLY)
    relay.heal()
    assert is_received(ends[1], b"shut")


def test_a_cut_hides_the_end_of_the_other_side(relay: TcpRelay, line: Line) -> None:
    relay.cut()
    line.client.close()
    line.server.settimeout(SHORTLY)
    with pytest.raises(TimeoutError):
        line.server.recv(1)
    relay.heal()
    line.server.settimeout(PATIENCE)
    assert line.server.recv(1) == b""


def test_a_new_connection_during_a_cut_hangs(relay: TcpRelay, listener: socket.socket) -> None:
    relay.cut()
    with socket.create_connection((relay.host, relay.port), PATIENCE) as client:
        client.sendall(b"hello")
        listener.settimeout(SHORTLY)
        with pytest.raises(TimeoutError):
            listener.accept()
        relay.heal()
        listener.settimeout(PATIENCE)
        with listener.accept()[0] as server:
            assert is_received(server, b"hello")


def test_a_healed_cut_can_lose_what_was_on_its_way(relay: TcpRelay, line: Line) -> None:
    relay.cut()
    line.client.sendall(b"lost")
    relay.heal(lose=True)
    for end in (line.client, line.server):
        end.settimeout(PATIENCE)
        with pytest.raises(ConnectionResetError):
            end.recv(4)
    wait_until(lambda: relay.count_connections() == 0)


def test_a_refusing_relay_ends_connections_and_takes_none_until_it_heals(
    relay: TcpRelay, line: Line, listener: socket.socket
) -> None:
    relay.refuse()
    with pytest.raises(ConnectionResetError):
        line.client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((relay.host, relay.port), PATIENCE)
    relay.heal()
    again = Line(relay, listener)
    assert arrives(again.client, again.server, b"back")
    again.close()


def test_a_client_that_resets_is_reset_at_the_server(line: Line) -> None:
    line.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.client.close()
    with pytest.raises(ConnectionResetError):
        line.server.recv(1)
