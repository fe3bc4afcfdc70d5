"""The shell tool on the real sandbox: streamed output, the current folder, bounds, and nothing left behind."""

import asyncio
import gc
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sandbox import until
from tests.kit.sessions import advance_loop_clock
from tests.kit.shell import Terminal, needs_bubblewrap, needs_sandbox
from treadle.events import Tier
from treadle.history.content_store import ContentStore
from treadle.sandbox import backend as sandbox
from treadle.sandbox.base import Bounds, CommandResult, Job, OnOutput, ProbeResult, SandboxUnavailable
from treadle.tools.base import FOLDER_NOTE, ToolContext, ToolError, ToolResult
from treadle.tools.shell import Shell, _Output

pytestmark = needs_sandbox
BOTH: list[Tier] = ["sandbox", "full"]
LONG = f"4321.{os.getpid()}"
"""Seconds to sleep that no test of another process sleeps."""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "src" / "deep").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("tier", BOTH)
async def test_the_output_of_a_command_is_its_result_and_is_streamed(workspace: Path, tier: Tier) -> None:
    terminal = Terminal(workspace, tier=tier)
    assert await terminal.read("echo out; echo err >&2; printf 'no newline'") == "out\nerr\nno newline"
    assert "".join(terminal.output) == "out\nerr\nno newline"


@pytest.mark.parametrize(
    ("command", "text", "ok"),
    [
        ("true", "[no output]", True),
        ("false", "[exit code 1]", False),
        ("echo partly; exit 3", "partly\n[exit code 3]", False),
        ("kill -9 $$", "[ended by signal 9]", False),
        ("nosuchcommand", "bash: line 1: nosuchcommand: command not found\n[exit code 127]", False),
        ("cat; echo end of input", "end of input", True),
        ("set -e; false; echo never", "[exit code 1]", False),
        ("set -- a b; echo $# $1", "2 a", True),
        ("echo $# [$*]", "0 []", True),
        ("exec echo replaced", "replaced", True),
        ("trap 'echo mine' EXIT; echo body", "body\nmine", True),
        ("exec > /dev/null; echo unheard", "[no output]", True),
        ("printf '\\0nul\\0'", "\0nul\0", True),
        ("if true; then\n  echo 'two\nlines'\nfi", "two\nlines", True),
        ("cat <<'EOF'\n$HOME\nEOF", "$HOME", True),
    ],
)
async def test_the_result_says_how_a_command_ended(workspace: Path, command: str, text: str, ok: bool) -> None:
    result = await Terminal(workspace).run(command)
    assert (result.text, result.ok) == (text, ok)


@pytest.mark.parametrize("tier", BOTH)
async def test_the_folder_of_one_command_is_where_the_next_one_starts(workspace: Path, tier: Tier) -> None:
    terminal = Terminal(workspace, tier=tier)
    assert await terminal.read("cd src/deep") == "[now in src/deep]"
    assert await terminal.read("pwd") == str(workspace / "src" / "deep")
    assert await terminal.read("cd ..; false") == "[now in src]\n[exit code 1]"
    assert terminal.folder_note == "src"
    assert await terminal.read("(cd deep); pwd") == str(workspace / "src")
    assert await terminal.read("cd ..") == "[now in the workspace]"
    assert terminal.folder_note == ""


async def test_a_folder_outside_the_workspace_is_left_again(workspace: Path) -> None:
    terminal = Terminal(workspace)
    await terminal.read("cd src")
    assert "/tmp is outside the workspace" in await terminal.read("cd /tmp && pwd")
    assert await terminal.read("pwd") == str(workspace)


@pytest.mark.parametrize("folder", ["..", "../other", "/", "src/../..", "nowhere", "src/../src", "door", "out"])
async def test_a_folder_that_is_gone_outside_or_a_link_is_refused_and_nothing_runs(
    workspace: Path, folder: str
) -> None:
    (workspace.parent / "other").mkdir()
    (workspace / "door").symlink_to(".")
    (workspace / "out").symlink_to("../../")
    terminal = Terminal(workspace, tier="full")
    terminal.services.notes[FOLDER_NOTE] = folder
    with pytest.raises(ToolError, match=f"Not run: the folder {folder}, in which the last command ended, is gone"):
        await terminal.read("touch here")
    assert not (workspace / "here").exists() and await terminal.read("pwd") == str(workspace)


