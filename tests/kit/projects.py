"""Real projects for the sandbox: each is built, tested and committed by an agent's commands in the default tier.

It is also a program, so that an ordinary user can run it: `python -m tests.kit.projects PROJECT LAYOUT FOLDER`.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from treadle import Agent
from treadle.events import CallFinished
from treadle.sandbox import network, proxy
from treadle.testing import ScriptedModel, call
from treadle.tools.builtin import build_default_tools

NAME, MAIL = "Ada Example", "ada@example.org"
REGISTRIES = ("pypi.org", "registry.npmjs.org")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Project(Struct, frozen=True):
    """What is in the workspace before, the commands of the agent, and words that their outputs must have."""

    files: Mapping[str, str]
    commands: tuple[tuple[str, str], ...]
    prepare: Callable[[Path], None] | None = None
    folder: str = ""


class Outcome(Struct, frozen=True):
    """How the commands of an agent ended, and the subjects and authors of all commits, by folder."""

    calls: list[tuple[str, str]]
    commits: dict[str, list[str]]


def git(folder: Path, *words: str) -> str:
    """Run git outside of the sandbox, as the user would."""
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def start_repository(folder: Path) -> None:
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Start")


def start_clone(folder: Path) -> None:
    """Clone a repository with a submodule, and add a linked worktree: `clone`, `clone/lib` and `tree`."""
    for name in ("library", "origin"):
        (folder / name).mkdir()
        (folder / name / "hello.txt").write_text("hello\n")
        start_repository(folder / name)
    local = ("-c", "protocol.file.allow=always")
    git(folder / "origin", *local, "submodule", "--quiet", "add", str(folder / "library"), "lib")
    git(folder / "origin", "commit", "-q", "-m", "Add the library")
    git(folder, *local, "clone", "-q", "--recurse-submodules", str(folder / "origin"), "clone")
    git(folder / "clone/lib", "switch", "-q", "-c", "work")
    git(folder / "clone", "worktree", "add", "-q", "-b", "side", str(folder / "tree"))


COMMIT = "git add -A && git commit -qm 'Build and test it' && git status --short && git log --oneline | head -1"

PROJECTS: dict[str, Project] = {
    "python": Project(
        {"app.py": "def double(x):\n    return 2 * x\n", ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\n"},
        (
            ("python3 -m venv .venv && .venv/bin/python -c 'import sys; print(sys.prefix)'", ".venv"),
            (
                ".venv/bin/pip install -q --disable-pip-version-check iniconfig pluggy pytest && echo installed",
                "installed",
            ),
            ("echo 'from app import double\n\ndef test_it():\n    assert double(2) == 4' > test_app.py", "[no output]"),
            (".venv/bin/python -m pytest -q", "1 passed"),
            (COMMIT, "Build and test it"),
        ),
        start_repository,
    ),
    "node": Project(
        {
            "package.json": json.dumps({"name": "x", "version": "1.0.0", "scripts": {"test": "node test.js"}}),
            "test.js": "if (!require('is-number')(5)) throw new Error('no'); console.log('it is a number');\n",
            ".gitignore": "node_modules/\n",
        },
        (
            ("npm install --no-fund --no-audit --save is-number@7.0.0", "added 1 package"),
            ("rm -r node_modules && npm ci --no-fund --no-audit", "added 1 package"),
            ("npm test", "it is a number"),
            (COMMIT, "Build and test it"),
        ),
        start_repository,
    ),
    "c": Project(
        {
            "Makefile": "hello: hello.c\n\tcc -o hello hello.c\ntest: hello\n\t./hello | grep hello && echo passed\n",
            "hello.c": '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n',
            ".gitignore": "hello\n",
        },
        (("make test", "passed"), ("echo '/* greets */' >> hello.c && make test", "passed"), (COMMIT, "Build")),
        start_repository,
    ),
    "clone": Project(
        {},
        (
            (
                "cd lib && echo more >> hello.txt && git commit -qam 'Change the library' && git log --oneline",
                "Change the",
            ),
            ("cd .. && git status --short", "M lib"),
            ("git switch -qc feature && git commit -qam 'Take the new library' && git log -1 --stat", "lib"),
            ("git switch -q main && git merge -q feature && git tag -a v1 -m one && git describe", "v1"),
        ),
        start_clone,
        "clone",
    ),
    "worktree": Project(
        {},
        (
            ("git status -sb", "## side"),
            ("echo more >> hello.txt && git commit -qam 'Change it here' && git log --oneline", "Change it here"),
            ("git commit -q --amend -m 'Change it better' && git stash list && git log --oneline", "Change it better"),
        ),
        start_clone,
        "tree",
    ),
}


def make_pyenv(home: Path) -> list[str]:
    """Make a Python in `~/.pyenv/versions`, and a shim that runs it as those of pyenv do."""
    version = home / ".pyenv/versions/3.11.99"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--copies", "--without-pip", version], check=True)
    shim = home / ".pyenv/shims/python3"
    shim.parent.mkdir()
    shim.write_text('#!/usr/bin/env bash\nexec "$PYENV_ROOT/versions/$(cat "$PYENV_ROOT/version")/bin/python3" "$@"\n')
    shim.chmod(0o755)
    (home / ".pyenv/version").write_text("3.11.99\n")
    os.environ["PYENV_ROOT"] = str(home / ".pyenv")
    return [str(shim.parent)]


def make_nvm(home: Path) -> list[str]:
    """Make a node with its npm in `~/.nvm/versions/node`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    assert node and npm
    version = home / ".nvm/versions/node/v20.99.0"
    (version / "bin").mkdir(parents=True)
    (version / "lib/node_modules").mkdir(parents=True)
    shutil.copy(os.path.realpath(node), version / "bin/node")
    package = next(parent for parent in Path(os.path.realpath(npm)).parents if parent.name == "npm")
    shutil.copytree(package, version / "lib/node_modules/npm", symlinks=True)
    (version / "bin/npm").symlink_to("../lib/node_modules/npm/bin/npm-cli.js")
    return [str(version / "bin")]


