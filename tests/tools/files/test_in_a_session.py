"""The file tools as an agent uses them: rights, approvals, what the log holds, and reading again after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.sessions import (
    Store,
    build_agent,
    either_store,
    read_finished_calls,
    read_questions,
    run_message,
    run_to_end,
    select_events,
)
from treadle import Answer, CallFinished, Grant, later
from treadle.errors import BadInput
from treadle.events import CallStarted, FilesKept, fact_type
from treadle.history.content_store import ContentStore
from treadle.testing import call
from treadle.tools.builtin import build_file_tools

store = either_store


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[ContentStore]:
    made = ContentStore(tmp_path / "kept")
    yield made
    made.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


async def test_the_old_content_is_in_the_log_before_the_result(
    store: Store, kept: ContentStore, workspace: Path
) -> None:
    agent, _ = build_agent(call("write_file", path="a.txt", content="hi"), "ok", tools=build_file_tools(kept))
    async with agent.session(store.open(), workspace=workspace) as session:
        await run_to_end(session)
        facts = await session.facts()
    order = [fact_type(fact) for fact in facts if isinstance(fact, CallStarted | FilesKept | CallFinished)]
    assert order == ["call_started", "files_kept", "call_finished"]


async def test_instruction_files_are_asked_for_and_ordinary_ones_are_not(
    store: Store, kept: ContentStore, workspace: Path
) -> None:
    writes = [
        call("write_file", path=path, content="x") for path in ("notes.md", "AGENTS.md", ".github/workflows/a.yml")
    ]
    agent, _ = build_agent(writes, "ok", tools=build_file_tools(kept), gate=later)
    async with agent.session(store.open(), workspace=workspace) as session:
        assert await run_message(session) is None
        asked = await read_questions(session)
        assert [question.arguments["path"] for question in asked] == ["AGENTS.md", ".github/workflows/a.yml"]
    assert not (workspace / "AGENTS.md").exists()


async def test_a_yes_to_one_instruction_file_is_no_yes_to_the_next(
    store: Store, kept: ContentStore, workspace: Path
) -> None:
    writes = [call("write_file", id=path, path=path, content="x") for path in ("AGENTS.md", "SKILL.md")]
    agent, _ = build_agent(writes, "ok", tools=build_file_tools(kept), gate=later, grant=Grant(always=("*",)))
    async with agent.session(store.open(), workspace=workspace) as session:
        assert await run_message(session) is None
        await session.approve("AGENTS.md", Answer("allow", "session"))
        assert [question.call_id for question in await read_questions(session)] == ["SKILL.md"]


async def test_rules_on_paths_hold_for_patches_too(store: Store, kept: ContentStore, workspace: Path) -> None:
    patch = "--- /dev/null\n+++ b/locked/a.txt\n@@ -0,0 +1 @@\n+x\n"
    agent, _ = build_agent(
        call("apply_patch", patch=patch),
        "ok",
        tools=build_file_tools(kept),
        grant=Grant(forbid=("*_patch(locked/**)",)),
    )
    async with agent.session(store.open(), workspace=workspace) as session:
        await run_to_end(session)
        (done,) = (await read_finished_calls(session)).values()
    assert done.status == "denied" and not (workspace / "locked").exists()


async def test_a_read_only_session_writes_nothing(store: Store, kept: ContentStore, workspace: Path) -> None:
    script = ([call("read_file", path="a.txt"), call("write_file", path="a.txt", content="x")], "ok")
    (workspace / "a.txt").write_text("old")
    agent, _ = build_agent(*script, tools=build_file_tools(kept), grant=Grant(tier="read-only"))
    async with agent.session(store.open(), workspace=workspace) as session:
        await run_to_end(session)
        done = {fact.tool: fact.status for fact in select_events(await session.facts(), CallFinished)}
    assert done == {"read_file": "ok", "write_file": "denied"}
    assert (workspace / "a.txt").read_text() == "old"


async def test_what_was_read_is_remembered_across_a_restart(
    tmp_path: Path, kept: ContentStore, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("one\n")
    first, _ = build_agent(call("read_file", path="a.txt"), "ok", tools=build_file_tools(kept))
    async with first.session(tmp_path / "store.db", workspace=workspace) as session:
        await run_to_end(session)
    (workspace / "a.txt").write_text("one\nmore by the user\n")
    second, _ = build_agent(call("edit_file", path="a.txt", old="one", new="1"), "ok", tools=build_file_tools(kept))
    async with second.session(tmp_path / "store.db") as session:
        await run_to_end(session)
        last = select_events(await session.facts(), CallFinished)[-1]
    assert last.status == "error" and "changed since you last read it" in last.output
    assert (workspace / "a.txt").read_text() == "one\nmore by the user\n"


async def test_arguments_that_do_not_fit_are_explained(kept: ContentStore) -> None:
    tools = {tool.name: tool for tool in build_file_tools(kept)}
    for name, wrong in (("read_file", '{"file": "x"}'), ("edit_file", '{"path": "x"}'), ("apply_patch", "{}")):
        with pytest.raises(BadInput, match=f"The arguments of {name} do not fit"):
            tools[name].parse(wrong)


def test_every_tool_has_examples_that_its_own_schema_takes(kept: ContentStore) -> None:
    import json

    for tool in build_file_tools(kept):
        assert tool.spec.examples and "xample" in tool.spec.description
        for request, arguments in tool.spec.examples:
            assert request and tool.parse(json.dumps(arguments))
        assert tool.timeout is not None and tool.cap > 0
