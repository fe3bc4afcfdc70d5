"""Server processes that start quickly: a process that has imported everything forks them.

Run as a program it reads one JSON document a line, forks a server for it, and the server says where it listens.
"""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.server import OWNER
from treadle import Agent, Grant, Limits, Runtime, tool
from treadle.models.catalog import resolve_model
from treadle.server.app import create_app
from treadle.server.config import ServerConfig
from treadle.server.serve import serve_app

ROOT = Path(__file__).parents[2]
ASKED = 3


def build_worker_agent(port: str, model: str, side: str) -> Agent:
    """An agent on the fake model. Its tool writes a line for each call, and one call a run needs an approval.

    Without a file for these lines the agent has no tools.
    """

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        with open(side, "a", encoding="utf-8") as file:
            file.write(f"{a}\n")
        return a + b

    found = resolve_model(model, base_url=f"http://127.0.0.1:{port}/v1")
    limits = Limits(turns=200, calls=1000)
    return Agent(found, tools=[add] if side else [], limits=limits, grant=Grant(ask=(f"add(a={ASKED})",)))


async def serve(spec: dict[str, Any]) -> None:
    """Serve. `config` has fields of the server's configuration, `log` is the file for its messages."""
    if descriptors := spec.get("descriptors"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))
    if log := spec.get("log"):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    agent = build_worker_agent(spec["port"], spec["model"], spec["side"])
    app = create_app(Runtime(spec["store"], [agent]), ServerConfig(tokens=(OWNER,), **spec.get("config", {})))

    def report_address(address: str) -> None:
        os.write(1, json.dumps({"pid": os.getpid(), "address": address}).encode() + b"\n")

    await serve_app(app, "127.0.0.1", 0, report_address)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who is killed is gone at once
    resolve_model("warm", base_url="http://127.0.0.1:9/v1")
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(serve(json.loads(line)))
            os._exit(0)


class ServerForker:
    """Starts server processes, and kills the current one."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = 0

    def start(self, **spec: Any) -> str:
        """Start a server. Returns its address."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(spec) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        self.pid = told["pid"]
        return told["address"]

    def kill(self) -> None:
        """End the server at this instant, as a power cut would."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.pid = 0


@contextmanager
def start_forker() -> Iterator[ServerForker]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.server.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
    ) as process:
        made = ServerForker(process)
        try:
            yield made
        finally:
            made.kill()
            process.kill()


@contextmanager
def fake_model() -> Iterator[str]:
    """Run the fake model as a process. Returns its port."""
    command = [sys.executable, str(ROOT / "benchmarks" / "fake_model.py"), "--until-eof"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.kill()


if __name__ == "__main__":
    main()
