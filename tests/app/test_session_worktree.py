"""The worktree of a session from its start to its end, with git in the real sandbox and a real repository."""

import asyncio
import shutil
from pathlib import Path

import pytest
from msgspec import to_builtins

from tests.kit.host_git import set_identity
from tests.kit.user_repository import UserRepository, needs_full_sandbox
from treadle.app.session_worktree import (
    WORKTREE_NOTE,
    Worktree,
    WorktreeAction,
    describe_folder,
    end_worktree,
    list_project_folders,
    start_session_worktree,
)
from treadle.app.settings import Settings
from treadle.errors import BadInput, Conflict, NotFound
from treadle.events import AgentConfig, Custom, Limits, MessageReceived, RunStarted, SessionCreated
from treadle.log.in_memory import InMemoryLog
from treadle.log.owner import make_owner_name
from treadle.messages import TextPart

pytestmark = needs_full_sandbox


@pytest.fixture
def repo(tmp_path: Path) -> UserRepository:
    repo = UserRepository(tmp_path / "project")
    set_identity(repo.folder)
    return repo


class Started:
    """A session with a worktree, in a log of its own."""

    def __init__(self, log: InMemoryLog, worktree: Worktree, note: str) -> None:
        self.log, self.worktree, self.note = log, worktree, note
        self.folder = Path(worktree.folder)


async def start(repo: UserRepository, name: str = "fix") -> Started:
    settings = Settings(workspace=str(repo.folder), worktree_folder=str(repo.folder.parent / "state"))
    log = InMemoryLog()
    async with start_session_worktree(settings, name) as started:
        created = SessionCreated(session_id="s1", agent=AgentConfig("a"), workspace=started.worktree.folder)
        await log.create("s1", [created, Custom(name=WORKTREE_NOTE, data=to_builtins(started.worktree))])
    return Started(log, started.worktree, started.note)


async def test_a_worktree_has_the_last_commit_and_not_what_is_uncommitted(repo: UserRepository) -> None:
    (repo.folder / "a.txt").write_text("changed\n")
    (repo.folder / "new.txt").write_text("new\n")
    started = await start(repo)
    assert sorted(path.name for path in started.folder.iterdir()) == [".git", "a.txt"]
    assert (started.folder / "a.txt").read_text() == "one\n"
    assert repo.git("status", "--porcelain", folder=started.folder) == ""
    assert "the 2 uncommitted changes" in started.note and "treadle/fix" in started.note
    assert (repo.folder / "a.txt").read_text() == "changed\n"
    repo.check()


async def test_files_that_no_command_may_write_are_in_it_too(repo: UserRepository) -> None:
    names = [".vscode/settings.json", ".env", ".mcp.json", "deep/.idea/x", ".github/w.yml", ".husky/pre-commit"]
    for name in names:
        repo.commit(name, f"{name}\n")
    started = await start(repo)
    assert [(started.folder / name).read_text() for name in names] == [f"{name}\n" for name in names]
    assert repo.git("status", "--porcelain", folder=started.folder) == ""
    assert "Already up to date" in (await end_worktree(started.log, "s1", "keep")).output  # nothing seems changed


async def test_no_program_that_a_repository_names_runs(repo: UserRepository, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    program.chmod(0o755)
    for hook in ("post-checkout", "reference-transaction", "pre-merge-commit", "post-merge", "pre-commit"):
        (repo.folder / ".git" / "hooks").mkdir(exist_ok=True)
        (repo.folder / ".git" / "hooks" / hook).write_text(program.read_text())
        (repo.folder / ".git" / "hooks" / hook).chmod(0o755)
    repo.commit("c.dat", "three\n")
    repo.commit(".gitattributes", "*.dat filter=evil\n*.txt merge=evil\n")
    canary.unlink()
    for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "merge.evil.driver", "core.sshCommand"):
        repo.git("config", key, str(program))
    started = await start(repo)
    (started.folder / "b.txt").write_text("two\n")
    await end_worktree(started.log, "s1", "merge", commit=True)
    assert not canary.exists() and (repo.folder / "b.txt").read_text() == "two\n"


async def test_committing_for_a_session_runs_none_of_its_programs(repo: UserRepository) -> None:
    hooks = repo.folder / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    repo.commit("check.sh", "exit 0\n")
    started = await start(repo)
    (hooks / "pre-commit").write_text("#!/bin/sh\nsh ./check.sh\n")  # the user's own, which runs what is in the folder
    (hooks / "pre-commit").chmod(0o755)
    (started.folder / "check.sh").write_text("mkdir .vscode; touch .vscode/tasks.json ../beside\n")
    await end_worktree(started.log, "s1", "keep", commit=True)
    assert [path.name for path in started.folder.parent.iterdir()] == [started.folder.name]
    assert not (started.folder / ".vscode").exists() and repo.git("show", "HEAD:check.sh").startswith("mkdir")


