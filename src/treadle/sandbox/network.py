"""A network for a sandbox that has none: our proxy listens on a socket inside the sandbox's own network.

No process runs inside for it. A command reaches only what the proxy connects to, and not the host's loopback.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from treadle.sandbox import proxy
from treadle.sandbox.base import Job, SandboxUnavailable
from treadle.sandbox.process import spawn_process, wait_until_readable

PROXY_PORT = 3128
_LISTENER = Path(__file__).with_name("listener.py")
_TIMEOUT = 20.0


def build_proxy_environment() -> dict[str, str]:
    """Build the variables that tell programs to use the proxy."""
    address = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    return {**dict.fromkeys(names, address), **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")}


@asynccontextmanager
async def open_network(
    pid: int, job: Job, resolve: proxy.Resolve = proxy.resolve_host, public: proxy.IsPublic = proxy.is_public_address
) -> AsyncGenerator[None]:
    """Open the network of the sandbox of process `pid`, as far as its job grants one."""
    if not job.network:
        yield
        return
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-I", "-S", "-B", str(_LISTENER), str(pid), str(PROXY_PORT), str(theirs.fileno())]
        process = spawn_process(command, subprocess.DEVNULL, subprocess.DEVNULL, (theirs.fileno(),))
        theirs.close()
        try:
            async with asyncio.timeout(_TIMEOUT):
                await wait_until_readable(ours.fileno())
            _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        except TimeoutError:
            descriptors = []
        finally:
            process.kill()
            process.wait()
    if not descriptors:
        raise SandboxUnavailable(
            "The network of the sandbox could not be entered, so the command was not run. Run it without network."
        )
    with socket.socket(fileno=descriptors[0]) as listener:
        async with proxy.serve_proxy(listener, proxy.ProxyRules(job.allow_hosts, resolve, public)):
            yield
