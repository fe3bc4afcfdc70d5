"""Rewinding git: branches, tags, the stash, HEAD and the index go back with the files, and commits stay findable."""

import shutil
from functools import partial
from typing import Any

import pytest

from tests.kit.git_rewinding import GitPlace, create_repository, git_place
from tests.kit.host_git import run_git, set_identity
from tests.kit.rewinding import positions
from tests.kit.sandbox import needs_bubblewrap
from tests.kit.sessions import Store, either_store, resume_run, run_to_end, select_events
from treadle.events import FilesKept, KeptRef, Tier
from treadle.git.find_repository import NoRepository, find_repository
from treadle.history import git_rewind
from treadle.history.content_store import ContentStore
from treadle.history.rewind import Rewinder
from treadle.log.in_memory import InMemoryLog
from treadle.testing import crash_points

store = either_store
place = git_place

WORK = {
    "a commit": "echo two > a.txt; echo new > b.txt; git add .; git commit -qm 'Add b'",
    "two commits": "echo two > a.txt; git commit -qam Two; echo three > a.txt; git commit -qam Three",
    "an amended commit": "echo two > a.txt; git commit -qa --amend -m 'First, better'",
    "a new branch": "git switch -qc feature; echo b > b.txt; git add b.txt; git commit -qm 'Add b'",
    "a branch beside": "git branch side $(git commit-tree -m Beside HEAD^{tree})",
    "a detached HEAD": "git checkout -q --detach; echo b > b.txt; git add b.txt; git commit -qm Detached",
    "a reset": "git reset -q --hard old",
    "a soft reset": "git reset -q --soft old",
    "a deleted branch": "git branch -qD old",
    "a renamed branch": "git branch -m old older",
    "a switch": "git switch -q old",
    "tags": "git tag light; git tag -a -m Noted noted; git tag -d known",
    "a stash": "echo two > a.txt; git stash -q",
    "two stashes": "echo two > a.txt; git stash -q; echo three > a.txt; git stash -q",
    "a dropped stash": "git stash drop -q",
    "an older stash that was dropped": "git stash drop -q stash@{1}",
    "cleared stashes": "git stash clear",
    "a popped stash": "git stash pop -q",
    "staged files": "echo two > a.txt; echo b > b.txt; git add .",
    "a removed file": "git rm -q a.txt; git commit -qm 'Remove a'",
    "a merge": "git switch -q other; git merge -q --no-edit main",
    "a rebase": "git switch -q other; git rebase -q main",
    "packed refs": "git pack-refs --all; echo two > a.txt; git commit -qam Two; git branch made",
}


def prepare(place: GitPlace) -> None:
    """Make commits, a tag, branches and a stash, one staged and one changed file."""
    place.git("branch", "old")
    place.git("switch", "-qc", "other")
    place.put("other.txt", "other\n")
    place.git("add", ".")
    place.git("commit", "-qm", "Other")
    place.git("switch", "-q", "main")
    for text in ("stashed\n", "stashed too\n"):
        place.put("a.txt", text)
        place.git("stash", "-q")
    place.put("c.txt", "c\n")
    place.git("add", ".")
    place.git("commit", "-qm", "Add c")
    place.git("tag", "known")


@pytest.mark.parametrize(
    "is_real", [pytest.param(False, id="host"), pytest.param(True, id="sandbox", marks=needs_bubblewrap)]
)
@pytest.mark.parametrize("command", WORK.values(), ids=WORK.keys())
async def test_git_goes_back_and_forward_with_the_files(place: GitPlace, command: str, is_real: bool) -> None:
    store = Store(None)
    if is_real:
        place.use_real_sandbox()
    prepare(place)
    before, known = (place.describe(), place.read_files()), place.list_commits()
    async with place.run_shell(store, command) as session:
        after, made = (place.describe(), place.read_files()), place.list_commits() - known
        assert before != after
        shown = await session.rewind(1, dry_run=True)
        assert shown.changes and not shown.skipped and (place.describe(), place.read_files()) == after
        await session.rewind(1)
        for expected in (before, after, before):
            assert (place.describe(), place.read_files()) == expected
            assert made <= place.list_commits(), "a commit is lost"
            place.check_objects()
            done = await session.undo_rewind()
            assert done.changes and not done.skipped
        assert [change.path for change in done.changes] == [change.path for change in shown.changes]


