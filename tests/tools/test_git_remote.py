"""`git_remote` with real servers: what is shown, what is sent, what is taken over, and how it fails."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from tests.kit.git_servers import (
    PASSWORD,
    USER,
    GitHome,
    RemoteCaller,
    read_served,
    serve_git,
    serve_silence,
    serve_web,
)
from tests.kit.shell import Terminal, needs_bubblewrap
from treadle.tools.base import ToolError, ToolInputError


@pytest.fixture
def caller(work: Path) -> RemoteCaller:
    return RemoteCaller(work)


async def test_a_push_shows_host_remote_branch_and_commit_and_sends_it(
    home: GitHome, shared: Path, port: int, work: Path, caller: RemoteCaller
) -> None:
    before = read_served(home, shared)
    commit = home.commit(work, "new.txt")
    shown = await caller.bind("push")
    assert shown["operation"] == f"push main to git://127.0.0.1:{port}/app.git"
    assert (shown["host"], shown["remote"], shown["branch"]) == (f"127.0.0.1:{port}", "origin", "main")
    assert (shown["commit"], shown["known_there"]) == (commit, before)
    result = await caller.run_bound()
    assert result.ok and f"main {before[:7]}..{commit[:7]}" in result.text, result.text
    assert read_served(home, shared) == commit
    assert home.git("rev-parse", "origin/main", at=work) == commit, "git status says that all is pushed"


async def test_a_fetch_takes_objects_branches_and_tags_over(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    commit = home.commit(tmp_path / "first", "theirs.txt")
    home.git("tag", "-a", "v1", "-m", "one", at=tmp_path / "first")
    home.git("push", "-q", str(shared / "app.git"), "main", "main:other", "v1", at=tmp_path / "first")
    result = await caller.run("fetch")
    assert result.ok, result.text
    for ref in ("origin/main", "origin/other", "v1^{commit}"):
        assert home.git("rev-parse", ref, at=work) == commit
    assert "origin/other" in result.text and "refs/tags/v1" in result.text
    home.git("fsck", "--strict", at=work)
    assert home.git("show", "origin/main:theirs.txt", at=work) == "theirs.txt"
    assert "Nothing is new" in (await caller.run("fetch")).text


async def test_a_push_shows_the_commits_that_are_new(home: GitHome, work: Path, caller: RemoteCaller) -> None:
    home.git("switch", "-qc", "side", at=work)
    one = home.commit(work, "one")
    home.git("switch", "-q", "main", at=work)
    two = home.commit(work, "two")
    home.git("merge", "-q", "-m", "Join\x1b[2J", "side", at=work)
    shown = await caller.bind("push")
    assert {line[:7] for line in shown["commits"]} == {shown["commit"][:7], one[:7], two[:7]}
    assert f"{one[:7]} Add one" in shown["commits"] and "\x1b" not in str(shown["commits"])
    assert "3 commits" in caller.tool.assess(caller.bound, work).why


async def test_a_branch_that_is_rejected_is_explained(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    theirs = home.commit(tmp_path / "first", "theirs")
    home.git("push", "-q", str(shared / "app.git"), "main", at=tmp_path / "first")
    home.commit(work, "ours")
    result = await caller.run("push")
    assert not result.ok and "Nothing was pushed" in result.text and "rejected" in result.text, result.text
    assert "Fetch them first" in result.text and "force_with_lease" in result.text
    assert read_served(home, shared) == theirs


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("head -c 3000000 /dev/zero | tr '\\0' a >&2", "It is not known whether"),
        ("kill -9 $PPID", "git reported an error"),
    ],
)
async def test_a_push_that_ends_badly_is_not_called_undone(
    home: GitHome, shared: Path, work: Path, caller: RemoteCaller, ending: str, said: str
) -> None:
    home.write_program(shared / "app.git/hooks/post-receive", ending)
    commit = home.commit(work, "new.txt")
    result = await caller.run("push")
    assert read_served(home, shared) == commit, "the server took it"
    assert not result.ok and said in result.text, result.text
    assert "Nothing was pushed" not in result.text and "Not everything" not in result.text


async def test_a_forced_push_replaces_only_the_commit_that_was_last_fetched(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    known = read_served(home, shared)
    home.git("commit", "-q", "--amend", "-m", "Other words", at=work)
    shown = await caller.bind("push", force_with_lease=True)
    assessment = caller.tool.assess(caller.bound, work)
    assert assessment.is_once_only and "replaces commits" in assessment.why
    assert shown["operation"].endswith("/app.git, replacing commits"), "a rule for exactly this push does not cover it"
    assert shown["known_there"] == known
    theirs = home.commit(tmp_path / "first", "theirs")
    home.git("push", "-q", str(shared / "app.git"), "main", at=tmp_path / "first")
    refused = await caller.run_bound()
    assert not refused.ok and read_served(home, shared) == theirs, "nobody has seen that commit here"
    await caller.run("fetch")
    assert (await caller.run("push", force_with_lease=True)).ok
    assert read_served(home, shared) == home.git("rev-parse", "HEAD", at=work)


async def test_a_branch_is_pushed_with_its_tags_and_follows_the_remote(
    home: GitHome, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    home.git("switch", "-qc", "feature/x", at=work)
    commit = home.commit(work, "x")
    home.git("tag", "v1", at=work)
    shown = await caller.bind("push", branch="HEAD", set_upstream=True, tags=True)
    assert shown["operation"].startswith("push feature/x and all tags to ")
    assert shown["tag_objects"] == [f"v1 {commit}"]
    result = await caller.run_bound()
    assert result.ok and "feature/x follows origin/feature/x now" in result.text, result.text
    assert read_served(home, shared, "feature/x") == read_served(home, shared, "v1") == commit
    assert home.git("rev-parse", "--abbrev-ref", "@{upstream}", at=work) == "origin/feature/x"
    assert home.git("status", "-sb", at=work) == "## feature/x...origin/feature/x"
    assert "follows origin/feature/x." in (await caller.run("push", set_upstream=True)).text
    home.git("tag", "v2", at=work)
    assert (await caller.run("push", branch="v2")).ok and read_served(home, shared, "v2") == commit


async def test_branches_that_are_gone_are_pruned_on_request(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    home.git("push", "-q", str(shared / "app.git"), "main:old", at=tmp_path / "first")
    await caller.run("fetch", branch="old")
    home.git("pack-refs", "--all", at=work)
    home.git("push", "-q", str(shared / "app.git"), ":old", at=tmp_path / "first")
    assert "Nothing is new" in (await caller.run("fetch")).text
    result = await caller.run("fetch", prune=True)
    assert "origin/old was deleted there" in result.text
    assert "origin/old" not in home.git("branch", "-r", at=work) and "origin/main" in home.git("branch", "-r", at=work)


async def test_a_tag_that_is_here_is_never_replaced(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    home.git("tag", "v1", at=work)
    here = home.git("rev-parse", "v1", at=work)
    theirs = home.commit(tmp_path / "first", "theirs")
    home.git("tag", "v1", at=tmp_path / "first")
    home.git("push", "-q", str(shared / "app.git"), "main", "v1", at=tmp_path / "first")
    result = await caller.run("fetch", tags=True)
    assert home.git("rev-parse", "v1", at=work) == here and "was kept as it is here" in result.text
    assert home.git("rev-parse", "origin/main", at=work) == theirs


async def test_what_changed_since_it_was_shown_is_not_run(
    home: GitHome, shared: Path, port: int, work: Path, caller: RemoteCaller
) -> None:
    before = read_served(home, shared)
    home.commit(work, "seen")
    await caller.bind("push")
    home.commit(work, "unseen")
    with pytest.raises(ToolError, match="changed since this was approved"):
        await caller.run_bound()
    await caller.bind("push")
    home.git("remote", "set-url", "origin", f"git://localhost:{port}/app.git", at=work)
    with pytest.raises(ToolError, match="changed since this was approved"):
        await caller.run_bound()
    assert read_served(home, shared) == before


@needs_bubblewrap
async def test_the_users_own_credentials_are_used_and_nobody_sees_them(
    home: GitHome, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    home.git("config", "http.receivepack", "true", at=shared / "app.git")
    helper = home.write_program(home.folder / "bin/keys", f"echo username={USER}; echo password={PASSWORD}")
    home.configure(f'[credential]\n\thelper = "{helper}"\n')
    commit = home.commit(work, "new")
    with serve_web(shared) as (web, seen):
        home.git("remote", "set-url", "origin", f"http://127.0.0.1:{web}/app.git", at=work)
        pushed = await caller.run("push")
        assert pushed.ok, pushed.text
        fetched = await caller.run("fetch")
    assert fetched.ok and read_served(home, shared) == commit
    assert any(seen), "the server wanted a password"
    assert PASSWORD not in pushed.text + fetched.text + str(caller.bound)
    shell = Terminal(work)
    said = await shell.read(f"cat {home.folder}/.gitconfig; {helper}; git config --list; env")
    assert PASSWORD not in said and "No such file" in said


async def test_a_password_in_the_users_remote_is_used_and_not_shown(
    home: GitHome, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    home.git("config", "http.receivepack", "true", at=shared / "app.git")
    commit = home.commit(work, "new")
    with serve_web(shared) as (web, _):
        home.git("remote", "set-url", "origin", f"http://{USER}:{PASSWORD}@127.0.0.1:{web}/app.git", at=work)
        assert PASSWORD not in str(await caller.bind("push"))
        result = await caller.run_bound()
        assert result.ok and PASSWORD not in result.text
    assert read_served(home, shared) == commit
    failed = await caller.run("fetch")
    assert not failed.ok and PASSWORD not in failed.text and f"127.0.0.1:{web}" in failed.text


async def test_wrong_credentials_are_explained(home: GitHome, shared: Path, work: Path, caller: RemoteCaller) -> None:
    helper = home.write_program(home.folder / "bin/keys", f"echo username={USER}; echo password=wrong-one")
    home.configure(f'[credential]\n\thelper = "{helper}"\n')
    with serve_web(shared) as (web, _):
        home.git("remote", "set-url", "origin", f"http://127.0.0.1:{web}/app.git", at=work)
        result = await caller.run("fetch")
    assert not result.ok and "wrong-one" not in result.text
    assert f"The user's credentials did not work for 127.0.0.1:{web}" in result.text


async def test_ssh_is_the_users_own(home: GitHome, shared: Path, work: Path, caller: RemoteCaller) -> None:
    ssh = home.write_program(
        home.folder / "bin/my-ssh", 'echo "$@" >> "$HOME/calls"; for last; do :; done; eval "$last"'
    )
    home.configure(f"[core]\n\tsshCommand = {ssh}\n")
    home.git("remote", "set-url", "origin", f"git@git.example.org:{shared}/app.git", at=work)
    commit = home.commit(work, "new")
    result = await caller.run("push")
    assert result.ok, result.text
    assert read_served(home, shared) == commit
    assert "git@git.example.org git-receive-pack" in (home.folder / "calls").read_text()


async def test_settings_that_the_user_has_for_this_place_hold(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    ssh = home.write_program(home.folder / "bin/my-ssh", 'for last; do :; done; eval "$last"')
    (home.folder / "work-settings").write_text(f"[core]\n\tsshCommand = {ssh}\n")
    home.configure(f'[core]\n\tsshCommand = false\n[includeIf "gitdir:{tmp_path}/wo?k/"]\n\tpath = work-settings\n')
    home.git("remote", "set-url", "origin", f"git@git.example.org:{shared}/app.git", at=work)
    result = await caller.run("fetch")
    assert result.ok, result.text


async def test_an_unknown_host_is_explained(home: GitHome, work: Path, caller: RemoteCaller) -> None:
    home.git("remote", "set-url", "origin", "git://no-such-host.invalid/app.git", at=work)
    result = await caller.run("fetch")
    assert not result.ok and "The host no-such-host.invalid was not found" in result.text


async def test_a_redirect_is_not_followed(home: GitHome, shared: Path, work: Path, caller: RemoteCaller) -> None:
    with (
        serve_web(shared, password="") as (target, reached),
        serve_web(shared, redirect=f"http://127.0.0.1:{target}") as (web, _),
    ):
        home.git("remote", "set-url", "origin", f"http://127.0.0.1:{web}/app.git", at=work)
        result = await caller.run("fetch")
        assert not result.ok and "redirects to another address" in result.text, result.text
        assert not reached
        home.git("fetch", at=work)
        assert reached, "git alone follows it"


async def test_a_call_that_hangs_can_be_cancelled_and_leaves_no_process(
    home: GitHome, work: Path, caller: RemoteCaller
) -> None:
    with serve_silence() as (silent, connected):
        home.git("remote", "set-url", "origin", f"git://127.0.0.1:{silent}/app.git", at=work)
        await caller.bind("fetch")
        running = asyncio.create_task(caller.run_bound())
        await asyncio.to_thread(connected.wait, 60)
        assert find_processes(f"127.0.0.1:{silent}") or find_processes("fetch --no-write-fetch-head")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not find_processes("fetch --no-write-fetch-head")
    kept = Path(os.environ["TREADLE_DATA_DIR"], "sandbox/git")
    assert kept.is_dir() and list(kept.iterdir()) == []


def find_processes(words: str) -> list[str]:
    """Find the processes of this test's data folder whose command has these words."""
    found: list[str] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if words in command and os.environ["TREADLE_DATA_DIR"].lstrip("/") in command:
                found.append(command)
    return found


