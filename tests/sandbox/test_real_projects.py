"""Real projects, built, tested and committed by an agent's commands in the default tier.

Python and node packages come from their indexes, by pip and npm inside the sandbox.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import tests
import treadle
from tests.kit.projects import MAIL, NAME, PROJECTS, can_reach_registries
from tests.kit.sandbox import PYTHON, needs_bubblewrap

NOBODY = 65534
PATIENCE = 400
LIBRARIES = (Path(treadle.__file__).parents[1], Path(msgspec.__file__).parents[1], Path(tests.__file__).parents[1])
NEEDS_REGISTRY = ("python", "node")
CASES = [*((name, "machine") for name in PROJECTS), *(("python", "pyenv"), ("node", "nvm"))]

pytestmark = needs_bubblewrap


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach: pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="project-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def check_tools(name: str) -> None:
    needed = {"python": "python3", "node": "npm", "c": "cc"}.get(name, "git")
    if shutil.which(needed) is None:
        pytest.skip(f"NOT TESTED, {needed} is not installed")
    if name in NEEDS_REGISTRY and not can_reach_registries():
        pytest.skip("NOT TESTED, the package indexes cannot be reached")


def check_outcome(name: str, output: str) -> None:
    calls, commits = json.loads(output)
    for (status, text), (command, expected) in zip(calls, PROJECTS[name].commands, strict=True):
        assert status == "ok", (command, text)
        assert expected in text, (command, text)
    author = f"by {NAME} <{MAIL}>"
    subjects = [subject for subjects in commits.values() for subject in subjects]
    assert subjects and all(subject.endswith(author) for subject in subjects)
    wanted = {"clone": "Take the new library", "worktree": "Change it better"}.get(name, "Build and test it")
    assert f"{wanted} {author}" in subjects


@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} on {layout}" for name, layout in CASES])
def test_an_agent_builds_tests_and_commits_a_project(name: str, layout: str, folder: Path) -> None:
    check_tools(name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.kit.projects", name, layout, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, LIBRARIES))},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    check_outcome(name, done.stdout)


@pytest.mark.parametrize(("name", "layout"), CASES, ids=[f"{name} on {layout}" for name, layout in CASES])
def test_an_ordinary_user_builds_tests_and_commits_a_project(name: str, layout: str, folder: Path) -> None:
    check_tools(name)
    if os.getuid() != 0:
        pytest.skip("the whole suite runs as an ordinary user")
    for library in LIBRARIES:
        if subprocess.run(["test", "-x", library / "."], user=NOBODY, group=NOBODY, extra_groups=[]).returncode:
            pytest.skip(f"NOT TESTED, nobody else can read {library}")
    os.chown(folder, NOBODY, NOBODY)
    libraries = os.pathsep.join(map(str, LIBRARIES))
    certificates = {name: value for name, value in os.environ.items() if "CERT" in name or "_CA" in name}
    done = subprocess.run(
        [PYTHON, "-B", "-m", "tests.kit.projects", name, layout, folder],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={**certificates, "PYTHONPATH": libraries, "PATH": os.environ["PATH"], "HOME": str(folder)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    check_outcome(name, done.stdout)
