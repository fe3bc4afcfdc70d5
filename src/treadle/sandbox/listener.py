"""The program that opens listening sockets inside the networks of sandboxes and passes them to us.

It runs by its path in a bare interpreter, so it imports nothing of treadle. It is a process of its own because only a
process with a single thread may enter a user namespace. It forks for each socket, which is much faster than a start.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import sys

_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_IP_FREEBIND = 15
_MAX_REQUEST_BYTES = 64

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve requests on the descriptor in the first argument until nobody holds its other end.

    A request is the number of a process in the sandbox and a port, with the socket to send the listener through.
    """
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        while True:
            data, descriptors, _, _ = socket.recv_fds(channel, _MAX_REQUEST_BYTES, 1)
            if not data:
                return
            child = os.fork()
            if child == 0:
                try:
                    pid, port = data.split()
                    _send_listener(int(pid), int(port), descriptors[0])
                finally:
                    os._exit(0)  # without a listener, whoever asked reads the end
            os.close(descriptors[0])
            os.waitpid(child, 0)


def _send_listener(pid: int, port: int, answer: int) -> None:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _enter_namespace(fcntl.ioctl(network, _NS_GET_USERNS), _CLONE_NEWUSER)
    _enter_namespace(network, _CLONE_NEWNET)
    with socket.socket() as listener, socket.socket(fileno=answer) as sender:
        # The sandbox may not have enabled its loopback interface yet.
        listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        socket.send_fds(sender, [b"."], [listener.fileno()])


def _enter_namespace(namespace: int, kind: int) -> None:
    if _libc.setns(namespace, kind) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