async def test_what_cannot_be_done_is_said_before_anybody_is_asked(
    home: GitHome, tmp_path: Path, work: Path, caller: RemoteCaller
) -> None:
    for arguments, error in [
        ({"remote": "nowhere"}, "The remotes are: origin"),
        ({"branch": "nothing"}, "no branch and no tag"),
        ({"branch": "--all"}, "no branch and no tag"),
        ({"tags": True}, "there are 0 tags"),
        ({"folder": "../first"}, "not a folder of the workspace"),
    ]:
        with pytest.raises(ToolInputError, match=error):
            await caller.bind("push", **arguments)
    home.git("config", "remote.pushDefault", f"https://{USER}:{PASSWORD}@git.example.org/x", at=work)
    with pytest.raises(ToolInputError, match=r"no remote 'https://git\.example\.org/x'"):
        await caller.bind("push")
    home.git("checkout", "-q", "--detach", at=work)
    with pytest.raises(ToolInputError, match="no branch is checked out"):
        await caller.bind("push")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToolInputError, match="not in a git repository"):
        await RemoteCaller(tmp_path / "empty").bind("fetch")
    home.git("config", "--add", "remote.origin.pushurl", "https://a.example/x", at=work)
    home.git("config", "--add", "remote.origin.pushurl", "https://b.example/x", at=work)
    with pytest.raises(ToolInputError, match="several addresses"):
        await caller.bind("push", branch="main", remote="origin")