async def test_merging_takes_the_commits_over_and_removes_the_worktree(repo: UserRepository) -> None:
    started = await start(repo)
    commit = repo.commit("b.txt", "two\n", started.folder)
    (repo.folder / "mine.txt").write_text("mine\n")  # the user's own uncommitted file stays
    ended = await end_worktree(started.log, "s1", "merge")
    assert ended.commits == (commit,) and repo.git("rev-parse", "HEAD") == commit
    assert (repo.folder / "b.txt").read_text() == "two\n" and repo.git("status", "--porcelain") == "?? mine.txt"
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == [] and not started.folder.exists()
    repo.check()
    with pytest.raises(NotFound, match="has no worktree, or it was merged"):
        await end_worktree(started.log, "s1", "merge")


async def test_both_sides_are_joined_by_a_merge_commit(repo: UserRepository) -> None:
    started = await start(repo)
    theirs, ours = repo.commit("b.txt", "two\n", started.folder), repo.commit("c.txt", "three\n")
    await end_worktree(started.log, "s1", "keep")
    assert repo.git("log", "-1", "--format=%P %s") == f"{ours} {theirs} Merge branch 'treadle/fix'"
    assert repo.list_worktrees() == [str(started.folder)] and repo.list_branches() == ["main", "treadle/fix"]
    repo.commit("d.txt", "four\n", started.folder)  # it goes on, and is merged again
    await end_worktree(started.log, "s1", "merge")
    assert (repo.folder / "d.txt").exists() and repo.list_branches() == ["main"]
    repo.check()


async def test_a_conflict_leaves_everything_as_it_was(repo: UserRepository) -> None:
    started = await start(repo)
    repo.commit("a.txt", "theirs\n", started.folder)
    ours = repo.commit("a.txt", "ours\n")
    (repo.folder / "mine.txt").write_text("mine\n")
    with pytest.raises(Conflict, match=r"(?s)changed the same lines.*a.txt.*git merge treadle/fix"):
        await end_worktree(started.log, "s1", "merge")
    assert repo.git("rev-parse", "HEAD") == ours and (repo.folder / "a.txt").read_text() == "ours\n"
    assert repo.git("status", "--porcelain") == "?? mine.txt" and not (repo.folder / ".git" / "MERGE_HEAD").exists()
    assert repo.list_worktrees() == [str(started.folder)]
    repo.check()


async def test_uncommitted_changes_of_the_user_are_not_overwritten(repo: UserRepository) -> None:
    started = await start(repo)
    repo.commit("a.txt", "theirs\n", started.folder)
    (repo.folder / "a.txt").write_text("not committed\n")
    with pytest.raises(Conflict, match=r"(?s)would be overwritten by merge.*a.txt"):
        await end_worktree(started.log, "s1", "merge")
    assert (repo.folder / "a.txt").read_text() == "not committed\n" and repo.list_worktrees()


async def test_a_merge_of_the_user_that_is_not_finished_stays(repo: UserRepository) -> None:
    started = await start(repo)
    repo.commit("b.txt", "two\n", started.folder)
    repo.git("switch", "-q", "-c", "side")
    repo.commit("a.txt", "side\n")
    repo.git("switch", "-q", "main")
    repo.commit("a.txt", "main\n")
    repo.git("merge", "side", code=1)
    with pytest.raises(Conflict, match="A merge is not finished here"):
        await end_worktree(started.log, "s1", "merge")
    assert (repo.folder / ".git" / "MERGE_HEAD").exists() and "<<<<" in (repo.folder / "a.txt").read_text()


async def test_files_that_run_when_the_folder_is_opened_are_merged_by_a_person(repo: UserRepository) -> None:
    started = await start(repo)
    repo.commit(".vscode/tasks.json", "{}\n", started.folder)
    with pytest.raises(Conflict, match=r"changes \.vscode/tasks\.json"):
        await end_worktree(started.log, "s1", "merge")
    assert not (repo.folder / ".vscode").exists() and repo.list_worktrees() == [str(started.folder)]


async def test_uncommitted_work_stops_a_merge_unless_it_is_committed(repo: UserRepository) -> None:
    started = await start(repo)
    (started.folder / "b.txt").write_text("two\n")
    with pytest.raises(Conflict, match=r"has 1 uncommitted change, for example b.txt"):
        await end_worktree(started.log, "s1", "merge")
    assert (started.folder / "b.txt").exists() and not (repo.folder / "b.txt").exists()
    await end_worktree(started.log, "s1", "merge", commit=True)
    assert (repo.folder / "b.txt").read_text() == "two\n"
    assert repo.git("log", "-1", "--format=%an %s") == "Ada Work of the session s1"


