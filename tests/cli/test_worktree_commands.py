"""`--worktree` and `treadle sessions merge`: a session on its own branch, from the command line."""

import json
import shutil
from pathlib import Path

import pytest

from tests.kit.fakes.chat import StrictChat
from tests.kit.terminal import Done, Place, call_tool, model_options
from tests.kit.user_repository import UserRepository, needs_full_sandbox
from treadle.messages import Reply
from treadle.permissions.saved_rules import save_rule

pytestmark = needs_full_sandbox

WRITE = call_tool("write_file", path="b.txt", content="two\n")
COMMIT = call_tool("shell", id="call_2", command="git add b.txt && git commit -q -m 'Write b' && git log --oneline")
DONE = Reply(text="Done.")


@pytest.fixture
def repo(place: Place) -> UserRepository:
    repo = UserRepository(place.work)
    (place.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    return repo


async def run(place: Place, *words: str, replies: tuple[Reply, ...] = (WRITE, COMMIT, DONE)) -> Done:
    async with StrictChat(list(replies)) as fake:
        return await place.quick("run", *words, *model_options(fake), "--json")


def find_folder(repo: UserRepository) -> Path:
    (folder,) = map(Path, repo.list_worktrees())
    return folder


async def test_a_run_in_a_worktree_leaves_the_users_folder_alone_until_it_is_merged(
    place: Place, repo: UserRepository
) -> None:
    (place.work / "mine.txt").write_text("mine\n")
    done = await run(place, "go", "--worktree", "fix")
    assert done.code == 0 and [call["status"] for call in done.document["calls"]] == ["ok", "ok"], done
    session = done.document["session_id"][:12]
    notes = [line["message"] for line in done.log_lines if line["type"] == "log"]
    assert any("does not have the 1 uncommitted change of" in note for note in notes)
    assert any(f"treadle sessions merge {session}" in note and "treadle/fix" in note for note in notes)
    folder = find_folder(repo)
    assert folder.is_relative_to(place.home / ".local/state/treadle/worktrees") and (folder / "b.txt").exists()
    assert repo.git("log", "-1", "--format=%an %s", "treadle/fix") == "Ada Write b"
    assert repo.git("status", "--porcelain") == "?? mine.txt" and not (place.work / "b.txt").exists()
    listed = await place.quick("sessions", "list")
    assert "work (treadle/fix)" in listed.out
    merged = await place.quick("sessions", "merge", session)
    assert merged.code == 0 and "merged treadle/fix" in merged.err, merged
    assert (place.work / "b.txt").read_text() == "two\n" and repo.list_branches() == ["main"]
    assert repo.list_worktrees() == [] and not folder.exists()
    repo.check()


async def test_the_real_program_does_it_too(place: Place, repo: UserRepository) -> None:
    async with StrictChat([WRITE, COMMIT, DONE]) as fake:
        done = await place.run("run", "--worktree", "write b.txt please", *model_options(fake), "--json")
    assert done.code == 0, done
    merged = await place.run("sessions", "merge", done.document["session_id"])
    assert merged.code == 0 and (place.work / "b.txt").read_text() == "two\n", merged
    repo.check()


async def test_a_session_goes_on_in_its_worktree_from_anywhere(place: Place, repo: UserRepository) -> None:
    first = await run(place, "go", "--worktree")
    session, folder = first.document["session_id"], find_folder(repo)
    again = call_tool("shell", command="pwd; cat b.txt")
    async with StrictChat([again, DONE]) as fake:
        done = await place.quick("run", "--session", session[:12], "go on", *model_options(fake), "--jsonl")
    (result,) = (line for line in done.lines if line["type"] == "call_finished")
    assert result["output"] == f"{folder}\ntwo"
    wrong = await place.quick("run", "--session", session[:12], "go on", "--workspace", str(place.home))
    assert wrong.code == 2 and f"works in {folder}" in wrong.err
    shutil.rmtree(folder)
    gone = await place.quick("run", "--session", session[:12], "go on", "--json")
    assert gone.code == 2 and "does not exist any more" in gone.document["error"]
    dropped = await place.quick("sessions", "merge", session, "--drop", "--yes")
    assert dropped.code == 0 and repo.list_worktrees() == [] and repo.list_branches() == ["main"], dropped


async def test_what_the_project_forbids_is_forbidden_in_its_worktrees(place: Place, repo: UserRepository) -> None:
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text('forbid = ["write_file"]\n')  # not committed
    save_rule(place.home / ".local/share/treadle", "shell", "deny", place.work)
    done = await run(place, "go", "--worktree")
    assert {call["tool"]: call["status"] for call in done.document["calls"]} == {
        "write_file": "denied",
        "shell": "denied",
    }
    session = done.document["session_id"]
    async with StrictChat([WRITE, COMMIT, DONE]) as fake:
        again = await place.quick("run", "--session", session, "go on", *model_options(fake), "--json")
    assert [call["status"] for call in again.document["calls"]] == ["denied", "denied"]


async def test_dropping_needs_a_yes_and_names_the_commit(place: Place, repo: UserRepository) -> None:
    session = (await run(place, "go", "--worktree", "fix")).document["session_id"]
    tip = repo.git("rev-parse", "treadle/fix")
    asked = await place.quick("sessions", "merge", session, "--drop")
    assert asked.code == 2 and "--yes" in asked.err and repo.list_worktrees()
    dropped = await place.quick("sessions", "merge", session, "--drop", "--yes")
    assert dropped.code == 0 and f"git branch NAME {tip}" in dropped.err
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == []
    again = await place.quick("sessions", "merge", session)
    assert again.code == 2 and "has no worktree" in again.err


async def test_a_conflict_is_told_with_exit_code_1(place: Place, repo: UserRepository) -> None:
    session = (await run(place, "go", "--worktree")).document["session_id"]
    repo.commit("b.txt", "mine\n")
    done = await place.quick("sessions", "merge", session)
    assert done.code == 1 and "b.txt" in done.err and "git merge treadle/" in done.err
    assert (place.work / "b.txt").read_text() == "mine\n" and repo.git("status", "--porcelain") == ""


async def test_deleting_a_session_keeps_its_worktree_and_says_so(place: Place, repo: UserRepository) -> None:
    session = (await run(place, "go", "--worktree", "fix")).document["session_id"]
    done = await place.quick("sessions", "delete", session, "--yes")
    folder = find_folder(repo)
    assert done.code == 0 and f"git worktree remove {folder}" in done.err and "treadle/fix" in done.err
    repo.git("worktree", "remove", str(folder))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--worktree", "a b"], "cannot be the name of a worktree"),
        (["--worktree", "--session", "x"], "not allowed with argument"),
    ],
)
async def test_a_worktree_that_cannot_be_is_refused(
    place: Place, repo: UserRepository, words: list[str], told: str
) -> None:
    done = await place.quick("run", "go", *words)
    assert done.code == 2 and told in done.err
    assert repo.list_branches() == ["main"] and repo.list_worktrees() == []