async def test_a_remote_that_is_a_folder_of_the_user_is_used(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, caller: RemoteCaller
) -> None:
    home.git("remote", "set-url", "origin", str(shared / "app.git"), at=work)
    commit = home.commit(work, "new")
    shown = await caller.bind("push")
    assert shown["host"] == "this machine"
    assert (await caller.run_bound()).ok and read_served(home, shared) == commit
    inside = work / "inner.git"
    home.git("init", "-q", "--bare", str(inside), at=work)
    home.git("remote", "set-url", "origin", str(inside), at=work)
    with pytest.raises(ToolInputError, match="in the workspace"):
        await caller.bind("push")


async def test_a_linked_worktree_and_a_nested_repository_are_found(
    home: GitHome, tmp_path: Path, shared: Path, work: Path, port: int
) -> None:
    home.git("worktree", "add", "-q", "-b", "linked", str(tmp_path / "linked"), at=work)
    commit = home.commit(tmp_path / "linked", "new")
    assert (await RemoteCaller(tmp_path / "linked").run("push", remote="origin")).ok
    assert read_served(home, shared, "linked") == commit
    outer = RemoteCaller(tmp_path / "outer")
    home.git("clone", "-q", f"git://127.0.0.1:{port}/app.git", str(tmp_path / "outer/sub/app"), at=home.folder)
    home.git("switch", "-qc", "nested", at=tmp_path / "outer/sub/app")
    shown = await outer.bind("push", folder="sub/app")
    assert shown["folder"] == "sub/app"
    assert (await outer.run_bound()).ok and read_served(home, shared, "nested")


