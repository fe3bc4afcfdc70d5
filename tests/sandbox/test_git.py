"""Git in the sandbox: ordinary work is done in a private copy and arrives in the real repository."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kit.cut_off import KILLED, do_until
from tests.kit.git_places import LAYOUTS, GitPlace, user_settings
from tests.kit.sandbox import inside, make_deep_folder, needs_bubblewrap, until
from treadle.git.git_folder import remove_tree
from treadle.sandbox.base import Bounds, GitReport
from treadle.sandbox.new_repositories import RepositoryCleaner
from treadle.sandbox.workspace_scan import scan_workspace

pytestmark = needs_bubblewrap

VERBS = r"""
set -e
cd "$TREE"
git status --short; git log --oneline; git diff; git branch; git remote -v
test -z "$(git status --porcelain)"
start=$(git branch --show-current)
echo new > new; git add new; git commit -qm "Add new"
echo more >> new; git commit -q --amend -am "Add new, amended"
git branch side; git switch -q side; echo side > side.txt; git add side.txt; git commit -qm "Add side"
git switch -q "$start"; echo main > main.txt; git add main.txt; git commit -qm "Add main"
git merge -q side -m "Merge side"; git log --oneline --graph | head -3
git switch -q -c topic2 HEAD~1; echo topic > topic.txt; git add topic.txt; git commit -qm "Add topic"
git rebase -q "$start"; git switch -q "$start"
git cherry-pick topic2; git tag v1; git tag -a v2 -m "two"
echo stashed >> file0; git stash; git diff --exit-code; git stash pop -q; git diff --stat; git checkout -q file0
git reset -q --soft HEAD~1; git diff --cached --name-only; git commit -qm "Add topic again"
git reset -q HEAD~1; git add topic.txt; git commit -qm "Add topic, third"
git rm -q file1; git mv file2 moved; git commit -qm "Move"
echo kept > kept; git add kept; git restore --staged kept; rm kept
echo stash > file0; git stash push -q -m later
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitPlace]:
    place = GitPlace(tmp_path)
    with user_settings(place, monkeypatch):
        yield place


def rejected(reports: tuple[GitReport, ...]) -> list[str]:
    return [sentence for report in reports for sentence in report.rejected]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_every_ordinary_verb_works_and_arrives(layout: str, place: GitPlace) -> None:
    tree = place.make_layout(layout)
    settings = place.host(
        "cat $(git rev-parse --git-common-dir)/config; ls $(git rev-parse --git-common-dir)/hooks", tree
    )
    ran = await place.inside(VERBS.replace("$TREE", str(tree)))
    assert ran.ended.code == 0, ran
    assert rejected(ran.ended.git) == []
    subjects = place.host("git log --format=%s --first-parent -5", tree).splitlines()
    assert subjects == ["Move", "Add topic, third", "Merge side", "Add main", "Add new, amended"]
    assert place.host("git log --format='%an <%ae> %cn <%ce>' -1", tree) == (
        "Ann Author <ann@example.org> Ann Author <ann@example.org>\n"
    )
    assert place.host("git status --porcelain", tree) == ""
    assert place.host("git tag; git branch --format='%(refname:short)'", tree).split()[:2] == ["v1", "v2"]
    assert "later" in place.host("git stash list", tree)
    assert "Move" in place.host("git reflog -1", tree) or "reset" in place.host("git reflog -1", tree)
    assert "error" not in place.host("git fsck --strict 2>&1", tree)
    after = place.host("cat $(git rev-parse --git-common-dir)/config; ls $(git rev-parse --git-common-dir)/hooks", tree)
    assert after == settings
    report = next(
        report for report in ran.ended.git if report.repository == str(tree.relative_to(place.workspace)).strip(".")
    )
    assert {"refs/tags/v1", "refs/heads/side"} <= {change.ref for change in report.changes}


