"""`write_file` and what all changes share: old contents are kept, and protected files are never written."""

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.file_tools import FileTools, file_tools
from treadle.events import Grant, KeptFile
from treadle.log.open_log import open_log
from treadle.permissions.policy import decide_call
from treadle.tools.base import ParsedArguments

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


async def test_writing_the_same_content_changes_nothing(files: FileTools) -> None:
    before = files.put("a.txt", "same").stat()
    assert "already" in await files.call("write_file", path="a.txt", content="same")
    assert (files.workspace / "a.txt").stat().st_ino == before.st_ino and files.services.kept == []


async def test_a_hard_link_to_something_else_is_cut_and_not_written_through(files: FileTools) -> None:
    other = files.workspace.parent / "other"
    other.write_text("untouched")
    os.link(other, files.workspace / "a.txt")
    await files.call("write_file", path="a.txt", content="x")
    assert other.read_text() == "untouched"


PROTECTED = {
    "never write": ".git/hooks/post-checkout .treadle/config.toml sub/.git/config .GIT/config",
    "log of treadle's sessions": "words.db words.db-wal words.db-journal",
    "belongs to treadle": "conf/treadle/config.toml",
    "leaves the workspace": "../out.txt",
    "is outside the workspace": "/etc/motd",
    "may hold secrets": ".env",
    "is a git repository": "store/config store/hooks/post-merge trees/one/config store/HEAD",
    "symbolic link": "link folder/outside.txt folder/new",
    "is a folder": "conf",
    "not a folder": "conf/other.toml/b",
}


@pytest.fixture
async def protected(files: FileTools, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FileTools]:
    """A workspace with a session's log, treadle's settings, two repositories, and links to the outside."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(files.workspace / "conf"))
    for path in ("conf/treadle/config.toml", "conf/other.toml", "store/objects/x", "store/HEAD"):
        files.put(path, "approve")
    for path in ("trees/one/HEAD", "trees/one/commondir", "HEAD", "../outside/outside.txt"):
        files.put(path, "untouched")
    (files.workspace / "link").symlink_to("../outside/outside.txt")
    (files.workspace / "folder").symlink_to("../outside")
    log = open_log(files.workspace / "words.db")
    yield files
    await log.close()


@pytest.mark.parametrize(
    ("error", "path"), [(error, path) for error, paths in PROTECTED.items() for path in paths.split()]
)
async def test_protected_files_are_never_written(protected: FileTools, error: str, path: str) -> None:
    before = sorted(protected.workspace.parent.rglob("*"))
    patch = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    for tool, arguments in (("write_file", {"path": path, "content": "x"}), ("apply_patch", {"patch": patch})):
        assert error in await protected.get_error(tool, **arguments)
    assert sorted(protected.workspace.parent.rglob("*")) == before
    assert (protected.workspace.parent / "outside/outside.txt").read_text() == "untouched"


async def test_files_beside_protected_ones_are_written(protected: FileTools) -> None:
    for path in ("other.db", "conf/other.toml", "trees/two.txt"):
        await protected.call("write_file", path=path, content="x")


async def test_treadles_own_files_and_logs_are_not_read_edited_or_renamed(protected: FileTools) -> None:
    own = "conf/treadle/config.toml"
    assert "belongs to treadle" in await protected.get_error("read_file", path=own)
    assert "belongs to treadle" in await protected.get_error("edit_file", path=own, old="approve", new="x")
    shown = await protected.call("search_files", pattern="approve")
    assert "conf/other.toml" in shown and own not in shown
    rename = "diff --git a/words.db b/old.db\nrename from words.db\nrename to old.db\n"
    assert "log of treadle's sessions" in await protected.get_error("apply_patch", patch=rename)


async def test_a_granted_secret_is_read_and_written_but_never_kept(files: FileTools) -> None:
    granting = FileTools(files.workspace.parent, granted=[".env"])
    granting.put(".env", "KEY=canary")
    assert "KEY=canary" in await granting.call("read_file", path=".env")
    assert "may hold secrets" in await granting.get_error("read_file", path=".env.test")
    await granting.call("write_file", path=".env", content="KEY=new")
    assert granting.services.kept == [] and granting.services.left_out == [".env"]
    granting.kept.close()
    assert b"canary" not in (granting.kept.folder / "kept.db").read_bytes()


@pytest.mark.parametrize(
    ("why", "paths"),
    [
        ("what to do", "AGENTS.md sub/claude.md x/../SKILL.md .mcp.json .github/workflows/ci.yml @/AGENTS.md"),
        ("editor", ".vscode/tasks.json"),
        ("outside", "../outside @/../a.txt @-twin/a.txt /etc/motd"),
    ],
)
def test_instruction_files_and_paths_out_of_the_workspace_are_destructive(
    files: FileTools, why: str, paths: str
) -> None:
    for path in paths.replace("@", str(files.workspace)).split():
        for tool in (files.tools["write_file"], files.tools["edit_file"]):
            assessment = tool.assess(ParsedArguments({"path": path}, {}), files.workspace)
            assert assessment.safety == "destructive" and why in assessment.why, path


def test_other_files_of_the_workspace_need_caution(files: FileTools) -> None:
    for path in ("src/app.py", f"{files.workspace}/a.txt"):
        parsed = ParsedArguments({"path": path}, {})
        assert files.tools["write_file"].assess(parsed, files.workspace).safety == "caution"
    safeties = [files.tools["edit_file"].assess_safety({"path": path}) for path in ("src/app.py", "AGENTS.md", "../x")]
    assert safeties == ["caution", "destructive", "destructive"], "also without a workspace"


def test_what_file_tools_show_is_private_and_somebody_elses_text(files: FileTools) -> None:
    assert {tool.list_traits("sandbox") for tool in files.tools.values()} == {frozenset(("workspace", "private"))}


@pytest.mark.parametrize(
    ("action", "path"),
    [
        *(("ask", path) for path in (".bashrc", ".config/autostart/x.desktop", "bin/ls", "x/../.profile")),
        *(("allow", path) for path in ("notes.txt", "project/.env.example")),
    ],
)
def test_a_file_that_the_users_shell_or_desktop_runs_is_asked_for(
    files: FileTools, monkeypatch: pytest.MonkeyPatch, path: str, action: str
) -> None:
    def decide(home: Path, path: str) -> str:
        monkeypatch.setenv("HOME", str(home))
        tool, parsed = files.tools["write_file"], ParsedArguments({"path": path}, {})
        return decide_call([Grant()], [], tool.name, parsed.arguments, tool.assess(parsed, files.workspace)).action

    assert decide(files.workspace, path) == action
    assert decide(files.workspace / "anna", f"anna/{path}") == action
    assert decide(files.workspace / "elsewhere", path) == "allow"