async def test_a_file_of_the_workspace_cannot_name_another_repository(
    home: GitHome, tmp_path: Path, work: Path
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / ".git").write_text(f"gitdir: {work}/.git\n")
    with pytest.raises(ToolInputError, match="belongs to another folder"):
        await RemoteCaller(trap).bind("push")
    (trap / ".git").unlink()
    (trap / ".git").symlink_to(work / ".git")
    with pytest.raises(ToolInputError, match="link"):
        await RemoteCaller(trap).bind("push")
    (trap / ".git").unlink()
    home.git("init", "-q", str(trap), at=tmp_path)
    (trap / ".git/commondir").write_text(f"{work}/.git\n")
    with pytest.raises(ToolInputError, match="takes its settings from another folder"):
        await RemoteCaller(trap).bind("push")


@needs_bubblewrap
async def test_a_clone_has_clean_settings_and_is_checked_out(
    home: GitHome, tmp_path: Path, shared: Path, port: int
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    caller = RemoteCaller(workspace)
    home.git("push", "-q", str(shared / "app.git"), "main:other", at=tmp_path / "first")
    shown = await caller.bind("clone", url=f"git://127.0.0.1:{port}/app.git")
    assert shown["operation"] == f"clone git://127.0.0.1:{port}/app.git into app"
    assert shown["host"] == f"127.0.0.1:{port}"
    result = await caller.run_bound()
    assert result.ok and "main is checked out" in result.text, result.text
    app = workspace / "app"
    assert (app / "README").read_text() == "README\n"
    assert home.git("status", "-sb", at=app) == "## main...origin/main"
    assert home.git("rev-parse", "origin/other", "origin/HEAD", at=app).split() == [read_served(home, shared)] * 2
    home.git("fsck", "--strict", at=app)
    assert not (app / ".git/hooks").exists()
    inside = RemoteCaller(workspace)
    assert "Nothing is new" in (await inside.run("fetch", folder="app")).text


@needs_bubblewrap
async def test_a_branch_and_a_depth_can_be_chosen_for_a_clone(
    home: GitHome, tmp_path: Path, shared: Path, port: int
) -> None:
    commit = home.commit(tmp_path / "first", "second")
    home.git("push", "-q", str(shared / "app.git"), "main:other", at=tmp_path / "first")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    caller = RemoteCaller(workspace)
    url = f"git://127.0.0.1:{port}/app.git"
    assert (await caller.run("clone", url=url, folder="a/b", branch="other", depth=1)).ok
    assert (
        home.git("log", "--format=%H %D", at=workspace / "a/b")
        == f"{commit} grafted, HEAD -> other, origin/other, origin/HEAD"
    )
    home.commit(tmp_path / "first", "third")
    home.git("push", "-q", str(shared / "app.git"), "main:other", at=tmp_path / "first")
    pulled = await caller.run("pull", folder="a/b")
    assert pulled.ok and (workspace / "a/b/third").exists(), pulled.text
    home.git("fsck", at=workspace / "a/b")
    with pytest.raises(ToolError, match="no branch 'missing'"):
        await caller.run("clone", url=url, folder="c", branch="missing")
    assert not (workspace / "c").exists()


async def test_an_empty_repository_can_be_cloned_into_an_empty_workspace(
    home: GitHome, tmp_path: Path, shared: Path, port: int
) -> None:
    home.git("init", "-q", "--bare", str(shared / "empty.git"), at=tmp_path)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    result = await RemoteCaller(workspace).run("clone", url=f"git://127.0.0.1:{port}/empty.git", folder=".")
    assert result.ok and "no commit yet" in result.text, result.text
    assert home.git("status", "-sb", at=workspace).startswith("## No commits yet on main")


@pytest.mark.parametrize(
    ("folder", "error"),
    [
        ("../out", "leaves the workspace"),
        ("/tmp/out", "outside the workspace"),
        (".git/x", "never write in .git"),
        ("full", "not an empty folder"),
        ("link/x", "link is no folder"),
    ],
)
async def test_a_clone_goes_into_a_new_folder_of_the_workspace_only(tmp_path: Path, folder: str, error: str) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "full/of").mkdir(parents=True)
    (workspace / "link").symlink_to(tmp_path)
    with serve_git(tmp_path) as port, pytest.raises(ToolInputError, match=error):
        await RemoteCaller(workspace).run("clone", url=f"git://127.0.0.1:{port}/app.git", folder=folder)
    assert not (tmp_path / "x").exists() and not Path("/tmp/out").exists()


@needs_bubblewrap
async def test_a_pull_moves_the_branch_forward_and_leaves_a_merge_to_the_model(
    home: GitHome, tmp_path: Path, shared: Path, work: Path
) -> None:
    caller = RemoteCaller(work)
    commit = home.commit(tmp_path / "first", "theirs")
    home.git("push", "-q", str(shared / "app.git"), "main", at=tmp_path / "first")
    result = await caller.run("pull")
    assert result.ok and home.git("rev-parse", "HEAD", at=work) == commit, result.text
    ours = home.commit(work, "ours")
    home.commit(tmp_path / "first", "again")
    home.git("push", "-q", str(shared / "app.git"), "main", at=tmp_path / "first")
    result = await caller.run("pull")
    assert not result.ok and "git merge origin/main" in result.text, result.text
    assert home.git("rev-parse", "HEAD", at=work) == ours
    rebased = await caller.run("pull", rebase=True)
    assert rebased.ok and home.git("log", "--format=%s", at=work).split("\n")[:2] == ["Add ours", "Add again"]