async def test_a_conflict_is_resolved_over_several_commands(place: GitPlace) -> None:
    place.make_layout("plain")
    await place.inside("git switch -qc other; echo other > file1; git commit -qam other; git switch -q main")
    ran = await place.inside("echo mine > file1; git commit -qam mine; git merge other; git status | grep -q unmerged")
    assert "CONFLICT" in ran.output
    assert "UU file1" in place.host("git status --porcelain")
    ran = await place.inside(
        "git merge --abort && git rebase other; echo both > file1; git add file1; git rebase --continue"
    )
    assert ran.ended.code == 0 and rejected(ran.ended.git) == [], ran
    assert place.host("git log --format=%s -2").split() == ["mine", "other"]
    assert place.host("git status --porcelain") == ""


@pytest.mark.parametrize("verb", ["git status", "git log --oneline", "git diff HEAD~1", "git show", "git branch -a"])
async def test_a_command_that_only_reads_sees_the_repository_and_changes_nothing(verb: str, place: GitPlace) -> None:
    place.make_layout("clone")
    before = place.host("git log --all --oneline")
    ran = await place.inside(f"{verb} && git commit -q --allow-empty -m no; git branch no", writable=False)
    assert "fatal: not a git" not in ran.output and ran.ended.git == (), ran
    assert place.host("git log --all --oneline") == before


async def test_name_and_settings_come_from_includes_and_from_xdg(place: GitPlace) -> None:
    place.make_layout("plain")
    (place.home / ".gitconfig").write_text(f'[includeIf "gitdir:{place.workspace}/"]\n\tpath = work.inc\n')
    (place.home / "work.inc").write_text("[user]\n\tname = Work Ann\n\temail = work@example.org\n")
    ran = await place.inside("git commit -q --allow-empty -m work && git log -1 --format='%an %ae'")
    assert ran.output == "Work Ann work@example.org\n"
    (place.home / ".gitconfig").unlink()
    (place.home / ".config/git").mkdir(parents=True)
    (place.home / ".config/git/config").write_text("[user]\n\tname = Xdg Ann\n\temail = xdg@example.org\n")
    (place.home / ".config/git/ignore").write_text("ignored\n")
    ran = await place.inside(
        "touch ignored; git status --short; git commit -q --allow-empty -m x; git log -1 --format=%an"
    )
    assert ran.output == "Xdg Ann\n"
    (place.home / ".config/git/config").unlink()
    ran = await place.inside("git commit -q --allow-empty -m nobody")
    assert "tell me who you are" in ran.output, ran


async def test_a_commit_without_a_message_is_refused_and_nothing_waits_for_an_editor(place: GitPlace) -> None:
    place.make_layout("plain")
    ran = await place.inside("echo x >> file0; git commit -a; git log | cat; git rebase -i HEAD~1 && echo rebased")
    assert "empty commit message" in ran.output, ran


async def test_a_new_repository_in_an_empty_workspace(place: GitPlace) -> None:
    place.workspace.mkdir()
    ran = await place.inside("git init -q . && echo a > a && git add a && git commit -qm one")
    assert ran.ended.code == 0 and rejected(ran.ended.git) == [], ran
    assert place.host("git log --format='%an %s'; git status --porcelain") == "Ann Author one\n"
    ran = await place.inside("echo b > b && git add b && git commit -qm two && git log --oneline | wc -l")
    assert ran.output.split() == ["2"] and rejected(ran.ended.git) == [], ran
    assert place.host("git log --format=%s") == "two\none\n"


async def test_a_workspace_without_a_repository_stays_one(place: GitPlace) -> None:
    place.workspace.mkdir()
    ran = await place.inside("touch a; git status; ls -A .git")
    assert "not a git repository" in ran.output and ran.ended.git == (), ran
    assert os.listdir(place.workspace) == ["a"]