LAYOUTS: dict[str, Callable[[Path], list[str]]] = {
    "machine": lambda home: [entry for entry in os.environ["PATH"].split(":") if os.access(entry, os.X_OK)],
    "pyenv": make_pyenv,
    "nvm": make_nvm,
}


def prepare_home(folder: Path, layout: str) -> None:
    """Make a home with git's settings and a layout of toolchains, and use it in this process."""
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[user]\n\tname = {NAME}\n\temail = {MAIL}\n[init]\n\tdefaultBranch = main\n")
    if layout != "machine":  # else its own home has the toolchains
        os.environ["HOME"] = str(home)
    os.environ["GIT_CONFIG_GLOBAL"] = str(home / ".gitconfig")
    os.environ["TREADLE_DATA_DIR"] = str(folder / "data")
    os.environ["PATH"] = ":".join([*LAYOUTS[layout](home), SYSTEM_PATH])


def accept_registries() -> None:
    """Count the addresses of the registries as public: a machine for tests may reach them through a mirror."""
    mirrors = {str(found[4][0]) for host in REGISTRIES for found in socket.getaddrinfo(host, 443)}

    def is_public(address: str) -> bool:
        return address in mirrors or proxy.is_public_address(address)

    network.open_network = partial(network.open_network, public=is_public)


def can_reach_registries() -> bool:
    try:
        for host in REGISTRIES:
            socket.create_connection((host, 443), timeout=10).close()
    except OSError:
        return False
    return True


async def run_project(name: str, layout: str, folder: Path) -> Outcome:
    """Have an agent build, test and commit a project in the default tier, where nobody can be asked."""
    prepare_home(folder, layout)
    project, place = PROJECTS[name], folder / "work"
    place.mkdir()
    for path, text in project.files.items():
        (place / path).write_text(text)
    if project.prepare is not None:
        project.prepare(place)
    accept_registries()
    script = [call("shell", command=command, timeout_s=300) for command, _ in project.commands]
    tools = build_default_tools(network=("registries",), kept=folder / "kept")
    agent = Agent(ScriptedModel(*script, "Done."), tools=tools)
    async with agent.session(workspace=place / project.folder) as session:
        await session.ask("Build it, test it and commit it.")
        facts = [fact for fact in await session.facts() if isinstance(fact, CallFinished)]
    folders = [found for found in (place, *sorted(place.rglob("*"))) if (found / ".git").exists()]
    commits = {str(one.relative_to(place)): git(one, "log", "--format=%s by %an <%ae>").splitlines() for one in folders}
    for one in folders:
        assert git(one, "status", "--short") == "", one
        git(one, "fsck", "--strict", "--no-dangling")
    return Outcome([(fact.status, fact.output) for fact in facts], commits)


def main() -> None:
    name, layout, folder = sys.argv[1:]
    outcome = asyncio.run(run_project(name, layout, Path(folder)))
    print(json.dumps([outcome.calls, outcome.commits]))


if __name__ == "__main__":
    main()
