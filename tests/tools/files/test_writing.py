"""`write_file`: atomic, kept before it is changed, and never where it must not write."""

import json
import os
import stat
from pathlib import Path

import pytest

from tests.kit.file_tools import FileTools, file_tools
from treadle.events import Grant, KeptFile
from treadle.log.open_log import open_log
from treadle.permissions.policy import decide_call

files = file_tools


async def test_a_new_file_is_made_with_its_folders(files: FileTools) -> None:
    assert await files.call("write_file", path="a/b/c.txt", content="hi\n") == "Made a/b/c.txt (3 bytes, 1 line)."
    assert (files.workspace / "a/b/c.txt").read_text() == "hi\n"
    assert files.services.kept == [KeptFile("a/b/c.txt")]


PATCH = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new\n"
CHANGES = pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_file", {"path": "a.txt", "content": "new\n"}),
        ("edit_file", {"path": "a.txt", "old": "old", "new": "new"}),
        ("apply_patch", {"patch": PATCH}),
    ],
    ids=["write_file", "edit_file", "apply_patch"],
)


@CHANGES
async def test_the_old_content_is_kept_and_recorded_before_the_file_changes(
    files: FileTools, tool: str, arguments: dict[str, str]
) -> None:
    file = files.put("a.txt", "old\n")
    await files.call(tool, **arguments)
    (kept,) = files.services.kept
    assert files.kept.get(kept.before) == b"old\n" and file.read_text() == "new\n"
    assert files.services.content_when_kept == {"a.txt": b"old\n"}


@CHANGES
async def test_a_file_changed_since_it_was_read_is_not_changed(
    files: FileTools, tool: str, arguments: dict[str, str]
) -> None:
    files.put("a.txt", "one\n")
    await files.call("read_file", path="a.txt")
    file = files.put("a.txt", "old\n")
    assert "was changed since you last read it" in await files.get_error(tool, **arguments)
    assert file.read_text() == "old\n"
    await files.call("read_file", path="a.txt")
    await files.call(tool, **arguments)
    assert file.read_text() == "new\n"
    await files.call("edit_file", path="a.txt", old="new", new="newer")  # our own change needs no second reading