async def test_a_new_repository_in_a_subfolder_can_be_worked_in(place: GitPlace) -> None:
    place.make_layout("plain")
    ran = await place.inside("git init -q sub && cd sub && echo 1 > one && git add one && git commit -qm one")
    assert ran.ended.code == 0, ran
    assert (
        place.host("git log --format='%an %s'; git status --porcelain", place.workspace / "sub") == "Ann Author one\n"
    )
    ran = await place.inside(
        "cd sub && echo 2 > two && git add two && git commit -qm two; cd .. && git add sub && git commit -qm sub"
    )
    assert ran.ended.code == 0 and rejected(ran.ended.git) == [], ran
    assert place.host("git log --format=%s", place.workspace / "sub") == "two\none\n"
    assert place.host("git status --porcelain; git log -1 --format=%s") == "sub\n"


async def test_a_clone_made_by_a_command_is_kept(place: GitPlace) -> None:
    place.make_layout("plain")
    ran = await place.inside(
        "git clone -q file://$PWD copy && cd copy && git log --oneline | wc -l && "
        "git clone -q --bare file://$PWD ../bare.git"
    )
    assert ran.output.split() == ["2"], ran
    assert place.host("git log --format=%s; git status --porcelain", place.workspace / "copy") == "second\nfirst\n"
    assert place.host("git log --format=%s", place.workspace / "bare.git") == "second\nfirst\n"


async def test_parallel_commands_and_the_user_all_keep_their_commits(place: GitPlace) -> None:
    place.make_layout("plain")
    wait = "touch began$N; while ! test -e go; do sleep 0.01; done"
    code = f"{wait}; git switch -qc branch$N && echo $N > own$N && git add own$N && git commit -qm from$N"
    running = [asyncio.ensure_future(place.inside(code.replace("$N", str(number)))) for number in range(3)]
    await until(lambda: all((place.workspace / f"began{number}").exists() for number in range(3)))
    place.host("git commit -q --allow-empty -m users")
    (place.workspace / "go").touch()
    await asyncio.gather(*running)
    log = place.host("git log --all --format=%s").split()
    assert {"from0", "from1", "from2", "users"} <= set(log), log
    assert "users" in place.host("git log main --format=%s")
    assert place.host("git fsck 2>&1; ls").count("error") == 0


async def test_the_users_own_commit_on_the_same_branch_survives(place: GitPlace) -> None:
    place.make_layout("plain")
    code = "touch began; while ! test -e go; do sleep 0.01; done; git commit -q --allow-empty -m commands"
    running = asyncio.ensure_future(place.inside(code))
    await until((place.workspace / "began").exists)
    place.host("git commit -q --allow-empty -m users")
    (place.workspace / "go").touch()
    ran = await running
    assert place.host("git log -1 --format=%s") == "users\n"
    assert any("main" in sentence for sentence in rejected(ran.ended.git)), ran


async def test_what_was_committed_before_a_cancellation_or_a_limit_is_kept(place: GitPlace) -> None:
    place.make_layout("plain")
    running = asyncio.ensure_future(place.inside("git commit -q --allow-empty -m before && touch began && sleep 300"))
    await until((place.workspace / "began").exists)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert place.host("git log -1 --format=%s") == "before\n"
    job = replace(place.job("git commit -q --allow-empty -m timed && sleep 300"), bounds=Bounds(wall_s=2))
    assert (await inside(job)).ended.reason == "wall"
    assert place.host("git log -1 --format=%s") == "timed\n"
    assert os.listdir(place.folder / "data/sandbox/git") == []


async def test_the_private_copy_counts_as_disk(place: GitPlace) -> None:
    place.make_layout("plain")
    job = replace(place.job("head -c 60M /dev/urandom > .git/junk; sleep 60"), bounds=Bounds(disk_mb=20))
    assert (await inside(job)).ended.reason == "disk"


async def test_folders_of_killed_processes_are_removed(place: GitPlace) -> None:
    place.make_layout("plain")
    leftovers = place.folder / "data/sandbox/git"
    deep = leftovers / "0123/a"
    deep.mkdir(parents=True)
    (leftovers / "0123.lock").touch()
    await place.inside("true")
    assert os.listdir(leftovers) == []


