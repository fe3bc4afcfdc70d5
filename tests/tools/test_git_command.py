"""Which shell commands become calls of `git_remote`, and which stay commands."""

import pytest

from treadle.messages import Json
from treadle.tools.git_command import read_git_command

UNDERSTOOD: list[tuple[str, dict[str, Json]]] = [
    ("git push", {"action": "push"}),
    ("  git   push\n", {"action": "push"}),
    ("git push origin main", {"action": "push", "remote": "origin", "branch": "main"}),
    (
        "git push -u origin 'feature/x'",
        {"action": "push", "set_upstream": True, "remote": "origin", "branch": "feature/x"},
    ),
    ("git push origin main --tags -q", {"action": "push", "remote": "origin", "branch": "main", "tags": True}),
    ("git push --force-with-lease", {"action": "push", "force_with_lease": True}),
    ("git push origin HEAD 2>&1", {"action": "push", "remote": "origin", "branch": "HEAD"}),
    ("git fetch --all --prune", {"action": "fetch", "prune": True}),
    ("git fetch origin", {"action": "fetch", "remote": "origin"}),
    ("git pull --ff-only origin main", {"action": "pull", "remote": "origin", "branch": "main"}),
    ("git pull --rebase", {"action": "pull", "rebase": True}),
    (
        "git clone https://git.example.org/a/b.git",
        {"action": "clone", "url": "https://git.example.org/a/b.git", "folder": "b"},
    ),
    (
        "git clone --depth 1 -b dev git@h.org:a/b.git x/y",
        {"action": "clone", "depth": 1, "branch": "dev", "url": "git@h.org:a/b.git", "folder": "x/y"},
    ),
    (
        "git clone --depth=3 --branch=dev h:a/b .",
        {"action": "clone", "depth": 3, "branch": "dev", "url": "h:a/b", "folder": "."},
    ),
]
NOT_UNDERSTOOD = [
    "git push --force",
    "git push -f origin main",
    "git push origin +main",
    "git push origin a:b",
    "git push origin :main",
    "git push --delete origin main",
    "git push --mirror",
    "git push --receive-pack=x origin",
    "git push https://git.example.org/x main",
    "git push origin a b",
    "git push && git push",
    "git push; ls",
    "git push | cat",
    "git push > out",
    "git push $REMOTE",
    "git push origin $(whoami)",
    "git push origin *",
    "for i in 1 2; do git push; done",
    "(git push)",
    "git push &",
    "GIT_SSH_COMMAND=x git push",
    "sudo git push",
    "git -C x push",
    "git -c core.sshCommand=x push",
    "git fetch --upload-pack=x",
    "git fetch origin main:main",
    "git pull --rebase=interactive",
    "git clone",
    "git clone -c core.hooksPath=x https://git.example.org/x",
    "git clone --template=x https://git.example.org/x",
    "git clone --recurse-submodules https://git.example.org/x",
    "git clone --depth x https://git.example.org/x",
    "git clone -u x https://git.example.org/x",
    "git clone --depth",
    "git status",
    "git pushy",
    "echo git push",
    "git push 'unclosed",
]


@pytest.mark.parametrize(("command", "arguments"), UNDERSTOOD)
def test_a_plain_command_becomes_a_call(command: str, arguments: dict[str, Json]) -> None:
    assert read_git_command(command, "") == arguments


@pytest.mark.parametrize("command", NOT_UNDERSTOOD)
def test_anything_else_stays_a_command(command: str) -> None:
    assert read_git_command(command, "") is None


def test_the_folder_of_the_shell_is_that_of_the_call() -> None:
    assert read_git_command("git push", "sub") == {"action": "push", "folder": "sub"}
    found = read_git_command("git clone https://git.example.org/b", "sub")
    assert found is not None and found["folder"] == "sub/b"
