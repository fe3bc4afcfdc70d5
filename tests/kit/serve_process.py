"""Starts `treadle serve` as a user would: a process of its own, on a free port, with its own home."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit.fakes.server import Strict

TREADLE = Path(sys.executable).with_name("treadle")


@asynccontextmanager
async def start_server(
    home: Path, provider: Strict | None, *options: str, program: Sequence[str] = (str(TREADLE),)
) -> AsyncIterator[tuple[str, str]]:
    """Serve with the provider's model, named `script`, or with none. Returns the address and a token.

    `home` is a folder. The workspace is its subfolder `work`, and the server's messages are in `server.log`.
    """
    work, tokens, log = home / "work", home / "tokens.json", home / "server.log"
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
        yield found[1], json.loads(tokens.read_text("utf-8"))[0]["value"]
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()