async def test_a_home_behind_a_link_serves_for_private_copies(place: GitPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.folder / "real").mkdir()
    (place.folder / "linked").symlink_to(place.folder / "real")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(place.folder / "linked/data"))
    place.make_layout("plain")
    ran = await place.inside("echo 1 > new && git add new && git commit -qm third")
    assert not ran.ended.code, ran
    assert place.host("git log -1 --format=%s") == "third\n"


def test_whatever_a_command_left_in_a_folder_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    make_deep_folder(folder, 3000)
    (folder / "closed").mkdir()
    (folder / "closed/file").touch()
    (folder / "closed").chmod(0)
    (folder / "link").symlink_to(tmp_path)
    remove_tree(folder)
    assert os.listdir(tmp_path) == []


async def test_a_worktree_and_its_repository_work_in_one_workspace(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host("git worktree add -q -b topic trees/one")
    ran = await place.inside(
        "echo trees > .gitignore; git add .gitignore; git commit -qm ignore; cd trees/one && echo 1 > 1 && git add 1 "
        "&& git commit -qm topic"
    )
    assert ran.ended.code == 0 and rejected(ran.ended.git) == [], ran
    assert place.host("git log -1 --format=%s; git log -1 --format=%s topic") == "ignore\ntopic\n"
    assert place.host("git status --porcelain", place.workspace / "trees/one") == ""


async def test_hooks_of_the_repository_run_inside(place: GitPlace) -> None:
    place.make_layout("plain")
    hook = place.workspace / ".git/hooks/pre-commit"
    hook.write_text('#!/bin/sh\nhostname > hooked; ls "$HOME/.gitconfig" >> hooked 2>&1; exit 0\n')
    hook.chmod(0o755)
    await place.inside("git commit -q --allow-empty -m x")
    assert (place.workspace / "hooked").read_text().startswith("sandbox\n")


async def test_a_read_only_repository_says_why(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host("git config core.repositoryformatversion 1 && git config extensions.refstorage strange")
    ran = await place.inside("git log -1; true")
    assert any("does not know its format" in sentence for sentence in rejected(ran.ended.git)), ran


async def test_objects_that_are_borrowed_from_elsewhere_need_a_setting(place: GitPlace) -> None:
    origin = place.make_repository(place.folder / "origin")
    place.host(f"git clone -q -s {origin} {place.workspace}", place.folder)
    ran = await place.inside("git log -1 --format=%s 2>&1")
    assert any("[sandbox]" in sentence and str(origin) in sentence for sentence in rejected(ran.ended.git)), ran
    ran = await inside(place.job("git log -1 --format=%s", read_only=(origin / ".git/objects",)))
    assert ran.output == "second\n" and ran.ended.git == (), ran


async def test_the_parents_of_repositories_cannot_be_moved_and_stay_writable(place: GitPlace) -> None:
    place.make_layout("submodule")
    ran = await place.inside("mv libs old; mv libs/sub other; touch libs/x libs/sub/y; ls")
    assert ran.output.count("busy") == 2, ran
    assert (place.workspace / "libs/x").exists() and (place.workspace / "libs/sub/y").exists()


async def test_nothing_is_left_of_placeholders_for_submodules(place: GitPlace) -> None:
    place.make_layout("submodule")
    place.host("git submodule deinit -f libs/sub && rm -rf libs")
    seen = place.host("git status --porcelain")
    running = asyncio.ensure_future(place.inside("touch began; while ! test -e go; do sleep 0.01; done; git status"))
    await until((place.workspace / "began").exists)
    assert "libs/sub" not in place.host("git status --porcelain | grep -v began || true")
    (place.workspace / "go").touch()
    ran = await running
    assert ran.ended.code == 0 and "libs" not in os.listdir(place.workspace), ran
    os.unlink(place.workspace / "began")
    os.unlink(place.workspace / "go")
    assert place.host("git status --porcelain") == seen


async def test_a_killed_processs_repository_is_cleaned_by_the_next_command(place: GitPlace) -> None:
    place.make_layout("plain")
    running = asyncio.ensure_future(
        place.inside("git init -q sub; git -C sub config core.fsmonitor x; touch began; sleep 300")
    )
    await until((place.workspace / "began").exists)
    group = next(
        Path(folder)
        for folder in (f"/run/user/{os.getuid()}/treadle", f"/tmp/treadle-{os.getuid()}")
        if os.path.isdir(folder)
    )
    from treadle.sandbox.guarded_paths import build_lock_name

    lock = group / f"git-{build_lock_name(place.workspace)}"
    data = lock.read_bytes()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not lock.exists()
    shutil.rmtree(place.workspace / "sub")
    place.host("git init -q sub && git -C sub config core.fsmonitor x")
    lock.write_bytes(data)
    ran = await place.inside("true")
    assert "fsmonitor" not in (place.workspace / "sub/.git/config").read_text(), ran


async def test_a_repository_whose_name_is_no_text_is_cleaned_and_the_next_command_runs(place: GitPlace) -> None:
    place.make_layout("plain")
    ran = await place.inside("git init -q \"$(printf 'a\\377b')\"; git init -q \"$(printf 'n\\nl')\"")
    assert {report.repository for report in ran.ended.git} == {"a\udcffb", "n\nl"}
    assert (await place.inside("echo next")).output == "next\n"


@pytest.mark.parametrize("folder", ["", "sub/"])
async def test_a_hidden_file_seems_unchanged_to_git_and_is_never_committed_empty(folder: str, place: GitPlace) -> None:
    place.make_layout("plain")
    place.host(f"mkdir -p sub; echo K=1 > {folder}.env; git add .; git commit -qm env; echo K=2 > {folder}.env")
    place.host(f"echo K=3 > {folder}.env.local; echo K=4 > '{folder}.env.[x] '")
    code = """
    git status --porcelain; echo 1 > file1; git commit -qam one; echo 2 > new; git add -A; git commit -qm two
    echo 3 > file1; git stash -qu; git status --porcelain; git stash pop -q; git add .; git reset -q --hard
    git switch -qc side; git merge -q main; git checkout -q main -- .; git show --stat HEAD
    """
    ran = await place.inside(code)
    assert "env" not in ran.output and rejected(ran.ended.git) == [], ran
    assert place.host("git log --all --format=%s -- '*.env*'") == "env\n"
    states = place.host("git status --porcelain -uall").splitlines()
    assert states == [f" M {folder}.env", f'?? "{folder}.env.[x] "', f"?? {folder}.env.local"], states
    assert place.host(f"cat {folder}.env {folder}.env.local '{folder}.env.[x] '") == "K=2\nK=3\nK=4\n"
    assert not place.host("git ls-files -t").count("S "), "the marks of the copy are not taken over"


async def test_a_branch_with_another_hidden_file_cannot_be_switched_to_and_nothing_is_lost(place: GitPlace) -> None:
    place.make_layout("plain")
    place.host("echo K=1 > .env; git add .; git commit -qm env; git switch -qc side; echo K=2 > .env")
    place.host("git commit -qam side; git switch -q main; echo K=3 > .env")
    ran = await place.inside("git switch side; echo $?; git merge side; git reset --hard side; git status --porcelain")
    assert "error" in ran.output, ran
    assert place.host("cat .env") == "K=3\n"
    assert place.host("git log -1 --format=%s") == "env\n" and place.host("git fsck --strict") is not None


async def test_a_command_runs_after_a_process_was_killed_while_it_cleaned_a_repository(place: GitPlace) -> None:
    place.make_repository(place.workspace)
    cleaner = RepositoryCleaner(place.workspace, scan_workspace(place.workspace))
    place.make_repository(place.workspace / "sub")

    def clean() -> None:
        cleaner.clean()

    assert do_until(clean, 1) == KILLED and not (place.workspace / "sub/.git").exists()
    cleaner.close()
    ran = await place.inside("git -C sub log --format=%s")
    assert ran.output == "second\nfirst\n" and sorted(os.listdir(place.workspace / "sub"))[0] == ".git"
    assert not list(place.workspace.glob("sub/.treadle-*"))