async def test_what_is_dropped_can_be_restored_by_its_commit(repo: UserRepository) -> None:
    started = await start(repo)
    repo.commit("b.txt", "two\n", started.folder)
    (started.folder / "c.txt").write_text("not committed\n")
    ended = await end_worktree(started.log, "s1", "drop")
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == [] and not started.folder.exists()
    assert not (repo.folder / "b.txt").exists()
    repo.git("branch", "back", ended.commits[0])
    assert repo.git("show", "back:c.txt") == "not committed" and repo.git("show", "back:b.txt") == "two"
    repo.check()


async def test_another_branch_in_the_worktree_is_not_merged_by_mistake(repo: UserRepository) -> None:
    started = await start(repo)
    repo.git("switch", "-q", "-c", "feature", folder=started.folder)
    repo.commit("b.txt", "two\n", started.folder)
    with pytest.raises(Conflict, match="has refs/heads/feature checked out"):
        await end_worktree(started.log, "s1", "merge")
    await end_worktree(started.log, "s1", "drop")
    assert repo.list_branches() == ["feature", "main"] and repo.git("show", "feature:b.txt") == "two"


async def test_a_folder_that_the_user_removed_can_still_be_merged_or_dropped(repo: UserRepository) -> None:
    started = await start(repo)
    commit = repo.commit("b.txt", "two\n", started.folder)
    shutil.rmtree(started.folder)
    await end_worktree(started.log, "s1", "merge")
    assert repo.git("rev-parse", "HEAD") == commit and repo.list_branches() == ["main"]
    repo.check()


async def test_a_branch_that_is_gone_is_told(repo: UserRepository) -> None:
    started = await start(repo)
    repo.git("worktree", "remove", str(started.folder))
    repo.git("branch", "-D", "treadle/fix")
    with pytest.raises(NotFound, match="treadle/fix is gone"):
        await end_worktree(started.log, "s1", "merge")
    await end_worktree(started.log, "s1", "drop")
    assert not started.folder.parent.exists()


async def test_a_session_that_works_keeps_its_worktree(repo: UserRepository) -> None:
    started = await start(repo)
    await started.log.post("s1", [MessageReceived(id="m1", parts=(TextPart("go"),))])
    claim = await started.log.claim(make_owner_name(), 60, "s1")
    assert claim is not None
    await started.log.append(claim, 3, [RunStarted(run_id="r1", limits=Limits())])
    with pytest.raises(Conflict, match="s1 is running: let it end, or cancel it"):
        await end_worktree(started.log, "s1", "drop")
    assert started.folder.exists()


async def test_a_fork_that_works_there_keeps_the_worktree(repo: UserRepository) -> None:
    started = await start(repo)
    created = SessionCreated(session_id="s2", agent=AgentConfig("a"), workspace=started.worktree.folder)
    await started.log.create("s2", [created, MessageReceived(id="m1", parts=(TextPart("go"),))])
    claim = await started.log.claim(make_owner_name(), 60, "s2")
    assert claim is not None
    await started.log.append(claim, 2, [RunStarted(run_id="r1", limits=Limits())])
    with pytest.raises(Conflict, match="s2 is running: let it end, or cancel it"):
        await end_worktree(started.log, "s1", "drop")
    assert started.folder.exists()


async def test_of_two_merges_at_once_one_waits_and_leaves_nothing_behind(repo: UserRepository) -> None:
    one, two = await start(repo, "one"), await start(repo, "two")
    repo.commit("b.txt", "two\n", one.folder)
    repo.commit("c.txt", "three\n", two.folder)
    merges = [end_worktree(started.log, "s1", "merge") for started in (one, two)]
    ended = await asyncio.gather(*merges, return_exceptions=True)
    assert repo.git("status", "--porcelain") == ""
    for started, end in zip((one, two), ended, strict=True):
        if isinstance(end, BaseException):
            assert isinstance(end, Conflict) and "Run it again" in str(end)
            await end_worktree(started.log, "s1", "merge")
    assert repo.list_branches() == ["main"] and repo.git("status", "--porcelain") == ""
    assert (repo.folder / "b.txt").exists() and (repo.folder / "c.txt").exists()
    repo.check()


async def test_a_session_that_cannot_be_created_leaves_no_worktree(repo: UserRepository) -> None:
    settings = Settings(workspace=str(repo.folder), worktree_folder=str(repo.folder.parent / "state"))

    async def fail() -> None:
        async with start_session_worktree(settings, "fix"):
            raise BadInput("no model")

    with pytest.raises(BadInput, match="no model"):
        await fail()
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == []
    repo.check()