@CHANGES
async def test_a_file_larger_than_the_limit_is_not_written(
    files: FileTools, tool: str, arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = files.put("a.txt", "old\n")
    monkeypatch.setattr("treadle.tools.files.change.MAX_FILE_BYTES", 3)
    assert "a.txt would have 4 bytes, and 3 is the most" in await files.get_error(tool, **arguments)
    assert file.read_text() == "old\n" and files.services.kept == []


async def test_the_mode_of_a_file_survives(files: FileTools) -> None:
    files.put("run.sh", "old").chmod(0o750)
    await files.call("write_file", path="run.sh", content="new")
    assert stat.S_IMODE((files.workspace / "run.sh").stat().st_mode) == 0o750


async def test_writing_what_is_there_already_changes_nothing(files: FileTools) -> None:
    before = files.put("a.txt", "same").stat()
    assert "already" in await files.call("write_file", path="a.txt", content="same")
    assert (files.workspace / "a.txt").stat().st_ino == before.st_ino and files.services.kept == []


async def test_nothing_is_written_through_a_link(files: FileTools) -> None:
    outside = files.workspace.parent / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    (files.workspace / "file").symlink_to(outside / "victim")
    (files.workspace / "folder").symlink_to(outside)
    for path in ("file", "folder/victim", "folder/new"):
        assert "symbolic link" in await files.get_error("write_file", path=path, content="x")
    assert (outside / "victim").read_text() == "untouched" and os.listdir(outside) == ["victim"]


async def test_a_hard_link_to_something_else_is_cut_and_not_written_through(files: FileTools) -> None:
    other = files.workspace.parent / "other"
    other.write_text("untouched")
    os.link(other, files.workspace / "a.txt")
    await files.call("write_file", path="a.txt", content="x")
    assert other.read_text() == "untouched"


@pytest.mark.parametrize("path", [".git/hooks/post-checkout", ".treadle/config.toml", "sub/.git/config", ".GIT/config"])
async def test_the_folders_that_run_code_later_are_never_written(files: FileTools, path: str) -> None:
    assert "never write" in await files.get_error("write_file", path=path, content="x")
    assert os.listdir(files.workspace) == []


async def test_the_log_of_a_session_in_the_workspace_is_never_written(files: FileTools) -> None:
    log = open_log(files.workspace / "words.db")
    for path in ("words.db", "words.db-wal", "words.db-journal"):
        assert "log of treadle's sessions" in await files.get_error("write_file", path=path, content="x")
    patch = "diff --git a/words.db b/old.db\nrename from words.db\nrename to old.db\n"
    assert "log of treadle's sessions" in await files.get_error("apply_patch", patch=patch)
    await files.call("write_file", path="other.db", content="x")
    await log.close()


async def test_what_belongs_to_treadle_itself_is_neither_shown_nor_changed(
    files: FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put("conf/treadle/config.toml", "approve = []")
    files.put("conf/other.toml", "free = true")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(files.workspace / "conf"))
    for name, more in (("read_file", {}), ("write_file", {"content": "x"}), ("edit_file", {"old": "[]", "new": "x"})):
        assert "belongs to treadle" in await files.get_error(name, path="conf/treadle/config.toml", **more)
    assert "approve" not in await files.call("search_files", pattern="approve|free")
    await files.call("write_file", path="conf/other.toml", content="x")


async def test_a_repository_by_another_name_is_never_written(files: FileTools) -> None:
    for folder in ("store/objects", "trees/one"):
        (files.workspace / folder).mkdir(parents=True)
    for file in ("store/HEAD", "trees/one/HEAD", "trees/one/commondir", "HEAD"):
        (files.workspace / file).write_text("x")
    for path in ("store/config", "store/hooks/post-merge", "trees/one/config", "store/HEAD"):
        assert "is a git repository" in await files.get_error("write_file", path=path, content="x")
    await files.call("write_file", path="trees/two.txt", content="x")


async def test_a_failed_write_leaves_no_file_behind(files: FileTools) -> None:
    files.put("folder/a.txt", "x")
    assert "folder" in await files.get_error("write_file", path="folder", content="x")
    assert "not a folder" in await files.get_error("write_file", path="folder/a.txt/b", content="x")
    assert sorted(path.name for path in files.workspace.rglob("*")) == ["a.txt", "folder"]


async def test_a_granted_secret_is_written_but_never_kept(files: FileTools) -> None:
    granting = FileTools(files.workspace.parent, granted=[".env"])
    granting.put(".env", "KEY=canary")
    await granting.call("write_file", path=".env", content="KEY=new")
    assert granting.services.kept == [] and granting.services.left_out == [".env"]
    granting.kept.close()
    assert b"canary" not in (granting.kept.folder / "kept.db").read_bytes()


@pytest.mark.parametrize(
    ("path", "safety"),
    [
        ("src/app.py", "caution"),
        ("AGENTS.md", "destructive"),
        ("sub/claude.md", "destructive"),
        ("x/../SKILL.md", "destructive"),
        (".mcp.json", "destructive"),
        (".vscode/tasks.json", "destructive"),
        (".github/workflows/ci.yml", "destructive"),
        ("../outside", "destructive"),
    ],
)
def test_instruction_files_and_what_leaves_the_workspace_are_asked_for(
    files: FileTools, path: str, safety: str
) -> None:
    for name in ("write_file", "edit_file"):
        assert files.tools[name].assess_safety({"path": path}) == safety


def test_an_absolute_path_is_assessed_by_where_the_workspace_lies(files: FileTools) -> None:
    tool = files.tools["write_file"]
    for path, safety, why in (
        (f"{files.workspace}/a.txt", "caution", ""),
        (f"{files.workspace}/../a.txt", "destructive", "outside"),
        (f"{files.workspace}-twin/a.txt", "destructive", "outside"),
        ("/etc/motd", "destructive", "outside"),
        (f"{files.workspace}/AGENTS.md", "destructive", "what to do"),
    ):
        parsed = tool.parse(json.dumps({"path": path, "content": ""}))
        assessment = tool.assess(parsed, files.workspace)
        assert assessment.safety == safety and why in assessment.why


def test_what_shows_the_contents_of_files_is_private(files: FileTools) -> None:
    private = {name for name, tool in files.tools.items() if "private" in tool.list_traits("sandbox")}
    assert private == {"read_file", "write_file", "edit_file", "apply_patch", "search_files"}


@pytest.mark.parametrize(
    ("path", "action"),
    [
        (".bashrc", "ask"),
        (".config/autostart/x.desktop", "ask"),
        ("bin/ls", "ask"),
        ("x/../.profile", "ask"),
        ("notes.txt", "allow"),
        ("project/.env.example", "allow"),
    ],
)
def test_what_the_users_shell_or_desktop_would_run_is_asked_for(
    files: FileTools, monkeypatch: pytest.MonkeyPatch, path: str, action: str
) -> None:
    def decide(home: Path, path: str) -> str:
        monkeypatch.setenv("HOME", str(home))
        tool = files.tools["write_file"]
        parsed = tool.parse(json.dumps({"path": path, "content": "x"}))
        return decide_call([Grant()], [], tool.name, parsed.arguments, tool.assess(parsed, files.workspace)).action

    assert decide(files.workspace, path) == action
    assert decide(files.workspace / "anna", f"anna/{path}") == action
    assert decide(files.workspace / "elsewhere", path) == "allow"
