"""`apply_patch`: unified diffs over several files, all or nothing."""

import difflib
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.file_tools import FileTools, file_tools
from treadle.tools.base import ToolError
from treadle.tools.files.unified_diff import apply_hunks, read_patch
from treadle.workspace.folder import Folder, render_diff

files = file_tools

EDIT = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
MAKE = "--- /dev/null\n+++ b/new/b.txt\n@@ -0,0 +1,2 @@\n+hello\n+world\n"
DELETE = "--- a/c.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
RENAME = "diff --git a/d.txt b/e/d.txt\nsimilarity index 100%\nrename from d.txt\nrename to e/d.txt\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_files_are_edited_made_deleted_and_renamed_at_once(files: FileTools) -> None:
    files.put("a.txt", "one\ntwo\nthree\n")
    files.put("c.txt", "gone\n")
    files.put("d.txt", "moved\n").chmod(0o755)
    shown = await files.call("apply_patch", patch=EDIT + MAKE + DELETE + RENAME)
    assert shown.splitlines() == [
        "Patched:",
        "- a.txt: changed, 3 lines now",
        "- new/b.txt: made, 2 lines now",
        "- c.txt: deleted",
        "- d.txt: deleted",
        "- e/d.txt: made, 1 line now",
    ]
    assert contents(files.workspace) == {
        "a.txt": b"one\n2\nthree\n",
        "new/b.txt": b"hello\nworld\n",
        "e/d.txt": b"moved\n",
    }
    assert (files.workspace / "e/d.txt").stat().st_mode & 0o777 == 0o755
    assert files.services.content_when_kept == {
        "a.txt": b"one\ntwo\nthree\n",
        "new/b.txt": None,
        "c.txt": b"gone\n",
        "d.txt": b"moved\n",
        "e/d.txt": None,
    }


async def test_one_hunk_that_does_not_fit_changes_nothing_at_all(files: FileTools) -> None:
    files.put("a.txt", "one\ntwo\nthree\n")
    files.put("c.txt", "something else\n")
    before = contents(files.workspace)
    assert "Hunk 1 of c.txt does not fit" in await files.get_error("apply_patch", patch=EDIT + MAKE + DELETE)
    assert contents(files.workspace) == before and files.services.kept == []


async def test_a_failure_while_writing_restores_the_files(files: FileTools, monkeypatch: pytest.MonkeyPatch) -> None:
    files.put("a.txt", "one\ntwo\nthree\n")
    files.put("c.txt", "gone\n")
    before = contents(files.workspace)
    remove = Folder.remove

    def failing(self: Folder, path: str) -> None:
        if path == "c.txt":
            raise ToolError("no room left on the device")
        remove(self, path)

    monkeypatch.setattr(Folder, "remove", failing)
    assert "no room" in await files.get_error("apply_patch", patch=EDIT + MAKE + DELETE)
    assert contents(files.workspace) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"x\n" * 30 + b"one\ntwo\nthree\n" + b"x\n" * 5, b"x\n" * 30 + b"one\n2\nthree\n" + b"x\n" * 5),
        ("one\r\ntwo\r\nthree\r\n".encode("utf-16"), "one\r\n2\r\nthree\r\n".encode("utf-16")),
    ],
    ids=["line numbers may be off", "line ends and encoding stay"],
)
async def test_a_patch_is_applied_where_its_lines_are(files: FileTools, before: bytes, after: bytes) -> None:
    file = files.put("a.txt", before)
    await files.call("apply_patch", patch=EDIT)
    assert file.read_bytes() == after


@pytest.mark.parametrize(
    ("path", "content", "patch", "error"),
    [
        ("a.txt", "one\n two\nthree\n", EDIT, "does not fit"),
        ("new/b.txt", "mine", MAKE, "is there already"),
        ("b.txt", "", EDIT, "no such file to patch"),
        ("a.txt", "one\n2\nthree\n", EDIT.replace("-two", " 2").replace("+2\n", ""), "changes nothing"),
        ("c.txt", "gone\nmore\n", DELETE, "the patch leaves lines"),
        ("a.txt", "one", "diff --git a/a.txt b/a.txt\nGIT binary patch\n", "binary files"),
        *(("a.txt", "one", patch, "not a unified diff") for patch in ("", "hello", "*** Begin Patch", "--- a/x\n")),
    ],
    ids=lambda value: repr(value[:20]),
)
async def test_a_patch_that_does_not_fit_is_refused(
    files: FileTools, path: str, content: str, patch: str, error: str
) -> None:
    file = files.put(path, content)
    assert error in await files.get_error("apply_patch", patch=patch)
    assert file.read_text() == content


def test_the_policy_sees_the_files_of_a_patch(files: FileTools) -> None:
    tool = files.tools["apply_patch"]
    parsed = tool.parse(json.dumps({"patch": EDIT + RENAME}))
    assert parsed.arguments["files"] == ["a.txt", "d.txt", "e/d.txt"]
    assert tool.assess_safety(parsed.arguments) == "caution"
    hostile = tool.parse(json.dumps({"patch": EDIT + MAKE.replace("new/b.txt", "AGENTS.md")}))
    assert tool.assess_safety(hostile.arguments) == "destructive"


lines = st.lists(st.sampled_from(["a", "b", "", "-- x", "++ y", "@@", " c"]), max_size=12)
texts = st.builds(lambda some, end: "\n".join(some) + end, lines, st.sampled_from(["", "\n"]))


@given(texts, texts)
def test_a_diff_of_difflib_is_applied_exactly(old: str, new: str) -> None:
    made = render_diff(old.encode(), new.encode(), "f", limit=10**6)
    if not made:
        assert old == new
        return
    (patch,) = read_patch(made)
    assert apply_hunks(old, patch.hunks, "f") == new


@given(texts, texts)
def test_without_context_difflib_is_applied_exactly_too(old: str, new: str) -> None:
    ended = [text if not text or text.endswith("\n") else text + "\n" for text in (old, new)]
    made = "".join(difflib.unified_diff(*(text.splitlines(keepends=True) for text in ended), "a/f", "b/f", n=0))
    if made:
        assert apply_hunks(ended[0], read_patch(made)[0].hunks, "f") == ended[1]


async def test_a_diff_of_git_is_applied_exactly(files: FileTools, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    environment = {**os.environ, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.check_output(command, cwd=repository, env=environment, text=True)

    git("init", "-q")
    for folder in (repository, files.workspace):
        (folder / "a.py").write_text("".join(f"line {number}\n" for number in range(60)))
        (folder / "old name.txt").write_text("kept\n" * 20)
        (folder / "gone.txt").write_text("gone")
    git("add", "-A")
    git("commit", "-qm", "x")
    changed = (f"line {number}{'!' if number in (3, 30, 59) else ''}\n" for number in range(60))
    (repository / "a.py").write_text("".join(changed))
    (repository / "new name.txt").write_text("kept\n" * 20 + "more")
    (repository / "made.txt").write_text("no end")
    (repository / "old name.txt").unlink()
    (repository / "gone.txt").unlink()
    git("add", "-A")
    await files.call("apply_patch", patch=git("diff", "--cached", "-M"))
    want = {path: data for path, data in contents(repository).items() if not path.startswith(".git/")}
    assert contents(files.workspace) == want
