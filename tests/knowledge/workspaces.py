"""What the tests of knowledge share: writing files into a workspace, and running an agent there."""

from pathlib import Path
from typing import Any

from tests.kit.sessions import run_to_end
from treadle import Agent


def write_file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


async def run_agent(agent: Agent, workspace: Path, *messages: str) -> list[Any]:
    """Run an agent on messages, one after the other, in one session; returns its facts."""
    async with agent.session(workspace=workspace) as session:
        for message in messages or ("go",):
            await run_to_end(session, message)
        return await session.facts()
