"""A process that writes one file, and is killed after it has kept the old content of the next but before it writes."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from treadle import Agent
from treadle.engine.tool_call import LogToolServices
from treadle.events import KeptFile
from treadle.history.content_store import ContentStore
from treadle.testing import ScriptedModel, call
from treadle.tools.builtin import build_file_tools


async def main(database: str, workspace: str, kept: str) -> None:
    keep = LogToolServices.record_kept_files

    async def record_and_die(self: LogToolServices, files: Sequence[KeptFile], **given: Any) -> None:
        await keep(self, files, **given)
        if any(file.path == "a.txt" for file in files):
            os.kill(os.getpid(), signal.SIGKILL)

    LogToolServices.record_kept_files = record_and_die  # type: ignore[method-assign]
    model = ScriptedModel(
        call("write_file", path="b.txt", content="made"), call("write_file", path="a.txt", content="new")
    )
    agent = Agent(model, tools=build_file_tools(ContentStore(kept)))
    async with agent.session(database, workspace=workspace) as session:
        await session.ask("go")


asyncio.run(main(*sys.argv[1:]))
