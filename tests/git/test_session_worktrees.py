"""Linked worktrees that are made as files. Git itself judges them, as it was installed and outside of a sandbox."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.kit.user_repository import UserRepository
from treadle.errors import BadInput, Conflict, TreadleError
from treadle.git.session_worktrees import (
    Worktree,
    create_worktree,
    list_worktree_folders,
    parse_worktree,
    plan_worktree,
    read_checked_out,
    read_tip,
    remove_worktree,
)
from treadle.sandbox.worktree_commands import find_top_repository


@pytest.fixture
def repo(tmp_path: Path) -> UserRepository:
    return UserRepository(tmp_path / "project")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return tmp_path / "state" / "worktrees"


def create(repo: UserRepository, parent: Path, name: str = "", folder: Path | None = None) -> Worktree:
    """Create a worktree, with the files written by git."""
    worktree = plan_worktree(find_top_repository(folder or repo.folder), name, parent)
    with create_worktree(worktree):
        repo.git("reset", "-q", "--hard", folder=worktree.folder)
    return worktree


def test_git_takes_it_for_a_worktree_of_its_own(repo: UserRepository, parent: Path) -> None:
    worktree = create(repo, parent, "fix")
    assert worktree.branch == "treadle/fix" and Path(worktree.folder).name == "project"
    assert repo.list_worktrees() == [worktree.folder]
    assert repo.list_branches() == ["main", "treadle/fix"]
    assert repo.git("status", "--porcelain", "--branch", folder=worktree.folder) == "## treadle/fix"
    assert Path(worktree.folder, "a.txt").read_text() == "one\n"
    commit = repo.commit("b.txt", "two\n", worktree.folder)
    assert read_tip(worktree) == commit == repo.git("rev-parse", "treadle/fix") and read_checked_out(worktree) == ""
    assert not (repo.folder / "b.txt").exists() and repo.git("status", "--porcelain") == ""
    repo.check()


@pytest.mark.parametrize("is_packed", [False, True])
def test_removing_leaves_the_repository_as_it_was(repo: UserRepository, parent: Path, is_packed: bool) -> None:
    before = sorted(path for path in (repo.folder / ".git").rglob("*") if "objects" not in path.parts)
    worktree = create(repo, parent)
    tip = repo.commit("b.txt", "two\n", worktree.folder)
    if is_packed:
        repo.git("pack-refs", "--all")
    remove_worktree(worktree, tip)
    assert repo.list_worktrees() == [] and repo.list_branches() == ["main"]
    assert list(parent.iterdir()) == [parent / ".lock"]
    if not is_packed:
        assert sorted(path for path in (repo.folder / ".git").rglob("*") if "objects" not in path.parts) == before
    repo.check()
    remove_worktree(worktree, tip)  # a second time, as after an interruption, there is nothing to do
    assert repo.git("show", f"{tip}:b.txt") == "two"


def test_a_repository_may_itself_be_a_linked_worktree(repo: UserRepository, parent: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", "-b", "side", str(linked))
    commit = repo.commit("side.txt", "side\n", linked)
    worktree = create(repo, parent, folder=linked)
    assert worktree.base == commit and Path(worktree.folder, "side.txt").exists()
    assert Path(worktree.folder).name == "linked" and sorted(repo.list_worktrees()) == sorted(
        [str(linked), worktree.folder]
    )
    remove_worktree(worktree, commit)
    assert repo.list_worktrees() == [str(linked)]
    repo.check()


def test_each_gets_its_own_folder_and_branch(repo: UserRepository, parent: Path, tmp_path: Path) -> None:
    other = UserRepository(tmp_path / "elsewhere" / "project")
    worktrees = [create(repo, parent), create(repo, parent), create(repo, parent, "fix"), create(other, parent, "fix")]
    assert len({worktree.folder for worktree in worktrees}) == 4
    assert sorted(repo.list_worktrees()) == sorted(worktree.folder for worktree in worktrees[:3])
    assert sorted(list_worktree_folders(find_top_repository(repo.folder))) == sorted(repo.list_worktrees())
    with pytest.raises(Conflict, match="treadle/fix already"):
        create(repo, parent, "fix")
    assert len(repo.list_worktrees()) == 3
    for one in (repo, other):
        one.check()


def test_a_branch_of_the_user_is_never_taken(repo: UserRepository, parent: Path) -> None:
    repo.git("branch", "treadle/fix")
    with pytest.raises(Conflict, match="treadle/fix already"):
        create(repo, parent, "fix")
    repo.git("branch", "-D", "treadle/fix")
    repo.git("branch", "treadle")
    with pytest.raises(Conflict, match="in the way of another name"):
        create(repo, parent, "fix")
    assert repo.list_branches() == ["main", "treadle"] and list(parent.iterdir()) == [parent / ".lock"]
    repo.check()


def test_an_error_while_it_is_filled_leaves_nothing(repo: UserRepository, parent: Path) -> None:
    worktree = plan_worktree(find_top_repository(repo.folder), "fix", parent)

    def fill() -> None:
        with create_worktree(worktree):
            Path(worktree.folder, "half").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill()
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == [] and not worktree.holder.exists()
    repo.check()


CRASH = """
import os, signal, sys
from pathlib import Path
from treadle.git import session_worktrees as worktrees
from treadle.sandbox.worktree_commands import find_top_repository
from treadle.git.git_folder import GitFolder

