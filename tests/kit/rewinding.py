"""A workspace whose sessions can be rewound, for tests."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions import Store, build_agent, run_to_end, select_events
from treadle import Agent, Session, ToolContext, tool
from treadle.events import MessageReceived
from treadle.history.content_store import ContentStore
from treadle.history.snapshot import record_changes
from treadle.testing import call
from treadle.tools.builtin import build_file_tools

Contents = dict[str, str]


class Place:
    """A workspace, the store of old contents, and tools that change files, one of them as a command would."""

    def __init__(self, folder: Path) -> None:
        self.workspace, self.kept = folder / "workspace", ContentStore(folder / "kept")
        self.workspace.mkdir(exist_ok=True)
        self.commands: dict[str, Callable[[], object]] = {}

        @tool
        async def command(name: str, context: ToolContext) -> str:
            async with record_changes(self.kept, context):
                self.commands[name]()
            return "done"

        self.tools = [*build_file_tools(self.kept), command]

    def put(self, path: str, text: str) -> None:
        (self.workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (self.workspace / path).write_text(text)

    def fill(self, files: Contents) -> None:
        for path, text in files.items():
            self.put(path, text)

    def holds(self) -> Contents:
        paths = (path for path in self.workspace.rglob("*") if path.is_file())
        return {str(path.relative_to(self.workspace)): path.read_text() for path in paths}

    def agent(self, *script: Any, **options: Any) -> Agent:
        agent, self.model = build_agent(*script, tools=[*self.tools, *options.pop("tools", ())], **options)
        return agent

    @asynccontextmanager
    async def session(self, store: Store, *script: Any, **options: Any) -> AsyncIterator[Session]:
        async with self.agent(*script, **options).session(store.open(), workspace=self.workspace) as session:
            yield session

    @asynccontextmanager
    async def run(self, store: Store, *script: Any) -> AsyncIterator[Session]:
        """A session after its first run."""
        async with self.session(store, *script) as session:
            await run_to_end(session)
            yield session

    def run_command(self, store: Store, change: Callable[[], object]) -> AbstractAsyncContextManager[Session]:
        """A session after a run whose only call is a command that makes a change."""
        self.commands["change"] = change
        return self.run(store, call("command", name="change"), "ok")


@pytest.fixture
def rewindable(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.kept.close()


def write(path: str, content: str) -> Any:
    return call("write_file", path=path, content=content)


async def positions(session: Session) -> list[int]:
    """Where each message was received."""
    return [fact.seq for fact in select_events(await session.facts(), MessageReceived)]
