"""Helpers with a git worktree of their own: their branch, what becomes of it, and what the parent is told."""

from pathlib import Path
from typing import Any

import pytest

from tests.kit.host_git import set_identity
from tests.kit.user_repository import UserRepository, needs_full_sandbox
from tests.tools.test_delegate import FamilyModel, HelperScript, call_then_answer, get_helper
from treadle import Agent, CallFinished, Runtime
from treadle.app.session_worktree import end_worktree, read_worktree
from treadle.history.content_store import ContentStore
from treadle.log.in_memory import InMemoryLog
from treadle.sandbox import backend
from treadle.testing import call
from treadle.tools.builtin import build_file_tools
from treadle.tools.delegate import build_delegate_tool
from treadle.tools.shell import Shell

pytestmark = needs_full_sandbox

DELEGATE = call("delegate", id="d", task="task x", worktree=True)
WRITE = call("write_file", path="b.txt", content="two\n")
COMMIT = call("shell", command="echo two > b.txt && git add b.txt && git commit -q -m 'Write b'")


@pytest.fixture
def repo(tmp_path: Path) -> UserRepository:
    repo = UserRepository(tmp_path / "project")
    set_identity(repo.folder)
    return repo


def build_parent(repo: UserRepository, *lines: Any, helper: HelperScript) -> Agent:
    kept = ContentStore(repo.folder.parent / "kept")
    delegate = build_delegate_tool(worktree_folder=repo.folder.parent / "state")
    tools = [delegate, *build_file_tools(kept), Shell(backend, kept)]
    return Agent(FamilyModel(*lines, helper=helper), tools=tools)


async def ask_helper(repo: UserRepository, helper: HelperScript, *lines: Any) -> list[CallFinished]:
    """Run a parent with one helper. Return the finished calls of the parent."""
    agent = build_parent(repo, *(lines or (DELEGATE,)), "Done.", helper=helper)
    async with agent.session(workspace=repo.folder) as session, session.run("go") as run:
        await run.wait()
        return [fact for fact in await session.facts() if isinstance(fact, CallFinished)]


async def test_a_helper_commits_on_its_branch_and_the_parent_merges_it(repo: UserRepository) -> None:
    def merge(*_: object) -> Any:
        (name,) = (name for name in repo.list_branches() if name.startswith("treadle/"))
        return call("shell", command=f"git merge {name} && cat b.txt")

    delegated, merged = await ask_helper(repo, call_then_answer(COMMIT, "I wrote it."), DELEGATE, merge)
    (branch,) = (name for name in repo.list_branches() if name.startswith("treadle/"))
    told = f"I wrote it.\n\n[Its work is committed on {branch}. `git merge {branch}` takes it over.]"
    assert delegated.status == "ok" and delegated.output == told
    assert (merged.status == "ok" and merged.output.endswith("two")) or "two" in merged.output
    assert (repo.folder / "b.txt").read_text() == "two\n" and repo.git("log", "-1", "--format=%an %s") == "Ada Write b"
    repo.check()


async def test_what_a_helper_leaves_uncommitted_is_committed(repo: UserRepository) -> None:
    (result,) = await ask_helper(repo, call_then_answer(WRITE, "ok"))
    (branch,) = (name for name in repo.list_branches() if name.startswith("treadle/"))
    assert repo.git("show", f"{branch}:b.txt") == "two" and not (repo.folder / "b.txt").exists()
    assert repo.git("log", "-1", "--format=%an %s", branch) == "Ada Work in progress: task x"
    assert f"`git merge {branch}`" in result.output
    repo.check()


async def test_the_worktree_of_a_helper_that_changed_nothing_is_removed(repo: UserRepository) -> None:
    (result,) = await ask_helper(repo, call_then_answer(call("shell", command="cat a.txt"), "one"))
    assert result.output == "one\n\n[It changed no files, so its worktree was removed.]"
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == []
    assert [path.name for path in (repo.folder.parent / "state").iterdir()] == [".lock"]
    repo.check()


async def test_helpers_at_the_same_time_do_not_disturb_each_other(repo: UserRepository) -> None:
    def helper(task: str, turn: int) -> Any:
        command = f"echo {task[-1]} > a.txt && git commit -q -a -m 'Write {task[-1]}'"
        return call("shell", command=command) if turn == 1 else "ok"

    tasks = [call("delegate", id=name, task=f"task {name}", worktree=True) for name in "xyz"]
    results = await ask_helper(repo, helper, tasks)
    branches = [name for name in repo.list_branches() if name.startswith("treadle/")]
    assert len(results) == 3 and sorted(repo.git("show", f"{name}:a.txt") for name in branches) == ["x", "y", "z"]
    assert (repo.folder / "a.txt").read_text() == "one\n" and repo.git("status", "--porcelain") == ""
    repo.check()


async def test_a_folder_that_is_no_repository_is_told_to_the_model(tmp_path: Path) -> None:
    agent = Agent(FamilyModel(DELEGATE, "Done."), tools=[build_delegate_tool(worktree_folder=tmp_path / "state")])
    async with agent.session(workspace=tmp_path) as session, session.run("go") as run:
        await run.wait()
        (result,) = (fact for fact in await session.facts() if isinstance(fact, CallFinished))
    assert result.status == "error" and "not the top folder of a git repository" in result.output
    assert list(tmp_path.iterdir()) == []


async def test_a_worktree_and_a_folder_exclude_each_other(repo: UserRepository) -> None:
    both = call("delegate", id="d", task="task x", worktree=True, folder=".")
    (result,) = await ask_helper(repo, lambda task, turn: "ok", both)
    assert result.status == "error" and "Leave out the folder" in result.output


async def test_the_worktree_of_a_helper_can_be_merged_by_its_session(repo: UserRepository) -> None:
    log = InMemoryLog()
    agent = build_parent(repo, DELEGATE, "Done.", helper=call_then_answer(COMMIT, "ok"))
    async with agent.session(log, workspace=repo.folder) as session, session.run("go") as run:
        await run.wait()
        helper = get_helper(session)
        worktree = read_worktree(await helper.facts())
        assert worktree is not None and worktree.repository == str(repo.folder)
        await end_worktree(log, helper.id, "merge")
    assert (repo.folder / "b.txt").exists() and repo.list_branches() == ["main"] and repo.list_worktrees() == []


async def test_a_call_that_was_interrupted_goes_on_in_the_same_worktree(repo: UserRepository) -> None:
    log = InMemoryLog()
    agent = build_parent(repo, DELEGATE, "Done.", helper=call_then_answer(COMMIT, "ok"))
    async with agent.session(log, workspace=repo.folder) as session, session.run("go") as run:
        await run.wait()
        facts, helper_id = await session.facts(), get_helper(session).id
        helper_facts = await log.read(helper_id)
    at = next(place for place, fact in enumerate(facts) if isinstance(fact, CallFinished))
    for count in range(4, len(helper_facts) + 1):  # its first four facts are written at once
        cut = InMemoryLog()
        await cut.create(session.id, facts[:at])
        await cut.create(helper_id, helper_facts[:count])
        again = build_parent(repo, "Done.", helper=call_then_answer("ok", "ok"))
        async with Runtime(cut, [again]) as runtime, runtime.session(id=session.id) as resumed:
            async with resumed.resume() as run:
                outcome = await run.wait()
            (result,) = (fact for fact in await resumed.facts() if isinstance(fact, CallFinished))
        assert outcome is not None and result.status == "ok" and "`git merge treadle/" in result.output, count
        assert len(repo.list_worktrees()) == 1