async def start_endless_command(terminal: Terminal, **arguments: Any) -> asyncio.Task[ToolResult]:
    """Start a command with two processes, and wait for its output and for both of them."""
    task = asyncio.create_task(terminal.run(f"echo begun; (setsid sleep {LONG} &); sleep {LONG}", **arguments))
    await until(lambda: terminal.has_output.is_set() and len(list_processes(LONG)) == 2)
    return task


@pytest.mark.parametrize("tier", BOTH)
async def test_a_command_that_takes_too_long_is_stopped_with_all_it_started(workspace: Path, tier: Tier) -> None:
    task = await start_endless_command(Terminal(workspace, tier=tier), timeout_s=300)
    advance_loop_clock(300)
    result = await task
    assert result.text.startswith("begun\n[stopped after 300 s, with all it had started. It may have had effects]")
    assert result.timed_out and not result.ok and not list_processes(LONG)


@pytest.mark.parametrize("tier", BOTH)
async def test_cancelling_returns_when_the_command_is_gone(workspace: Path, tier: Tier) -> None:
    task = await start_endless_command(Terminal(workspace, tier=tier))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list_processes(LONG)


def list_processes(word: str) -> list[str]:
    """List the processes that have the word among their arguments."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [entry.name] if word.encode() in (entry / "cmdline").read_bytes().split(b"\0") else []
    return found


async def test_too_much_output_stops_the_command(workspace: Path) -> None:
    tool = Shell(sandbox, bounds=Bounds(output_bytes=10_000))
    result = await Terminal(workspace, tool).run("yes")
    assert not result.ok and result.text.endswith("[stopped: it wrote more than 10000 bytes of output]")


@needs_bubblewrap
async def test_a_command_cannot_write_outside_the_workspace_or_into_git(workspace: Path) -> None:
    terminal = Terminal(workspace)
    text = await terminal.read("echo x > /etc/x; mkdir .git; echo x > .git/config; echo done > inside; ls -a")
    assert "inside" in text and (workspace / "inside").read_text() == "done\n"
    assert not Path("/etc/x").exists() and not (workspace / ".git").exists()


async def test_the_tool_names_its_sandbox_level(workspace: Path) -> None:
    assert Shell(sandbox).describe_sandbox("sandbox") == sandbox.probe().level
    assert Shell(sandbox).describe_sandbox("read-only") == sandbox.probe().level
    assert Shell(sandbox).describe_sandbox("full") == "none"


def test_with_full_access_deleting_in_tmp_is_destructive() -> None:
    shell = Shell(sandbox)
    parsed = shell.parse('{"command": "rm -rf /tmp/x"}')
    found = {tier: shell.assess(parsed, Path("/work"), tier).safety for tier in BOTH}
    assert found == {"sandbox": "caution", "full": "destructive"}


class NoSandbox:
    """A machine on which no sandbox works."""

    def probe(self) -> ProbeResult:
        return ProbeResult("none", "nothing works", "install it")

    async def run_in_sandbox(self, job: Job, on_output: OnOutput) -> CommandResult:
        raise SandboxUnavailable("The command was not run. nothing works install it")

    async def run_on_host(self, job: Job, on_output: OnOutput) -> CommandResult:
        raise AssertionError("ran without a sandbox")


@pytest.mark.parametrize("tier", ["read-only", "sandbox"])
async def test_without_a_sandbox_a_command_is_refused_and_the_error_says_what_to_install(
    workspace: Path, tier: Tier
) -> None:
    with pytest.raises(ToolError, match=r"not run.*install it"):
        await Terminal(workspace, Shell(NoSandbox()), tier).run("echo x")


async def test_old_contents_of_changed_files_are_kept(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a.txt").write_text("old")
    kept = ContentStore(tmp_path / "kept")
    terminal = Terminal(workspace, Shell(sandbox, kept))
    await terminal.read("cat a.txt")
    assert not (tmp_path / "kept").exists()
    await terminal.read("echo new > a.txt; echo b > b.txt")
    (old, made) = terminal.services.kept
    assert (old.path, kept.get(old.before), made.path, made.before) == ("a.txt", b"old", "b.txt", "")
    kept.close()


@needs_bubblewrap
async def test_the_result_names_changed_instruction_files(workspace: Path, tmp_path: Path) -> None:
    kept = ContentStore(tmp_path / "kept")
    terminal = Terminal(workspace, Shell(sandbox, kept))
    code = "import os; os.mkdir('.github'); open('.github/ci.yml', 'w'); open('AGENTS.md', 'w'); open('a.md', 'w')"
    text = await terminal.read(f'python3 -c "{code}"')
    assert "it changed .github/ci.yml, AGENTS.md, which tells agents" in text and "a.md" not in text, text
    assert "it changed" not in await terminal.read("echo x > b.md")
    kept.close()


async def test_a_reading_command_cannot_write_even_through_a_hook(workspace: Path) -> None:
    hidden = workspace / "hook"
    hidden.write_text("#!/bin/sh\ntouch src/written\n")
    hidden.chmod(0o755)
    code = "git init -q . && git add -A && cp hook .git/hooks/post-index-change && touch -d yesterday hook"
    await Terminal(workspace, tier="full").run(code)
    terminal = Terminal(workspace)
    await terminal.run("git status")
    assert not (workspace / "src/written").exists()
    await terminal.run("A=1 git status")  # the same, but not known to read only
    assert (workspace / "src/written").exists()


async def test_the_result_says_what_git_did_not_keep(workspace: Path) -> None:
    terminal = Terminal(workspace)
    text = await terminal.read(
        "git init -q sub && git -C sub config alias.x '!y' && mkdir a && echo gitdir: /x > a/.git"
    )
    assert "[git in sub: " in text and "[git in a: a/.git was renamed to .git.not-kept" in text, text
    assert "git" not in await terminal.read("cd sub && git status --short")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_output_may_be_cut_anywhere(size: int) -> None:
    shown: list[str] = []
    output = _Output(ToolContext("s", "c", Path("/"), output=shown.append))
    data = "é€😀 \0 begun\0".encode() + output._mark[:9] + b"x" + output._mark + b"/some/where\0" + "näch".encode()
    for start in range(0, len(data), size):
        output.feed(data[start : start + size])
    assert output.finish() == "/some/where"
    assert output.text == "".join(shown) == "é€😀 \0 begun\0" + output._mark[:9].decode() + "xnäch"


def test_broken_utf8_becomes_replacement_characters() -> None:
    output = _Output(ToolContext("s", "c", Path("/")))
    output.feed(b"a\xff\xe2\x82")
    assert output.finish() == "" and output.text == "a\ufffd\ufffd"


def count_children_and_descriptors() -> tuple[int, int]:
    gc.collect()
    return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()), len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("calls", [60, pytest.param(1000, marks=pytest.mark.soak)])
async def test_many_calls_leave_no_process_no_descriptor_and_no_temporary_file(
    workspace: Path, tmp_path: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    terminals = [Terminal(workspace), Terminal(workspace, tier="full")]
    commands = ["true", "echo x | cat", f"(sleep {LONG} &); true", "false", "nosuchcommand"]
    for terminal in terminals:
        await terminal.read("true")
    before = count_children_and_descriptors()
    limit = asyncio.Semaphore(4)

    async def one(number: int) -> None:
        async with limit:
            await terminals[number % 2].run(commands[number % len(commands)])

    await asyncio.gather(*(one(number) for number in range(calls)))
    assert not list_processes(LONG)
    assert os.listdir(workspace) == ["src"] and os.listdir(tmp_path / "tmp") == []
    # A thread of an earlier test may hold something for a moment.
    await until(lambda: all(now <= then for now, then in zip(count_children_and_descriptors(), before, strict=True)))