async def test_each_position_has_its_branches_and_index(place: GitPlace, store: Store) -> None:
    later = ("git switch -q main; git branch -D feature; git tag v1", "git reset -q --hard HEAD~1")
    commands = (WORK["a commit"], WORK["staged files"], WORK["two commits"], WORK["a new branch"], *later)
    seen: list[Any] = []
    place.watch_command = lambda: seen.append((place.describe(), place.read_files()))
    async with place.run_shell(store, *commands) as session:
        final = (place.describe(), place.read_files())
        for position, expected in zip(await positions(session), seen, strict=True):
            done = await session.rewind(position, "files")
            assert not done.skipped and (place.describe(), place.read_files()) == expected
            await session.undo_rewind()
            assert (place.describe(), place.read_files()) == final
        place.check_objects()


async def test_changes_lists_commits_by_branch_with_the_calls_that_made_them(place: GitPlace, store: Store) -> None:
    commands = ("echo 2 > a.txt; git commit -qam Two", "echo 3 > a.txt; git commit -qam Three; git tag v1")
    async with place.run_shell(store, *commands) as session:
        changes = {change.path: change for change in await session.changes()}
        assert {path: change.kind for path, change in changes.items()} == {
            "a.txt": "modified",
            ".git/refs/heads/main": "committed",
            ".git/refs/tags/v1": "moved",
            ".git/index": "staged",
        }
        main = changes[".git/refs/heads/main"]
        first, *commits = main.diff.splitlines()
        assert [line[0] + line[8:] for line in commits] == ["+ Three", "+ Two"] and len(main.calls) == 2
        assert first == " → ".join(place.git("log", "--format=%h", "--abbrev=7", "--reverse").split()[::2])
        assert not any(change.others for change in changes.values())
        shown = await session.rewind((await positions(session))[1] - 1, dry_run=True)
        back = {change.path: change for change in shown.changes}[".git/refs/heads/main"]
        assert back.kind == "moved" and [line[8:] for line in back.diff.splitlines()[1:]] == [" Three"]


async def test_a_branch_that_somebody_else_moved_stays_unless_forced(place: GitPlace, store: Store) -> None:
    before = place.describe()
    async with place.run_shell(store, WORK["a commit"]) as session:
        place.put("mine.txt", "mine\n")
        place.git("add", "mine.txt")
        place.git("commit", "-qm", "Mine")
        theirs = place.git("rev-parse", "HEAD")
        assert {change.path for change in await session.changes() if change.others} == {
            ".git/refs/heads/main",
            ".git/index",
        }
        done = await session.rewind(1, "files")
        assert {one.path for one in done.skipped} == {".git/refs/heads/main", ".git/index"}
        assert "force" in done.skipped[0].why and place.git("rev-parse", "HEAD") == theirs
        assert place.read_files() == {"a.txt": "one\n", "mine.txt": "mine\n"}
        await session.rewind(1, "files", force=True)
        assert place.git("rev-parse", "HEAD") != theirs and place.git("status", "--porcelain") == "?? mine.txt"
        assert {**place.describe(), "status": ""} == {**before, "status": ""}
        await session.undo_rewind()
        assert place.git("rev-parse", "HEAD") == theirs and theirs.strip() in place.list_commits()


async def test_a_commit_of_somebody_else_between_two_calls_keeps_the_branch(place: GitPlace, store: Store) -> None:
    async with place.session(
        store, *place.script(WORK["a commit"], "echo 3 > a.txt; git commit -qam Three")
    ) as session:
        await run_to_end(session)
        place.git("commit", "-q", "--allow-empty", "-m", "Mine")
        await run_to_end(session)
        now, second = place.git("rev-parse", "HEAD"), (await positions(session))[1]
        done = await session.rewind(1, "files", dry_run=True)
        assert ".git/refs/heads/main" in {one.path for one in done.skipped}
        await session.rewind(second, "files")
        assert place.git("log", "--format=%s").split("\n")[:2] == ["Mine", "Add b"]
        await session.undo_rewind()
        assert place.git("rev-parse", "HEAD") == now


async def test_a_branch_that_the_user_checked_out_is_not_deleted(place: GitPlace, store: Store) -> None:
    async with place.run_shell(store, "git branch side") as session:
        place.git("switch", "-q", "side")
        done = await session.rewind(1, "files")
        assert {one.path: one.why for one in done.skipped}[".git/refs/heads/side"].startswith("it is checked out")
        assert place.git("status", "--porcelain", "--branch") == "## side"