def end_here(*args):
    os.kill(os.getpid(), signal.SIGKILL)

step = sys.argv[3]
if step == "record":
    os.fsync = end_here
elif step == "branch":
    worktrees._write_links = end_here
elif step == "links":
    write, count = GitFolder.write_file, [0]
    def counted(self, name, data, mode=0o666):
        count[0] += 1
        end_here() if count[0] == int(sys.argv[4]) else write(self, name, data, mode)
    GitFolder.write_file = counted
repository = find_top_repository(Path(sys.argv[1]))
with worktrees.create_worktree(worktrees.plan_worktree(repository, "fix", Path(sys.argv[2]))) as record:
    if step == "session":
        worktrees.note_filled(record)
    end_here()
"""


@pytest.mark.parametrize("step", ["record", "branch", "links 1", "links 2", "links 3", "links 4", "filled", "session"])
def test_after_a_kill_in_the_middle_the_next_one_removes_the_rest(
    repo: UserRepository, parent: Path, step: str
) -> None:
    command = [sys.executable, "-c", CRASH, str(repo.folder), str(parent), *step.split()]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    repo.git("fsck", "--strict")
    repo.git("status")
    worktree = create(repo, parent, "fix")
    assert repo.list_worktrees() == [worktree.folder] and repo.list_branches() == ["main", "treadle/fix"]
    assert sorted(path.name for path in parent.iterdir()) == [".lock", worktree.holder.name]
    repo.check()


@pytest.mark.parametrize("change", ["new file", "index"])
def test_a_worktree_that_a_session_used_after_a_kill_is_not_removed(
    repo: UserRepository, parent: Path, change: str
) -> None:
    command = [sys.executable, "-c", CRASH, str(repo.folder), str(parent), "session"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    [folder] = repo.list_worktrees()
    marked = next(parent.glob("*.unfinished")).stat().st_mtime_ns
    while (parent / ".lock").stat().st_ctime_ns <= marked:  # until the clock of the files has moved on
        (parent / ".lock").touch()
    if change == "index":
        repo.git("reset", "-q", "--hard", folder=Path(folder))
    else:
        (Path(folder) / "work.txt").write_text("not committed")
    create(repo, parent, "other")
    assert folder in repo.list_worktrees() and Path(folder).is_dir()
    assert not list(parent.glob("*.unfinished"))


@pytest.mark.parametrize("name", ["unfinished.json", ".unfinished", "x.unfinished"])
def test_a_record_inside_the_folder_of_a_worktree_undoes_nothing(
    repo: UserRepository, parent: Path, tmp_path: Path, name: str
) -> None:
    worktree, outside = create(repo, parent, "first"), tmp_path / "outside"
    outside.mkdir()
    forged = {**msgspec.structs.asdict(worktree), "branch": "treadle/other", "folder": str(outside)}
    (worktree.holder / name).write_bytes(msgspec.json.encode(forged))
    create(repo, parent, "second")
    assert outside.is_dir() and repo.list_branches() == ["main", "treadle/first", "treadle/second"]


def test_one_that_is_being_created_is_left_alone(repo: UserRepository, parent: Path) -> None:
    first = plan_worktree(find_top_repository(repo.folder), "first", parent)
    with create_worktree(first):
        second = create(repo, parent, "second")
        assert Path(first.folder, ".git").is_file()
        with pytest.raises(Conflict):
            create(repo, parent, "first")
    assert sorted(repo.list_worktrees()) == sorted([first.folder, second.folder])


def test_what_a_crash_left_of_a_branch_that_moved_since_stays(repo: UserRepository, parent: Path) -> None:
    command = [sys.executable, "-c", CRASH, str(repo.folder), str(parent), "filled"]
    subprocess.run(command, check=False)
    commit = repo.commit("b.txt", "two\n")
    repo.git("branch", "-f", "treadle/fix", commit, code=128)  # it is checked out, as far as git knows
    repo.git("update-ref", "refs/heads/treadle/fix", commit)
    create(repo, parent, "other")
    assert repo.git("rev-parse", "treadle/fix") == commit


def test_a_folder_that_the_user_removed_does_not_stop_the_removal(repo: UserRepository, parent: Path) -> None:
    worktree = create(repo, parent)
    for path in sorted(worktree.holder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert read_tip(worktree) == worktree.base
    remove_worktree(worktree, worktree.base)
    assert repo.list_worktrees() == [] and repo.list_branches() == ["main"]
    repo.check()


def test_a_branch_that_got_commits_meanwhile_is_not_removed(repo: UserRepository, parent: Path) -> None:
    worktree = create(repo, parent)
    commit = repo.commit("b.txt", "two\n", worktree.folder)
    with pytest.raises(Conflict, match="new commits just now"):
        remove_worktree(worktree, worktree.base)
    assert repo.git("rev-parse", worktree.branch) == commit and Path(worktree.folder, "b.txt").exists()


def test_a_worktree_that_was_moved_is_not_removed(repo: UserRepository, parent: Path, tmp_path: Path) -> None:
    worktree = create(repo, parent)
    repo.git("worktree", "move", worktree.folder, str(tmp_path / "mine"))
    with pytest.raises(Conflict, match=f"moved to {tmp_path}/mine"):
        remove_worktree(worktree, worktree.base)
    assert (tmp_path / "mine" / "a.txt").exists() and worktree.branch in repo.list_branches()


def test_links_and_read_only_folders_in_a_worktree_do_not_lead_out(
    repo: UserRepository, parent: Path, tmp_path: Path
) -> None:
    worktree, outside = create(repo, parent), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    locked = Path(worktree.folder, "locked")
    locked.mkdir()
    (locked / "out").symlink_to(outside)
    os.chmod(locked, 0o500)
    remove_worktree(worktree, worktree.base)
    assert (outside / "kept").read_text() == "kept" and not worktree.holder.exists()


def test_what_another_branch_is_checked_out_is_told(repo: UserRepository, parent: Path) -> None:
    worktree = create(repo, parent)
    repo.git("switch", "-q", "-c", "mine", folder=worktree.folder)
    assert read_checked_out(worktree) == "refs/heads/mine"
    repo.git("switch", "-q", "--detach", folder=worktree.folder)
    assert read_checked_out(worktree) == worktree.base


@pytest.mark.parametrize("name", ["a b", "../x", "-x", "x/y", "x.lock", "ü", "x" * 41, ".x"])
def test_a_name_that_is_no_name_is_refused(repo: UserRepository, parent: Path, name: str) -> None:
    with pytest.raises(BadInput, match="cannot be the name of a worktree"):
        plan_worktree(find_top_repository(repo.folder), name, parent)


def test_what_is_no_repository_or_has_no_commit_is_told(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not the top folder of a git repository"):
        find_top_repository(tmp_path)
    repo = UserRepository(tmp_path / "new", is_empty=True)
    with pytest.raises(BadInput, match="no commit yet"):
        plan_worktree(find_top_repository(repo.folder), "", parent)
    repo.commit("sub/a.txt", "one\n")
    with pytest.raises(BadInput, match="not the top folder"):
        find_top_repository(repo.folder / "sub")


def test_worktrees_are_not_put_into_the_repository_or_treadles_data(
    repo: UserRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    for parent in (repo.folder / "worktrees", repo.folder / ".git", tmp_path / "data" / "worktrees"):
        with pytest.raises(BadInput, match="cannot hold worktrees"):
            plan_worktree(find_top_repository(repo.folder), "", parent)


def test_a_git_file_that_names_another_repository_is_not_believed(repo: UserRepository, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", str(linked))
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / ".git").write_text((linked / ".git").read_text())
    with pytest.raises(BadInput):
        find_top_repository(stranger)
    (stranger / ".git").unlink()
    (stranger / ".git").symlink_to(repo.folder / ".git")
    with pytest.raises(BadInput):
        find_top_repository(stranger)
    assert find_top_repository(linked).common_dir == repo.folder / ".git"


def test_links_in_a_repository_are_not_followed(repo: UserRepository, parent: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (repo.folder / ".git" / "worktrees").symlink_to(outside)
    with pytest.raises(TreadleError):
        create(repo, parent, "fix")
    (repo.folder / ".git" / "worktrees").unlink()
    (repo.folder / ".git" / "refs" / "heads" / "treadle").symlink_to(outside)
    with pytest.raises(TreadleError):
        create(repo, parent, "fix")
    assert list(outside.iterdir()) == []


def test_a_note_that_is_no_worktree_is_none() -> None:
    worktree = Worktree("/a", "/a/.git", "treadle/x", "0" * 40, "/b/x/a")
    assert parse_worktree(None) is None and parse_worktree({"repository": "/a"}) is None
    assert parse_worktree({name: getattr(worktree, name) for name in Worktree.__struct_fields__}) == worktree
