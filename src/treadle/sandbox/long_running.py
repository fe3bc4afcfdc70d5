"""A program that runs in the sandbox for long and talks over its standard streams, such as an MCP server.

Somebody else starts it, as a child of this process, with `argv`. It waits until it is released, and ends with its
parent or when its input is closed and it obeys.
"""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

from treadle.sandbox import bubblewrap, process
from treadle.sandbox.arguments import BWRAP, build_arguments
from treadle.sandbox.base import Job, SandboxUnavailable
from treadle.sandbox.network import open_network
from treadle.sandbox.plan import BubblewrapPlan, PlanKind, build_plan
from treadle.sandbox.resource_usage import find_descendants
from treadle.sandbox.runtime_folder import make_runtime_folder
from treadle.sandbox.seccomp import build_program

_LAUNCHER = Path(__file__).with_name("launcher.py")
_TIMEOUT = 20.0
_READY = b"\x06"
_WAIT_SCRIPT = """printf '\\006' >&9; read -r go <&9 || exit 125; exec 8>&- 9<&-; exec "$@" """


class WaitingProgram:
    """A program that was prepared. Start `argv` with pipes and no other descriptors, then `release` it."""

    def __init__(self, plan: BubblewrapPlan, listener: socket.socket, stack: AsyncExitStack) -> None:
        self._plan, self._listener, self._stack = plan, listener, stack
        self.argv = (sys.executable, "-I", "-S", "-B", str(_LAUNCHER), listener.getsockname())

    async def release(self) -> None:
        """Wait until its sandbox is complete, set its limits, open its network, and let it run."""
        try:
            async with asyncio.timeout(_TIMEOUT):
                channel, status = await self._read_status()
        except TimeoutError:
            raise _build_error(f"it was not ready within {_TIMEOUT:g} s") from None
        job, pid = self._plan.job, int(json.loads(status.partition(b"\n")[0])["child-pid"])
        for waiting in find_descendants(pid):
            process.set_limits(waiting, process.build_limits(job.bounds, per_namespace=True))
            bubblewrap.check_mounts(self._plan, waiting)
        await self._stack.enter_async_context(open_network(pid, job))
        channel.sendall(b"go\n")

    async def _read_status(self) -> tuple[socket.socket, bytes]:
        loop = asyncio.get_running_loop()
        await process.wait_until_readable(self._listener.fileno())
        channel, _ = self._listener.accept()  # at once, so that a cancellation cannot lose the open socket
        self._stack.callback(channel.close)
        channel.setblocking(False)
        shell = ("/bin/sh", "-c", _WAIT_SCRIPT, "sh", *self._plan.job.argv)
        settings = {
            "program": os.fsencode(BWRAP),
            "args": b"\0".join(map(os.fsencode, build_arguments(self._plan, by_path=True))),
            "seccomp": build_program(bubblewrap.detect_machine()),
            "command": b"\0".join(map(os.fsencode, shell)),
        }
        data = marshal.dumps(settings)
        await loop.sock_sendall(channel, b"%d\n%b" % (len(data), data))
        status = b""
        while not status.endswith(_READY):
            received = await loop.sock_recv(channel, 4096)
            if not received:
                raise _build_error("it ended at once")
            status += received
        return channel, status


@asynccontextmanager
async def prepare_program(job: Job, *, is_private: bool) -> AsyncGenerator[WaitingProgram]:
    """Prepare a program until the block ends. `is_private`: nobody but the program uses its workspace."""
    async with AsyncExitStack() as stack:
        plan = await build_plan(job, stack.enter_context(ExitStack()), PlanKind(is_private=is_private))
        path = make_runtime_folder() / f"start-{os.getpid()}-{os.urandom(6).hex()}"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        stack.callback(path.unlink, missing_ok=True)
        listener.listen(1)
        listener.setblocking(False)
        yield WaitingProgram(plan, listener, stack)


def _build_error(why: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"The sandbox could not be set up, so the program was not run: {why}")