async def test_a_branch_that_another_worktree_has_checked_out_stays(place: GitPlace, store: Store) -> None:
    async with place.run_shell(store, "git branch side; git tag v1") as session:
        place.git("worktree", "add", "-q", str(place.workspace.parent / "linked"), "side")
        done = await session.rewind(1, "files", force=True)
        assert [(one.path, one.why) for one in done.skipped] == [
            (".git/refs/heads/side", "another worktree has it checked out")
        ]
        assert place.git("branch", "--format=%(refname:short)") == "main\nside" and place.git("tag") == ""


async def test_what_the_user_staged_since_stays_staged(place: GitPlace, store: Store) -> None:
    async with place.run_shell(store, WORK["a commit"]) as session:
        place.put("mine.txt", "mine\n")
        place.git("add", "mine.txt")
        done = await session.rewind(1, "files")
        assert [one.path for one in done.skipped] == [".git/index"]
        assert "A  mine.txt" in place.git("status", "--porcelain")
        assert place.git("log", "--format=%s") == "First"


async def test_reading_the_status_is_not_a_change_of_the_index(place: GitPlace, store: Store) -> None:
    before = place.describe()
    async with place.run_shell(store, WORK["a commit"]) as session:
        (place.workspace / "a.txt").touch()
        place.git("status")  # writes the index anew
        assert not (await session.rewind(1, "files")).skipped and place.describe() == before


async def test_the_first_commit_of_a_repository_goes_back(place: GitPlace, store: Store) -> None:
    shutil.rmtree(place.workspace / ".git")
    place.git("init", "-q", "-b", "main")
    before = place.git("status", "--porcelain=v2", "--branch")
    async with place.run_shell(store, "git add .; git commit -qm Start") as session:
        commits = place.list_commits()
        assert not (await session.rewind(1, "files")).skipped
        assert place.git("status", "--porcelain=v2", "--branch") == before and place.list_commits() == commits
        await session.undo_rewind()
        assert place.git("log", "--format=%s") == "Start" and place.git("status", "--porcelain") == ""


async def test_a_repository_that_a_call_created_stays_without_branches(place: GitPlace, store: Store) -> None:
    shutil.rmtree(place.workspace / ".git")
    async with place.run_shell(store, "git init -q -b main; git add .; git commit -qm Start") as session:
        assert not (await session.rewind(1, "files")).skipped
        assert place.git("status", "--porcelain") == "?? a.txt" and place.git("branch") == ""
        await session.undo_rewind()
        assert place.git("log", "--format=%s") == "Start" and place.git("status", "--porcelain") == ""


@pytest.mark.parametrize("tier", [pytest.param("sandbox", marks=needs_bubblewrap), "full"])
@pytest.mark.parametrize("kind", ["nested", "worktree", "submodule"])
async def test_a_repository_in_a_folder_goes_back_alone(place: GitPlace, store: Store, kind: str, tier: Tier) -> None:
    place.use_real_sandbox()
    if kind == "nested":
        create_repository(place.workspace / "sub")
    elif kind == "worktree":
        place.git("worktree", "add", "-q", "-b", "linked", "sub")
    else:
        other = place.workspace.parent / "other"
        create_repository(other)
        place.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
        place.git("commit", "-qm", "Add sub")
        set_identity(place.workspace / "sub")
    place.tier = tier
    before = place.describe("sub")
    async with place.run_shell(store, f"cd sub; {WORK['a commit']}") as session:
        top, after = place.describe(), place.describe("sub")
        branch = place.git("symbolic-ref", "HEAD", folder="sub").strip()
        assert f"sub/.git/{branch}" in {change.path for change in await session.changes()}
        done = await session.rewind(1, "files")
        assert not done.skipped and place.describe("sub") == before
        assert kind == "worktree" or {**place.describe(), "status": ""} == {**top, "status": ""}
        await session.undo_rewind()
        assert place.describe("sub") == after and place.describe() == top
        place.check_objects("sub")


BEGIN_MERGE = "echo mine > a.txt; git commit -qam Mine; git merge -q other || true"


def add_other_branch(place: GitPlace) -> None:
    """Add a branch that conflicts with `BEGIN_MERGE`."""
    place.git("switch", "-qc", "other")
    place.put("a.txt", "other\n")
    place.git("commit", "-qam", "Other")
    place.git("switch", "-q", "main")


