"""What is protected in a workspace, how placeholders come and go, and which folders are refused."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.kit.sandbox import EVERYWHERE, Place, Run, collect, inside, needs_bubblewrap, until
from treadle.errors import BadInput
from treadle.log.open_log import open_log
from treadle.permissions.paths import is_env_file
from treadle.sandbox import arguments, bubblewrap, plan
from treadle.sandbox.base import Job, SandboxUnavailable
from treadle.sandbox.guarded_paths import (
    find_guarded_paths,
    hold_protected_paths,
    resolve_sandbox_workspace,
    resolve_working_folder,
)


@pytest.mark.parametrize(
    "folder",
    [*("/", "/usr", "/etc", "/etc/ssl", "/proc/self", "/tmp", "/home", "/dev", "~", "~/.."), "link", "missing", "file"],
)
def test_a_folder_that_is_no_project_is_refused(folder: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="Nothing was run"):
        resolve_sandbox_workspace(Job(("true",), tmp_path / Path(folder).expanduser()))


def test_a_refused_link_is_named_by_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(BadInput, match="/etc cannot be a workspace"):
        resolve_sandbox_workspace(Job(("true",), tmp_path / "link"))


@pytest.mark.parametrize("cwd", ["..", "sub/../..", "/etc", "missing", "link", "file"])
def test_a_working_folder_elsewhere_is_refused(cwd: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(BadInput, match="is not a folder in the workspace"):
        resolve_working_folder(Job(("true",), tmp_path, cwd=cwd), tmp_path)
    assert resolve_working_folder(Job(("true",), tmp_path, cwd="sub"), tmp_path) == tmp_path / "sub"


def test_names_of_env_files() -> None:
    assert all(map(is_env_file, (".env", ".ENV", ".envrc", ".env.local", ".env.production")))
    assert not any(map(is_env_file, (".env.example", ".env.sample", ".envrc.py", "env", "x.env", ".environment")))


def test_env_files_are_found_where_a_command_would_see_them(tmp_path: Path) -> None:
    for folder in ("a/b", "node_modules/x", ".git"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / ".env").touch()
    (tmp_path / ".env").symlink_to("/etc/hostname")
    (tmp_path / ".env.local").symlink_to("secrets")
    (tmp_path / "secrets").touch()
    assert sorted(find_guarded_paths(tmp_path).env_files) == [
        *(tmp_path / name for name in ("a/b/.env", "node_modules/x/.env", "secrets"))
    ]


def test_env_files_are_found_in_a_workspace_below_a_protected_name(tmp_path: Path) -> None:
    workspace = tmp_path / ".treadle/trees/one"
    workspace.mkdir(parents=True)
    (workspace / ".env").touch()
    assert find_guarded_paths(workspace).env_files == (workspace / ".env",)


async def test_a_log_that_is_open_in_the_workspace_is_found_and_no_other_database(tmp_path: Path) -> None:
    log = open_log(tmp_path / "sub/words.db")
    theirs = sqlite3.connect(tmp_path / "theirs.db")
    theirs.execute("PRAGMA journal_mode = WAL")
    theirs.execute("CREATE TABLE t (a)")
    found = {str(one.relative_to(tmp_path)) for one in find_guarded_paths(tmp_path).own_files}
    assert found == {"sub/words.db", "sub/words.db-wal", "sub/words.db-shm"} and (tmp_path / "theirs.db-wal").exists()
    theirs.close()
    await log.close()


@pytest.mark.parametrize("run", EVERYWHERE[:2])
async def test_our_own_rules_and_settings_are_hidden_in_a_workspace_that_holds_them(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.workspace / "conf/treadle").mkdir(parents=True)
    (place.workspace / "data").mkdir()
    for file in ("conf/treadle/config.toml", "data/rules.json", "mine.toml"):
        (place.workspace / file).write_text("the-secret")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place.workspace / "conf"))
    monkeypatch.setenv("TREADLE_DATA_DIR", str(place.workspace / "data"))
    monkeypatch.setenv("TREADLE_CONFIG", str(place.workspace / "mine.toml"))
    code = "cat conf/treadle/config.toml data/rules.json mine.toml; for f in conf/treadle/x data/rules.json mine.toml"
    ran = await collect(run, place.shell(f"{code}; do echo spoiled > $f; done; mv data x; mv conf x; true"))
    assert "the-secret" not in ran.output, ran
    for file in ("mine.toml", "data/rules.json"):
        assert (place.workspace / file).read_text() == "the-secret"
    assert os.listdir(place.workspace / "conf/treadle") == ["config.toml"]


def test_the_folder_of_our_own_data_is_no_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path))
    with pytest.raises(BadInput, match="cannot be a workspace"):
        resolve_sandbox_workspace(Job(("true",), tmp_path))


def test_repositories_further_down_are_found_under_any_name(tmp_path: Path) -> None:
    for folder in ("a/.git/hooks", "b/c/.treadle", "store/objects", ".git/modules/sub/objects", "node_modules/x/.git"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("store/HEAD", ".git/HEAD", ".git/modules/sub/HEAD", "tree/HEAD", "tree/commondir", "notes/HEAD"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.git").write_text("gitdir: ../.git/modules/sub")
    for name, target in (("in", "../kept"), ("up", ".."), ("out", "/etc"), ("lost", "../nothing")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".git").symlink_to(target)
    (tmp_path / "kept").mkdir()
    found = {str(one.relative_to(tmp_path)) for one in find_guarded_paths(tmp_path).repositories}
    assert found == {"a/.git", "b/c/.treadle", "store", "sub/.git", "tree", "kept", "node_modules/x/.git"}


def test_a_placeholder_stays_until_the_last_one_leaves(tmp_path: Path) -> None:
    with hold_protected_paths(tmp_path) as first:
        assert sorted(first) == [".git", ".treadle"] and (tmp_path / ".git").is_dir()
        with hold_protected_paths(tmp_path):
            pass
        assert (tmp_path / ".git").is_dir() and (tmp_path / ".treadle").is_dir()
    assert os.listdir(tmp_path) == []


def test_what_was_there_before_or_was_filled_meanwhile_stays(tmp_path: Path) -> None:
    (tmp_path / ".treadle").mkdir()
    with hold_protected_paths(tmp_path):
        (tmp_path / ".git/config").touch()
    assert sorted(os.listdir(tmp_path)) == [".git", ".treadle"]


def test_a_repository_that_is_a_file_is_protected_as_one(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for file in (tmp_path / ".git", tmp_path / "sub/.git"):
        file.write_text("gitdir: elsewhere")
    with hold_protected_paths(tmp_path, [tmp_path / "sub/.git"]) as opened:
        for name in (".git", "sub/.git"):
            assert os.path.samestat(os.fstat(opened[name]), (tmp_path / name).stat())
    assert sorted(os.listdir(tmp_path)) == [".git", "sub"] and os.listdir(tmp_path / "sub") == [".git"]


@needs_bubblewrap
@pytest.mark.parametrize("name", [".git", ".treadle"])
async def test_a_linked_repository_is_not_followed_but_refused(name: str, place: Place) -> None:
    (place.workspace / name).symlink_to(place.outside)
    with pytest.raises(BadInput, match=f"{name} is a link"):
        await inside(place.shell(f"cat {name}/key"))
    assert sorted(os.listdir(place.workspace)) == [name]


@needs_bubblewrap
async def test_an_older_bubblewrap_protects_as_well_and_is_given_no_descriptor_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bubblewrap, arguments):
        monkeypatch.setattr(module, "can_bind_descriptors", lambda: False)
    (place.workspace / ".git").mkdir()
    (place.workspace / ".git/config").touch()
    ran = await inside(place.shell("touch .git/x; touch .treadle/x; ls /proc/$$/fd"))
    assert ran.output.count("Read-only") == 2 and ran.output.split()[-3:] == ["0", "1", "2"], ran


@needs_bubblewrap
async def test_a_repository_exchanged_while_a_command_starts_shows_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = place.workspace / "sub/.git", place.outside / ".git"
    for folder in (mine, theirs):
        folder.mkdir(parents=True)
    (theirs / "key").write_text("the-secret")

    def too_late(planned: plan.BubblewrapPlan) -> list[str]:
        """What is mounted when the way to it was a link for a moment, and is a folder again."""
        words = build(planned)
        words[words.index(str(mine))] = str(theirs)
        return words

    build = bubblewrap.build_arguments
    for module in (bubblewrap, arguments):
        monkeypatch.setattr(module, "can_bind_descriptors", lambda: False)
    monkeypatch.setattr(bubblewrap, "build_arguments", too_late)
    with pytest.raises(SandboxUnavailable, match="exchanged meanwhile"):
        await inside(place.shell("cat sub/.git/key > sub/read"))
    assert os.listdir(place.workspace / "sub") == [".git"]


def test_a_repository_moved_while_a_command_starts_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(BadInput, match="Run it again"), hold_protected_paths(tmp_path, [tmp_path / "sub/.git"]):
        pass
    assert os.listdir(tmp_path) == ["sub"]


@pytest.mark.parametrize("run", EVERYWHERE[:2])
async def test_a_command_that_may_only_read_changes_nothing_in_the_workspace(run: Run, place: Place) -> None:
    (place.workspace / "sub").mkdir()
    (place.workspace / "sub/file").write_text("whole")
    code = "echo x > sub/new; echo x > sub/file; rm -f sub/file; cat sub/file; echo free > $TMPDIR/x && cat $TMPDIR/x"
    ran = await collect(run, replace(place.shell(code), writable=False))
    assert ran.output.endswith("wholefree\n"), ran
    assert os.listdir(place.workspace / "sub") == ["file"]
    await collect(run, place.shell("rm -f sub/file"))
    assert os.listdir(place.workspace / "sub") == []


@needs_bubblewrap
async def test_one_command_ending_does_not_open_the_repository_of_another(place: Place) -> None:
    code = (
        "touch began; while ! test -e go; do sleep 0.01; done; mkdir -p .treadle; echo x > .treadle/x && echo WRITTEN; "
        "echo x > .git/commondir"
    )
    slow = asyncio.ensure_future(inside(place.shell(code)))
    await until((place.workspace / "began").exists)
    for _ in range(3):
        await inside(place.shell("true"))
    (place.workspace / "go").touch()
    ran = await slow
    assert "WRITTEN" not in ran.output and "Read-only" in ran.output, ran
    assert sorted(os.listdir(place.workspace)) == ["began", "go"]


@needs_bubblewrap
async def test_a_command_in_another_process_counts_as_well(place: Place) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom treadle.sandbox.guarded_paths import hold_protected_paths\n"
        "with hold_protected_paths(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, place.workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and await process.stdout.readline() == b"in\n"
    await inside(replace(place.shell("true"), writable=False))
    assert sorted(os.listdir(place.workspace)) == [".git", ".treadle"]
    await process.communicate(b"")
    assert os.listdir(place.workspace) == []


@needs_bubblewrap
async def test_more_than_can_be_protected_is_refused_in_words(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "_MAX_MOUNTS", 2)
    for name in (".env", ".env.a", ".env.b"):
        (place.workspace / name).touch()
    with pytest.raises(BadInput, match=r"3 env files.*no more than 2 can be protected"):
        await inside(place.shell("true"))
    (place.workspace / ".env").unlink()
    assert (await inside(place.shell("true"))).ended.code == 0
