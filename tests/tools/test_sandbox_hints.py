"""A command that fails because of the sandbox is told why, and what to do."""

import os
from pathlib import Path

import pytest

from tests.kit.shell import Terminal, needs_bubblewrap
from tests.kit.toolchains import SECRET, ToolHome, echo
from treadle.sandbox import backend as sandbox
from treadle.sandbox.base import Bounds, CommandResult, EndReason, Job
from treadle.sandbox.toolchains import list_languages
from treadle.tools.sandbox_hints import MAX_HINTS, HintFacts, find_hints
from treadle.tools.shell import Shell

WORKSPACE = Path("/work/project")


def hint(
    command: str,
    output: str = "",
    *,
    network: bool = False,
    writable: bool = True,
    reason: EndReason = "exited",
    refused: str = "",
    code: int | None = 1,
) -> str:
    """The hints of a command, on a machine with `foo` in ~/tools and a folder ~/data."""
    job = Job(("bash",), WORKSPACE, network=network, writable=writable, bounds=Bounds(memory_mb=64, tmp_mb=7))
    facts = HintFacts(
        job,
        (WORKSPACE,),
        find_on_host=lambda name: Path("/home/me/tools/foo") if name == "foo" else None,
        find_outside=lambda word: "~/data" if word.startswith(("~/data", "/srv/data")) else "",
    )
    result = CommandResult(code, reason, None, 0.0, 0, {refused: "No."} if refused else {})
    return " | ".join(find_hints(command, output, result, facts))


@pytest.mark.parametrize(
    ("command", "output", "expected"),
    [
        (
            "foo --version",
            "bash: line 1: foo: command not found",
            "`foo` is installed in /home/me/tools, which commands do",
        ),
        ("env foo", "env: 'foo': No such file or directory", "`foo` is installed"),
        ("ls ~/data/x", "ls: cannot access '/tmp/home/data/x': No such file or directory", '["~/data"]'),
        ("cat '/srv/data/a b'", "cat: /srv/data/a: No such file or directory", "/srv/data/a is outside the sandbox"),
        ("cat /tmp/notes", "cat: /tmp/notes: No such file or directory", "/tmp is new for each command"),
        ("touch /usr/x", "touch: cannot touch '/usr/x': Read-only file system", "write_folders=[…]"),
        ("mkdir .vscode/x", "mkdir: cannot create '.vscode/x': Read-only file system", "Commands cannot write .vscode"),
        ("cp x .idea/", "cp: cannot create '.idea/x': Permission denied", "Commands cannot write .idea"),
        ("curl x.org", "curl: (6) Could not resolve host: x.org", "There is no network in the sandbox"),
        ("pip install x", "Temporary failure in name resolution", "There is no network in the sandbox"),
        ("make && git push origin main", "fatal: unable to access", "Run a plain `git push` as a command of its own"),
        ("git push --force", "Could not resolve host: github.com", "`git push --force-with-lease` replaces commits"),
        ("git push origin :old", "Could not resolve host: github.com", "only the user deletes branches of a remote"),
        (
            "curl localhost:80",
            "curl: (7) Failed to connect to localhost port 80: Couldn't connect",
            "no process outlives",
        ),
        ("psql", 'connection to server at "localhost" (127.0.0.1) failed: Connection refused', "no process outlives"),
        ("cat ~/.ssh/id_rsa", "cat: /tmp/home/.ssh/id_rsa: No such file or directory", "do not see hidden files"),
        ("vim a", "Vim: Warning: Output is not to a terminal", "There is no terminal"),
        ("git -C sub pull", "Could not resolve host: github.com", "Run a plain `git pull` as a command of its own"),
        ("git ls-remote origin", "Could not resolve host: github.com", "Run a plain `git fetch` as a command"),
        ("sudo make install", "sudo: not found", "There is no root in the sandbox"),
        ("apt-get install jq", "E: Could not open lock file", "There is no root in the sandbox"),
        ("git commit -m x", "*** Please tell me who you are.", "git config --global user.name NAME"),
        ("pip install x", "error: externally-managed-environment", "python3 -m venv .venv"),
        ("docker ps", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "Docker cannot be reached"),
        ("vi x", "stdin: is not a tty", "There is no terminal and no input"),
        ("cp a /tmp/b", "cp: error writing '/tmp/b': No space left on device", "hold at most 7 MB"),
        ("python x.py", "MemoryError", "may use 64 MB of memory"),
        ("strace ls", "strace: ptrace(PTRACE_TRACEME): Operation not permitted", "refuses tracing"),
    ],
)
def test_a_wall_is_named_with_what_to_do(command: str, output: str, expected: str) -> None:
    assert expected in hint(command, output)
    assert hint(command, output, code=0) == "", "only when the command failed"


