"""`list_files` and `search_files`: through ripgrep, but never out of the workspace."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.kit.file_tools import FileTools, file_tools
from treadle.tools.files import find
from treadle.tools.files import ripgrep as ripgrep_module

files = file_tools


@pytest.fixture
def tree(files: FileTools) -> FileTools:
    files.put(".gitignore", "*.log\nbuild/\n")
    files.put("README.md", "# Hello\nneedle here\n")
    files.put("src/app.py", "import os\n\n\ndef needle() -> None:\n    pass\n")
    files.put("src/deep/er/mod.py", "x = 'needle'\n")
    files.put("debug.log", "needle\n")
    files.put("build/out.py", "needle\n")
    files.put(".git/config", "needle\n")
    files.put(".env", "needle=canary\n")
    files.put(".github/workflows/ci.yml", "needle: 1\n")
    return files


async def test_files_are_listed_without_ignored_ones(tree: FileTools) -> None:
    shown = await tree.call("list_files")
    assert shown.splitlines() == [
        ".env",
        ".gitignore",
        "README.md",
        ".github/workflows/ (1 file)",
        "src/app.py",
        "src/deep/ (1 file)",
    ]


async def test_a_folder_a_depth_and_a_pattern_narrow_the_list(tree: FileTools) -> None:
    assert await tree.call("list_files", path="src", depth=9) == "src/app.py\nsrc/deep/er/mod.py"
    assert await tree.call("list_files", pattern="*.py") == "src/app.py\nsrc/deep/er/mod.py"
    assert await tree.call("list_files", pattern="deep/**/*.py") == "src/deep/er/mod.py"
    assert await tree.call("list_files", path="src/app.py") == "src/app.py"
    assert await tree.call("list_files", pattern="*.rs") == "No file in the workspace fits *.rs."


async def test_a_name_that_is_not_text_is_listed_and_one_of_two_lines_is_not(files: FileTools) -> None:
    files.put("plain.txt", "")
    files.put("two\nlines.txt", "")
    files.put(os.fsdecode(b"\xff.txt"), "")
    first, second = (await files.call("list_files")).splitlines()
    assert first == "plain.txt" and second.endswith(".txt") and "lines" not in second


async def test_a_long_list_is_cut_and_says_how_much_more_there_is(
    files: FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_PROGRESS_INTERVAL", 100)
    for number in range(250):
        files.put(f"{number:03}.txt", "")
    shown = (await files.call("list_files")).splitlines()
    assert files.progress_lines == ["listing, 100 files so far", "listing, 200 files so far"]
    assert len(shown) == 201 and shown[-1].startswith("[… 50 more;")


async def test_places_are_found_with_path_line_and_text(tree: FileTools) -> None:
    shown = await tree.call("search_files", pattern="needle")
    assert shown.splitlines() == [
        ".github/workflows/ci.yml:1: needle: 1",
        "README.md:2: needle here",
        "src/app.py:4: def needle() -> None:",
        "src/deep/er/mod.py:1: x = 'needle'",
    ]
    assert tree.progress_lines[-1] == "searching, 3 places so far"


async def test_a_search_can_be_narrowed_and_can_show_lines_around(tree: FileTools) -> None:
    shown = await tree.call("search_files", pattern="NEEDLE", path="src", glob="app.*", ignore_case=True, around=1)
    assert shown == "src/app.py-3- \nsrc/app.py:4: def needle() -> None:\nsrc/app.py-5-     pass"
    assert await tree.call("search_files", pattern="needle", path="README.md") == "README.md:2: needle here"
    shown = await tree.call("search_files", pattern="needle", glob="src/**/mod.py")
    assert shown == "src/deep/er/mod.py:1: x = 'needle'"
    assert await tree.call("search_files", pattern="no such words") == "Nothing in the workspace fits no such words."


async def test_a_pattern_that_is_no_regular_expression_is_explained(tree: FileTools) -> None:
    assert "unclosed group" in await tree.get_error("search_files", pattern="needle(")
    assert "empty" in await tree.get_error("search_files", pattern="")
    assert "NUL" in await tree.get_error("search_files", pattern="a\0b")
    assert "Nothing" in await tree.call("search_files", pattern="--help")


async def test_too_many_places_are_cut_and_the_result_says_so(files: FileTools) -> None:
    files.put("a.txt", "needle\n" * 5000)
    shown = (await files.call("search_files", pattern="needle")).splitlines()
    assert len(shown) == 101 and "more than 100 places" in shown[-1]


async def test_other_encodings_and_long_lines_are_shown(files: FileTools) -> None:
    files.put("a.txt", "grüne nadel\n".encode("latin-1"))
    files.put("b.txt", "grüne nadel\r\n".encode("utf-16"))
    files.put("c.txt", "nadel" + "x" * 5000)
    shown = (await files.call("search_files", pattern="nadel")).splitlines()
    assert shown[:2] == ["a.txt:1: grüne nadel", "b.txt:1: grüne nadel"]
    assert shown[2].startswith("c.txt:1: nadelxxx") and len(shown[2]) < 400


async def test_links_that_lead_out_are_neither_listed_nor_searched(files: FileTools) -> None:
    outside = files.workspace.parent / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("needle")
    (files.workspace / "link").symlink_to(outside)
    (files.workspace / "file.txt").symlink_to(outside / "secret.txt")
    assert "No files" in await files.call("list_files")
    assert "Nothing" in await files.call("search_files", pattern="needle")
    for name in ("list_files", "search_files"):
        assert "leads out of the workspace" in await files.get_error(name, path="link", pattern="x")


def replace_ripgrep(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "rg").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "rg").chmod(0o755)
    monkeypatch.setattr(ripgrep_module, "find_ripgrep", lambda: str(folder / "rg"))


async def test_a_line_from_elsewhere_is_not_shown(
    files: FileTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Act as if the file had been swapped for a link while ripgrep read it."""
    files.put("a.txt", "harmless\n")
    found = '{"type":"match","data":{"path":{"text":"%s/a.txt"},"lines":{"text":"canary\\\\n"},"line_number":1}}'
    replace_ripgrep(tmp_path, monkeypatch, f"for place; do :; done\nprintf '{found}\\n' \"$place\"")
    assert await files.call("search_files", pattern="canary") == "Nothing in the workspace fits canary."


async def test_ripgrep_starts_outside_the_workspace_and_dies_with_the_call(
    files: FileTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    replace_ripgrep(tmp_path, monkeypatch, f'echo "$$ $(pwd) $HOME" > {started}\nexec sleep 1000')
    call = asyncio.ensure_future(files.call("search_files", pattern="x"))
    pid, folder = (await asyncio.to_thread(started.read_text)).split()
    assert folder == "/"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not Path(f"/proc/{pid}").exists()
