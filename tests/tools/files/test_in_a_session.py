"""The file tools as an agent uses them: rights, approvals, the log, and reading again after a restart."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.file_tools import FileTools, file_tools
from tests.kit.sessions import Store, build_agent, either_store, list_kinds, read_questions, run_agent, run_message
from treadle import Agent, Answer, Grant, later
from treadle.testing import call

store, files = either_store, file_tools
PATCH = "--- /dev/null\n+++ b/locked/a\n@@ -0,0 +1 @@\n+x\n"


def build_file_agent(files: FileTools, *calls: Any, **options: Any) -> Agent:
    return build_agent([*calls], "ok", tools=[*files.tools.values()], **options)[0]


def write(path: str) -> Any:
    return call("write_file", id=path, path=path, content="x")


async def test_the_old_content_is_in_the_log_before_the_result(store: Store, files: FileTools) -> None:
    done = await store.run_agent(build_file_agent(files, write("a.txt")), workspace=files.workspace)
    kinds = list_kinds(done.facts)
    assert kinds.index("call_started") < kinds.index("files_kept") < kinds.index("call_finished")


async def test_instruction_files_are_asked_for_each_and_ordinary_ones_are_not(store: Store, files: FileTools) -> None:
    calls = map(write, ("notes.md", "AGENTS.md", ".github/workflows/a.yml"))
    agent = build_file_agent(files, *calls, gate=later, grant=Grant(always=("*",)))
    async with agent.session(store.open(), workspace=files.workspace) as session:
        assert await run_message(session) is None
        questions = [question.call_id for question in await read_questions(session)]
        assert questions == ["AGENTS.md", ".github/workflows/a.yml"]
        await session.approve("AGENTS.md", Answer("allow", "session"))
        assert [question.call_id for question in await read_questions(session)] == questions[1:]
    assert not (files.workspace / ".github").exists()


@pytest.mark.parametrize(
    ("grant", "forbidden"),
    [
        (Grant(forbid=("*_patch(locked/**)",)), call("apply_patch", patch=PATCH)),
        (Grant(tier="read-only"), write("locked/a")),
    ],
    ids=["a rule on paths holds for patches", "a read-only session writes nothing"],
)
async def test_a_forbidden_change_is_denied(store: Store, files: FileTools, grant: Grant, forbidden: Any) -> None:
    files.put("a.txt", "old")
    agent = build_file_agent(files, call("read_file", path="a.txt"), forbidden, grant=grant)
    done = await store.run_agent(agent, workspace=files.workspace)
    statuses = [fact.status for fact in done.results.values()]
    assert sorted(statuses) == ["denied", "ok"] and not (files.workspace / "locked").exists()


async def test_a_file_read_before_a_restart_is_not_overwritten_unseen(tmp_path: Path, files: FileTools) -> None:
    file = files.put("a.txt", "one\n")
    reader = build_file_agent(files, call("read_file", path="a.txt"))
    await run_agent(reader, log=tmp_path / "store.db", workspace=files.workspace)
    file.write_text("one\nmore by the user\n")
    editor = build_file_agent(files, call("edit_file", id="edit", path="a.txt", old="one", new="1"))
    edit = (await run_agent(editor, log=tmp_path / "store.db")).results["edit"]
    assert edit.status == "error" and "changed since you last read it" in edit.output
    assert file.read_text() == "one\nmore by the user\n"