async def test_an_unfinished_merge_keeps_its_repository_as_it_is(place: GitPlace, store: Store) -> None:
    add_other_branch(place)
    async with place.run_shell(store, BEGIN_MERGE) as session:
        now = place.git("rev-parse", "HEAD")
        done = await session.rewind(1, "files", force=True)
        assert {one.path for one in done.skipped} == {".git/refs/heads/main", ".git/index"}
        assert all("a merge is unfinished" in one.why for one in done.skipped)
        assert place.git("rev-parse", "HEAD") == now
        place.git("merge", "--abort")
        assert not (await session.rewind(1, "files", force=True)).skipped
        assert place.git("log", "--format=%s") == "First" and place.git("status", "--porcelain") == ""


async def test_a_rewind_into_a_merge_says_that_its_state_is_not_restored(place: GitPlace, store: Store) -> None:
    add_other_branch(place)
    async with place.run_shell(store, BEGIN_MERGE, "git add .; git commit -qm Merged") as session:
        done = await session.rewind((await positions(session))[1], "files")
        assert [one.path for one in done.skipped] == [".git/MERGE_HEAD"]
        assert place.git("log", "-1", "--format=%s") == "Mine"


async def test_a_rewind_of_git_cut_off_anywhere_is_repeated_and_undone(
    place: GitPlace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = place.describe()
    async with place.run_shell(store, f"{WORK['a new branch']}; git tag v1") as session:
        after = place.describe()
        steps = {name: getattr(git_rewind, name) for name in ("restore_ref", "restore_index")}
        for survivors in range(4):  # HEAD, the new branch, the tag and the index
            left = [survivors]

            def restore_or_die(name: str, *given: Any, left: list[int] = left) -> str:
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1
                return steps[name](*given)

            with monkeypatch.context() as patch:
                for name in steps:
                    patch.setattr(git_rewind, name, partial(restore_or_die, name))
                with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
                    await session.rewind(1, "files")
            assert place.describe() != before
            assert not (await session.rewind(1, "files")).skipped and place.describe() == before
            await session.undo_rewind()
            assert place.describe() == after


@pytest.mark.parametrize("is_taken_back", [False, True])
async def test_a_command_cut_off_before_its_record_is_listed_and_goes_back_if_forced(
    place: GitPlace, is_taken_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (place.describe(), place.read_files())
    monkeypatch.setattr(ContentStore, "drop", lambda self, name: None)  # a process that dies drops nothing
    async with place.agent(*place.script(WORK["a commit"])).session(
        InMemoryLog(), workspace=place.workspace
    ) as session:
        await run_to_end(session)
        points = await crash_points(session)
    monkeypatch.undo()
    (point,) = [point for point in points if isinstance(point.facts[-1], FilesKept) and point.facts[-1].tree]
    after = (place.describe(), place.read_files())
    if not is_taken_back:
        place.git("reset", "-q", "--hard", "HEAD~1")
    log = InMemoryLog()
    session_id = await point.plant(log)
    async with place.agent("done").session(log, id=session_id) as session:
        await resume_run(session)
        changes = {change.path: change.others for change in await session.changes()}
        done = await session.rewind(1, "files")
        if not is_taken_back:
            assert not changes and not done.skipped and (place.describe(), place.read_files()) == before
            return
        refs = {".git/refs/heads/main", ".git/index"}
        assert {path for path, others in changes.items() if others} == refs
        assert {one.path for one in done.skipped} == refs and place.describe()["refs"] == after[0]["refs"]
        await session.rewind(1, "files", force=True)
        assert (place.describe(), place.read_files()) == before


async def test_commits_on_the_host_are_recorded_too(place: GitPlace, store: Store) -> None:
    place.tier = "full"
    before = place.describe()
    async with place.run_shell(store, WORK["a new branch"]) as session:
        paths = {change.path: change.kind for change in await session.changes()}
        assert paths[".git/refs/heads/feature"] == "committed" and paths[".git/HEAD"] == "moved"
        assert not (await session.rewind(1, "files")).skipped and place.describe() == before


async def test_a_fork_moves_no_branch_that_its_parent_moved_on(place: GitPlace, store: Store) -> None:
    commands = (WORK["a commit"], "echo 3 > a.txt; git commit -qam Three")
    async with place.session(store, *place.script(*commands)) as session:
        await run_to_end(session)
        fork = await session.fork()
        await run_to_end(session)
        now = place.describe()
        done = await fork.rewind(1, "files")
        assert ".git/refs/heads/main" in {one.path for one in done.skipped} and place.describe()["refs"] == now["refs"]


async def test_a_hostile_repository_is_left_alone(place: GitPlace, store: Store) -> None:
    outside = place.workspace.parent / "outside"
    async with place.run_shell(store, WORK["a commit"]) as session:
        shutil.move(place.workspace / ".git", outside)
        (place.workspace / ".git").symlink_to(outside)
        now = run_git(outside, "--git-dir=.", "rev-parse", "main")
        done = await session.rewind(1, "files", force=True)
        assert [one.path for one in done.skipped] == [".git"]
        assert run_git(outside, "--git-dir=.", "rev-parse", "main") == now


def test_a_git_file_that_names_the_repository_of_somebody_else_is_not_followed(place: GitPlace) -> None:
    other = place.workspace.parent / "other"
    create_repository(other)
    (place.workspace / "sub").mkdir()
    (place.workspace / "sub/.git").write_text(f"gitdir: {other}/.git\n")
    with pytest.raises(NoRepository, match="belongs to another folder"):
        find_repository(place.workspace, "sub")
    (place.workspace / "sub/.git").write_text("gitdir: ../../other/.git/../.git\n")
    with pytest.raises(NoRepository, match="belongs to another folder"):
        find_repository(place.workspace, "sub")
    (place.workspace / ".git/commondir").write_text(f"{other}/.git\n")
    with pytest.raises(NoRepository, match="settings from another folder"):
        find_repository(place.workspace, "")
    (place.workspace / "link").symlink_to(other)
    for name in ("../other", "link", "gone", "a\0b", "a.txt"):
        with pytest.raises(NoRepository, match="not a folder"):
            find_repository(place.workspace, name)


async def test_values_in_the_log_that_are_no_refs_are_not_written(place: GitPlace) -> None:
    log = InMemoryLog()
    async with place.agent("ok").session(log, workspace=place.workspace) as session:
        await run_to_end(session)
        head = place.git("rev-parse", "HEAD").strip()
        bad = (
            KeptRef("refs/heads/../../config", "1" * 40, ""),
            KeptRef("refs/remotes/origin/main", "1" * 40, ""),
            KeptRef("config", "1" * 40, ""),
            KeptRef("refs/heads/main", "../../etc", head),
            KeptRef("HEAD", "ref: /etc/passwd", "ref: refs/heads/main"),
            KeptRef("refs/heads/main", "1" * 40, head, "../outside"),
        )
        await log.post(session.id, [FilesKept(call_id="c", refs=bad)], wake=False)
        before = place.describe()
        done = await session.rewind(1, "files", force=True)
        assert place.describe() == before and not done.changes and len(done.skipped) == len(bad)


async def test_of_very_many_refs_the_most_important_are_kept(place: GitPlace, store: Store) -> None:
    command = "for i in $(seq 250); do git update-ref refs/heads/b$i HEAD; done; git commit -q --allow-empty -m Empty"
    async with place.run_shell(store, command) as session:
        (kept,) = [fact for fact in select_events(await session.facts(), FilesKept) if fact.refs]
        assert len(kept.refs) == 200 and {"HEAD", "refs/heads/main"} <= {ref.ref for ref in kept.refs}
        done = await session.rewind(1, "files")
        assert [one.path for one in done.skipped] == [".git/… and 52 more refs"]
        assert place.git("log", "--format=%s") == "First"


@pytest.mark.parametrize(
    ("words", "paths"),
    [
        (("commit", "-q", "--allow-empty", "-m", "Mine"), {".git/refs/heads/main", ".git/index"}),
        (("add", "mine.txt"), {".git/index"}),
    ],
    ids=["a commit", "a staged file"],
)
async def test_what_somebody_changes_during_the_rewind_stays(
    place: GitPlace, words: tuple[str, ...], paths: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.run_shell(Store(None), WORK["a commit"]) as session:
        record = Rewinder._record

        async def change_and_record(self: Rewinder, *given: Any) -> int:
            place.put("mine.txt", "mine\n")
            place.git(*words)
            return await record(self, *given)

        monkeypatch.setattr(Rewinder, "_record", change_and_record)
        done = await session.rewind(1, "files")
        assert {one.path for one in done.skipped} == paths
        assert "Mine" in place.git("log", "-1", "--format=%s") or "A  mine.txt" in place.git("status", "--porcelain")


async def test_the_index_stays_with_the_branch_to_which_the_user_switched(place: GitPlace, store: Store) -> None:
    async with place.run_shell(store, "echo two > a.txt; git commit -qam Two") as session:
        place.git("switch", "-qc", "mine")
        done = await session.rewind(1, "files")
        assert {one.path for one in done.skipped} == {".git/HEAD", ".git/index"}
        assert place.git("log", "--format=%s", "main") == "First"
        assert place.git("status", "--porcelain", "--branch") == "## mine\n M a.txt"
