"""A node that runs every session that is due, until it is told to stop. Its calls write a line, and wait for a file."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.fake_model import FakeModel
from tests.kit.processes import PATIENCE, list_descendants
from treadle import Agent, Grant, Limits, Runtime, ToolContext, tool
from treadle.log.open_log import open_log
from treadle.messages import Call, Reply, Request, ResultMessage, UserMessage, render_parts
from treadle.models.base import ModelEvent
from treadle.tools.base import Tool
from treadle.tools.delegate import build_delegate_tool

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL")
"""With process ids of its own, a node looks like one on another machine."""


class Obedient(FakeModel):
    """Calls the tool that the message names as often as it says: `hold 2`. It says `done` when that is done.

    `delegate 1` gives `change 2` to a helper.
    """

    name = "obedient"

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent, None]:
        said = [render_parts(message.parts) for message in request.messages if isinstance(message, UserMessage)]
        tool_name, count = said[-1].split()
        results = sum(isinstance(message, ResultMessage) for message in request.messages)
        if results < int(count):
            arguments = '{"task": "change 2"}' if tool_name == "delegate" else f'{{"number": {results}}}'
            yield Reply("", calls=(Call(f"call-{results}", tool_name, arguments),), finish="calls")
        else:
            yield Reply("done")


def build_agent(folder: Path) -> Agent:
    """Build the agent of all nodes: `hold` may run again, `change` may not."""

    def build_tool(name: str) -> Tool:
        @tool(name=name, safety="safe" if name == "hold" else "caution")
        async def work(number: int, context: ToolContext) -> str:
            with (folder / "lines").open("a", encoding="utf-8") as lines:
                lines.write(f"{context.session_id} {context.call_id} {name}\n")
            while not (folder / "go").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
            return "done"

        return work

    tools = [build_tool("hold"), build_tool("change"), build_delegate_tool()]
    return Agent(Obedient(), tools=tools, grant=Grant(tier="full"), limits=Limits(calls=1000), name="holder")


async def main(url: str, folder: Path, lease: float, grace: float) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_log(url) as log, Runtime(log, [build_agent(folder)], lease=lease, grace=grace) as runtime:
        print(runtime.coordinator.owner, flush=True)
        await stop.wait()


class LeaseNode:
    """A node in a process of its own, and perhaps among process ids of its own."""

    def __init__(self, entry: subprocess.Popen[str], *, is_apart: bool) -> None:
        self._entry, self._is_apart = entry, is_apart
        assert entry.stdout is not None
        self.owner = entry.stdout.readline().strip()
        assert self.owner, "the node did not start"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the node itself."""
        pid = list_descendants(self._entry.pid)[0] if self._is_apart else self._entry.pid
        os.kill(pid, number)

    def wait(self) -> int:
        """Wait until the node has ended."""
        return self._entry.wait(PATIENCE)


@contextmanager
def start_node(url: str, folder: Path, lease: float, *, grace: float = 0.0, apart: bool = False) -> Iterator[LeaseNode]:
    """Start a node for the length of a block. `apart` gives it process ids of its own, which needs root."""
    command = [*(NAMESPACE if apart else ()), sys.executable, "-m", "tests.cluster.lease_node"]
    arguments = (url, str(folder), str(lease), str(grace))
    project = Path(__file__).parents[2]
    entry = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, cwd=project)
    try:
        yield LeaseNode(entry, is_apart=apart)
    finally:
        entry.kill()
        entry.communicate()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