async def test_a_folder_without_a_commit_is_refused(place: Place) -> None:
    done = await place.quick("run", "go", "--worktree", "--json")
    assert done.code == 2 and "not the top folder of a git repository" in done.document["error"]
    UserRepository(place.work, is_empty=True)
    done = await place.quick("run", "go", "--worktree", "--json")
    assert done.code == 2 and "no commit yet" in done.document["error"]


async def test_a_run_that_cannot_start_leaves_no_worktree(place: Place, repo: UserRepository) -> None:
    done = await place.quick("run", "go", "--worktree", "--model", "openai:gpt-4o", "--json")
    assert done.code == 2 and repo.list_branches() == ["main"] and repo.list_worktrees() == [], done
    repo.check()


async def test_the_users_configuration_chooses_the_folder_and_a_workspace_does_not(
    place: Place, repo: UserRepository
) -> None:
    chosen = place.home / "trees"
    done = await run(place, "go", "--worktree", replies=(DONE,))
    assert done.code == 0 and not find_folder(repo).is_relative_to(chosen)
    await place.quick("sessions", "merge", done.document["session_id"], "--drop", "--yes")
    (place.work / ".treadle").mkdir()
    (place.work / ".treadle" / "config.toml").write_text(f"worktree_folder = {json.dumps(str(chosen))}\n")
    done = await run(place, "go", "--worktree", replies=(DONE,))
    assert "worktree_folder is ignored" in done.err and not find_folder(repo).is_relative_to(chosen)
    await place.quick("sessions", "merge", done.document["session_id"], "--drop", "--yes")
    (place.home / ".config" / "treadle").mkdir(parents=True)
    (place.home / ".config" / "treadle" / "config.toml").write_text('worktree_folder = "~/trees"\n')
    done = await run(place, "go", "--worktree", replies=(DONE,))
    assert find_folder(repo).is_relative_to(chosen)


async def test_a_chat_continues_the_last_session_of_the_project_in_its_worktree(
    place: Place, repo: UserRepository
) -> None:
    await run(place, "in the folder", replies=(DONE,))
    await run(place, "in the worktree", "--worktree", "fix", replies=(DONE,))
    options = ["chat", "--continue"]
    async with StrictChat([DONE]) as fake, place.screen(*options, *model_options(fake)) as screen:
        await screen.until("in the worktree")
        assert await screen.leave() == 0
        assert "treadle sessions merge" in screen.text
