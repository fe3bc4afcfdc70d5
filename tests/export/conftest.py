"""A session to export, and to import again."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.sessions import build_agent, run_message
from treadle import tool
from treadle.export.transcript import Form, render_transcript
from treadle.log.sqlite import SqliteLog
from treadle.testing import call


@tool(safety="safe")
def long() -> str:
    """Say a lot."""
    return "much of it\n" * 9000


class Exported(NamedTuple):
    """A session whose call has an output that was too long for the model, and its store."""

    session_id: str
    log: SqliteLog

    async def render(self, form: Form = "jsonl") -> bytes:
        return await render_transcript(self.log, self.session_id, form)


@pytest.fixture
async def exported(tmp_path: Path) -> AsyncIterator[Exported]:
    agent, _ = build_agent(call("long"), "It said <b>much</b>.", "Again.", tools=[long])
    log = SqliteLog(tmp_path / "one.db")
    async with agent.session(log, workspace=tmp_path) as session:
        await run_message(session, "say much ```of``` it")
        await session.rename("Much & more")
        await run_message(session, "again")
    yield Exported(session.id, log)
    await log.close()