async def test_the_sessions_of_a_project_work_in_its_folder_and_its_worktrees(repo: UserRepository) -> None:
    started = await start(repo)
    assert list_project_folders(repo.folder) == [str(repo.folder), str(started.folder)]
    assert list_project_folders(repo.folder.parent) == [str(repo.folder.parent)]


async def test_two_sessions_at_once_get_different_folders_and_branches(repo: UserRepository) -> None:
    first, second = await asyncio.gather(start(repo, ""), start(repo, ""))
    assert first.folder != second.folder and len(set(repo.list_branches())) == 3
    assert repo.git("status", "--porcelain", folder=first.folder) == ""
    repo.check()


async def test_a_project_and_a_branch_are_shown_instead_of_a_long_folder(repo: UserRepository) -> None:
    started = await start(repo)
    settings = Settings(worktree_folder=str(repo.folder.parent / "state"))
    assert describe_folder(str(started.folder), settings) == "project (treadle/fix)"
    assert describe_folder(str(repo.folder), settings) == str(repo.folder)


async def test_a_commit_needs_no_name_of_the_user(repo: UserRepository) -> None:
    repo.git("config", "--unset", "user.name")
    repo.git("config", "--unset", "user.email")
    started = await start(repo)
    (started.folder / "b.txt").write_text("two\n")
    ended = await end_worktree(started.log, "s1", "drop")
    assert repo.git("show", f"{ended.commits[0]}:b.txt") == "two"


@pytest.mark.parametrize("action", ["merge", "drop"])
@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_repository_in_a_worktree_is_not_removed_with_it(
    repo: UserRepository, action: WorktreeAction, is_committed: bool
) -> None:
    started = await start(repo)
    inner = started.folder / "sub/inner"
    inner.mkdir(parents=True)
    repo.git("init", "-q", folder=inner)
    repo.commit("precious.txt", "precious\n", inner)
    if is_committed:
        repo.git("add", "-A", folder=started.folder)
        repo.git("commit", "-qm", "Add a link to it", folder=started.folder)
    with pytest.raises(Conflict, match=r"repositories in it, whose commits may be nowhere else: sub/inner"):
        await end_worktree(started.log, "s1", action, commit=True)
    assert (inner / "precious.txt").exists() and repo.list_worktrees() == [str(started.folder)]
    assert repo.git("ls-tree", "-r", "--name-only", "HEAD") == "a.txt"


async def test_conflicts_are_not_committed_into_the_users_branch(repo: UserRepository) -> None:
    started = await start(repo)
    repo.git("switch", "-qc", "other", folder=started.folder)
    repo.commit("a.txt", "other\n", started.folder)
    repo.git("switch", "-q", "treadle/fix", folder=started.folder)
    repo.commit("a.txt", "mine\n", started.folder)
    repo.git("merge", "other", folder=started.folder, code=1)
    with pytest.raises(Conflict, match=r"has conflicts that nobody has resolved yet, for example a\.txt"):
        await end_worktree(started.log, "s1", "merge", commit=True)
    assert (repo.folder / "a.txt").read_text() == "one\n"
    dropped = await end_worktree(started.log, "s1", "drop")
    assert "<<<<<<<" in repo.git("show", f"{dropped.commits[0]}:a.txt")


async def test_new_files_count_also_if_the_user_hides_them_in_git_status(repo: UserRepository) -> None:
    started = await start(repo)
    repo.git("config", "status.showUntrackedFiles", "no")
    (started.folder / "new.txt").write_text("new\n")
    with pytest.raises(Conflict, match=r"uncommitted change, for example new\.txt"):
        await end_worktree(started.log, "s1", "merge")
    dropped = await end_worktree(started.log, "s1", "drop")
    assert repo.git("show", f"{dropped.commits[0]}:new.txt") == "new"


async def test_what_git_ignores_is_named_when_it_is_removed(repo: UserRepository) -> None:
    repo.commit(".gitignore", "out/\n")
    started = await start(repo)
    (started.folder / "out").mkdir()
    (started.folder / "out/result").write_text("result\n")
    assert (await end_worktree(started.log, "s1", "merge")).ignored == ("out/",)


async def test_nothing_is_merged_where_no_branch_is_checked_out(repo: UserRepository) -> None:
    started = await start(repo)
    repo.commit("b.txt", "two\n", started.folder)
    repo.git("checkout", "-q", "--detach")
    with pytest.raises(Conflict, match="No branch is checked out here"):
        await end_worktree(started.log, "s1", "merge")
    assert not (repo.folder / "b.txt").exists() and repo.list_worktrees() == [str(started.folder)]
