"""A network for a sandbox that has none: our proxy listens on a socket inside the sandbox's own network.

No process runs inside for it. A command reaches only what the proxy connects to, and not the host's loopback.
"""

from __future__ import annotations

import asyncio
import atexit
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from treadle.sandbox import proxy
from treadle.sandbox.base import Job, SandboxUnavailable
from treadle.sandbox.process import spawn_process, wait_until_readable

PROXY_PORT = 3128
_LISTENER = Path(__file__).with_name("listener.py")
_TIMEOUT = 20.0
_ATTEMPTS = 2

JAVA_PROXY_OPTIONS = " ".join(
    f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={PROXY_PORT}" for scheme in ("http", "https")
)
"""Options that tell Java's build tools to use the proxy. They do not read `https_proxy`."""

_CLIENT_TIMEOUT_S = 900
# A client must not give up while a person thinks about a host.
_CLIENT_TIMEOUTS = {
    **dict.fromkeys(
        ("PIP_DEFAULT_TIMEOUT", "UV_HTTP_TIMEOUT", "CARGO_HTTP_TIMEOUT", "POETRY_REQUESTS_TIMEOUT", "BUNDLE_TIMEOUT"),
        str(_CLIENT_TIMEOUT_S),
    ),
    **dict.fromkeys(("npm_config_fetch_timeout", "YARN_HTTP_TIMEOUT"), str(_CLIENT_TIMEOUT_S * 1000)),
}


def build_proxy_environment(job: Job) -> dict[str, str]:
    """Build the variables that tell programs to use the proxy, if the job has one."""
    if not has_proxy(job):
        return {}
    address = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    local = dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")
    return {**dict.fromkeys(names, address), **local, **(_CLIENT_TIMEOUTS if job.ask_host is not None else {})}


def has_proxy(job: Job) -> bool:
    """Tell whether a proxy runs for a job: it may reach hosts, or ask for them."""
    return job.network or job.ask_host is not None


@asynccontextmanager
async def open_network(
    pid: int, job: Job, resolve: proxy.Resolve = proxy.resolve_host, public: proxy.IsPublic = proxy.is_public_address
) -> AsyncGenerator[proxy.HostAccess]:
    """Open the network of the sandbox of process `pid`, as far as its job grants one or may ask for one."""
    hosts = job.allow_hosts if job.network else None
    rules = proxy.ProxyRules(hosts, resolve, public, job.ask_host, job.own_registries)
    access = proxy.HostAccess(rules)
    if not has_proxy(job):
        yield access
        return
    with await helper.open_listener(pid) as listener:
        async with proxy.serve_proxy(listener, access):
            yield access


class ListenerHelper:
    """The process that opens sockets in the networks of sandboxes. It is started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process, if it was started."""
        return self._process.pid if self._process is not None else None

    async def open_listener(self, pid: int) -> socket.socket:
        """Open a listening socket in the network of a process."""
        for _ in range(_ATTEMPTS):
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    if not self.request(pid, theirs):
                        continue  # it has died, so the next attempt starts another
                try:
                    async with asyncio.timeout(_TIMEOUT):
                        await wait_until_readable(ours.fileno())
                    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
                except TimeoutError:
                    break
                if descriptors:
                    return socket.socket(fileno=descriptors[0])
        raise SandboxUnavailable(
            "The network of the sandbox could not be entered, so the command was not run. Run it without network."
        )

    def request(self, pid: int, answer: socket.socket) -> bool:
        """Request a socket in the network of a process. Return False when the helper has died."""
        with self._lock:
            channel = self._channel or self._start()
            try:
                socket.send_fds(channel, [f"{pid} {PROXY_PORT}".encode()], [answer.fileno()])
            except OSError:
                self._stop()
                return False
        return True

    def _start(self) -> socket.socket:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-S", "-B", str(_LISTENER), str(theirs.fileno())]
            self._process = spawn_process(command, subprocess.DEVNULL, subprocess.DEVNULL, (theirs.fileno(),))
        atexit.register(self._stop)
        return self._channel

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        if self._channel is not None and self._process is not None:
            self._channel.close()
            self._process.wait()
        self._channel = self._process = None


helper = ListenerHelper()
