"""Starts `treadle serve` as a user would: a process of its own, on a free port, with its own home."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.balancer import Balancer
from tests.kit.fakes.server import Strict

TREADLE = Path(sys.executable).with_name("treadle")
SHARED_TOKEN = "shared-secret-of-the-tests"


@dataclass
class ServeProcess:
    """A server that runs: its address, a token, its folder, and its process."""

    address: str
    token: str
    home: Path
    process: asyncio.subprocess.Process

    def read_log(self) -> str:
        return (self.home / "server.log").read_text("utf-8")


@asynccontextmanager
async def start_server(
    home: Path, provider: Strict | None, *options: str, program: Sequence[str] = (str(TREADLE),)
) -> AsyncIterator[tuple[str, str]]:
    """Serve with the provider's model, named `script`, or with none. Returns the address and a token.

    `home` is a folder. The workspace is its subfolder `work`, and the server's messages are in `server.log`.
    """
    async with start_process(home, provider, *options, program=program) as server:
        yield server.address, server.token


@asynccontextmanager
async def start_process(
    home: Path,
    provider: Strict | None,
    *options: str,
    program: Sequence[str] = (str(TREADLE),),
    work: Path | None = None,
) -> AsyncIterator[ServeProcess]:
    """Serve as `start_server` does, or in another workspace. The block may end the process too."""
    work, tokens, log = work or home / "work", home / "tokens.json", home / "server.log"
    work.mkdir(parents=True, exist_ok=True)
    command = [*program, "serve", "--port", "0", "--allow-root", "--store", str(home / "store.db")]
    command += ["--workspace", str(work), "--root", str(work), "--token-file", str(tokens), *options]
    if provider is not None:
        command += ["--model", "script", "--base-url", provider.base_url, "--api-key-env", "PROVIDER_KEY"]
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    with log.open("wb") as file:
        server = await asyncio.create_subprocess_exec(
            *command, stderr=file, env={**kept, "HOME": str(home), "PROVIDER_KEY": "sk-test"}, cwd=work
        )
    try:
        while not (found := re.search(r"treadle serves (\S+)", log.read_text("utf-8"))):
            assert server.returncode is None, log.read_text("utf-8")
            await asyncio.sleep(0.02)
        token = json.loads(tokens.read_text("utf-8"))[0]["value"]
        yield ServeProcess(found[1], token, home, server)
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


@asynccontextmanager
async def start_nodes(
    home: Path, provider: Strict | None, url: str, *options: str, count: int = 2
) -> AsyncIterator[tuple[Balancer, list[ServeProcess]]]:
    """Serve one database by several nodes with one workspace and one token, behind a balancer.

    A node whose folder has tokens already keeps those.
    """
    work = home / "work"
    async with AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(Balancer())
        shared = ["--store", url, "--host-name", balancer.host]
        starting = list[asyncio.Task[ServeProcess]]()
        for number in range(count):
            folder = home / f"node{number}"
            if not (folder / "tokens.json").exists():
                write_tokens(folder, {"name": "owner", "value": SHARED_TOKEN})
            node = start_process(folder, provider, *shared, *options, work=work)
            starting.append(asyncio.create_task(stack.enter_async_context(node)))
        nodes = list(await asyncio.gather(*starting))
        balancer.nodes += [node.address for node in nodes]
        yield balancer, nodes


def write_tokens(home: Path, *tokens: Mapping[str, object]) -> None:
    """Write the file of a server's tokens."""
    home.mkdir(parents=True, exist_ok=True)
    file = home / "tokens.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(tokens), "utf-8")