def test_a_host_that_was_refused_is_not_explained_twice() -> None:
    output = "x.org: Temporary failure in name resolution"
    assert "only through the proxy" in hint("ping x.org", output, network=True)
    assert hint("ping x.org", output, network=True, refused="x.org:443") == ""


def test_a_limit_says_what_to_do() -> None:
    assert hint("make -j64", reason="processes", code=None) == "Run fewer processes at once."
    assert "set timeout_s" in hint("sleep 999", reason="wall", code=None)


def test_a_command_that_was_run_read_only_is_told_so() -> None:
    assert "looked like a command that only reads" in hint("ls > x", "x: Read-only file system", writable=False)


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("false", ""),
        ("make test", "3 failed"),
        ("nosuchcommand", "bash: line 1: nosuchcommand: command not found"),
        ("make", "make: foo: No such file or directory"),
        ("cat x", "cat: x: No such file or directory\nsee ~/data/other"),
        ("cat src/x", "cat: src/x: Permission denied"),
    ],
)
def test_an_ordinary_failure_gets_no_hint(command: str, output: str) -> None:
    assert hint(command, output) == "", "and nothing outside is named that the command did not name"


def test_hints_are_few_and_found_quickly() -> None:
    output = "foo: command not found Read-only file system MemoryError Docker daemon ptrace EMFILE " * 500
    assert hint("foo; sudo git push", output).count(" | ") == MAX_HINTS - 1
    for text in ("a" * 100_000, "git " * 25_000, "/a " * 30_000, "'" * 100_000, "a.b-" * 25_000):
        hint(text, text)  # a search that is not in proportion to the text would take minutes


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolHome:
    return ToolHome(tmp_path, monkeypatch)


@needs_bubblewrap
async def test_the_shell_tells_about_real_walls(home: ToolHome) -> None:
    home.write("datasets/a.csv", "1", mode=0o644)
    home.write(".ssh/id_test", SECRET, mode=0o600)
    home.write(".ssh/bin/foo", echo("x"))
    home.set_path(".ssh/bin")
    terminal = Terminal(home.workspace)
    text = await terminal.read("cat ~/datasets/a.csv")
    assert '~/datasets/a.csv is outside the sandbox. Call shell again with read_folders=["~/datasets"]' in text
    assert "outside the sandbox" not in await terminal.read("cat ~/datasets/none.csv; cat ~/.ssh/id_test")
    assert f"`foo` is installed in {home.folder}/.ssh/bin" in await terminal.read("foo")
    assert "only over HTTP and HTTPS" in await terminal.read(
        "python3 -c 'import socket; socket.getaddrinfo(\"x.org\", 1)'"
    )
    assert "Commands cannot write .vscode" in await terminal.read("touch .vscode/x")
    assert (await terminal.read("cat nothing")).count("[") == 1, "no hint, only the exit code"


@needs_bubblewrap
async def test_with_full_access_there_are_no_hints(home: ToolHome) -> None:
    text = await Terminal(home.workspace, tier="full").read("cat /tmp/no-such-file-anywhere")
    assert "[exit code 1]" in text and text.count("[") == 1


def test_the_description_says_what_works_and_is_always_the_same(home: ToolHome) -> None:
    home.write(".cargo/bin/cargo", echo("x"))
    home.set_path(".cargo/bin")
    found = Shell(sandbox).spec.description
    assert f"Languages here: {', '.join(list_languages())}." in found and "Rust" in found
    assert "there is no network" in found and "git works, commit too" in found and "private cache" in found
    assert found == Shell(sandbox).spec.description and len(found) < 800
    allowed = Shell(sandbox, network=True, allow_hosts=("example.org",)).spec.description
    assert "the network reaches only example.org" in allowed and str(home.folder) not in found + allowed
    assert os.environ["PATH"].startswith(str(home.folder))


def test_the_last_lines_of_a_pipe_are_looked_at_even_if_it_succeeded() -> None:
    output = "bash: line 1: foo: command not found"
    assert "`foo` is installed" in hint("foo 2>&1 | tail", output, code=0)
    assert not hint("foo 2>&1 | tail", output + "\nok" * 10, code=0), "it went on"
    assert not hint("foo", output, code=0) and not hint("grep -r foo | head", output, code=0, writable=False)


def test_a_transfer_of_git_gets_no_advice_about_servers() -> None:
    assert "server" not in hint("git push d HEAD:refs/heads/x", "127.0.0.1: errno=Connection refused")


@pytest.mark.parametrize("command", ["serve &", "serve > log 2>&1 &", "nohup serve", "serve & echo started"])
def test_a_process_that_was_left_in_the_background_is_said_to_be_ended(command: str) -> None:
    assert "what still ran in the background was ended" in hint(command, code=0)


@pytest.mark.parametrize("command", ["a && b", "a & wait", "serve & curl localhost; kill %1", "make 2>&1", "a |& b"])
def test_nothing_is_said_of_other_commands(command: str) -> None:
    assert not hint(command, code=0)
