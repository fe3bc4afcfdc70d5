"""The suite may run as root; these check that an ordinary user has the same sandbox."""

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

import treadle
from tests.kit.sandbox import PATIENCE, PYTHON, needs_bubblewrap

NOBODY = 65534
LIBRARIES = (Path(treadle.__file__).parents[1], Path(msgspec.__file__).parents[1])

CODE = """
import asyncio, json, sys
from pathlib import Path
from treadle.sandbox.base import Bounds, Job
from treadle.sandbox.backend import probe, run_in_sandbox

async def main():
    said = {"level": probe().level}
    for name, code, network in (
        ("closed", "chmod 755 . 2>&1; mkdir .git 2>&1 || ls -A", False),
        ("who", "id -u", False),
        ("written", "echo x > file && cat file", False),
        ("protected", "mkdir -p .treadle/hooks 2>&1 || echo no", False),
        ("commit", "git init -q -b main . && git config user.name Ann && git config user.email a@example.org && "
            "git add file && git commit -qm one && git log --format=%an:%s", False),
        ("further", "mkdir -p sub/.git/hooks 2>&1 || echo no", False),
        ("bomb", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 300 & done; wait; echo EXPLODED", False),
        ("network", "/usr/bin/python3 -I -c 'import socket; s = socket.create_connection((\\"127.0.0.1\\", 3128)); "
            "s.sendall(b\\"CONNECT 10.0.0.1:443 HTTP/1.1\\\\r\\\\n\\\\r\\\\n\\"); print(s.recv(99))'", True),
    ):
        heard = []
        folder = Path(sys.argv[1], "closed" if name == "closed" else "")
        job = Job(("/bin/sh", "-c", code), folder, network=network, bounds=Bounds(wall_s=100, processes=6))
        ended = await run_in_sandbox(job, heard.append)
        said[name] = [ended.reason, b"".join(heard).decode()]
    print(json.dumps(said))

asyncio.run(main())
"""


@pytest.fixture
def their_folder() -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("the whole suite runs as an ordinary user")
    folder = Path(tempfile.mkdtemp(prefix="workspace-"))
    (folder / "sub/.git").mkdir(parents=True)
    (folder / "sub/.git/config").touch()
    (folder / "closed/file").parent.mkdir(0o555)
    (folder / "closed/file").touch()
    for made in (folder, folder / "sub", folder / "sub/.git", folder / "closed"):
        os.chown(made, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def run_as_nobody(code: str, folder: Path, env: dict[str, str]) -> dict[str, list[str]]:
    """Run code that prints a JSON object, as another user, with the libraries of this process."""
    same = subprocess.run([PYTHON, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    if same.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"NOT TESTED, {PYTHON} cannot use the libraries of {sys.executable}")
    for library in LIBRARIES:
        if subprocess.run(["test", "-x", library / "."], user=NOBODY, group=NOBODY, extra_groups=[]).returncode:
            pytest.skip(f"NOT TESTED, nobody else can read {library}")
    done = subprocess.run(
        [PYTHON, "-B", "-c", code, str(folder)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"PYTHONPATH": os.pathsep.join(map(str, LIBRARIES)), **env},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@needs_bubblewrap
def test_an_ordinary_user_has_the_same_sandbox(their_folder: Path) -> None:
    said = run_as_nobody(CODE, their_folder, {})
    assert said["level"] == "bubblewrap"
    assert said["who"] == ["exited", f"{NOBODY}\n"] and said["written"] == ["exited", "x\n"]
    assert "Read-only" in said["protected"][1] and said["bomb"] == ["processes", ""]
    assert "403" in said["network"][1] and "Read-only" in said["further"][1]
    assert said["closed"][1].count("Read-only") == 2 and said["closed"][1].endswith("\nfile\n"), said["closed"]
    assert said["commit"] == ["exited", "Ann:one\n"], said["commit"]
    assert sorted(os.listdir(their_folder)) == [".git", "closed", "file", "sub"]


CLOSED = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from treadle.errors import BadInput
from treadle.sandbox.base import Job
from treadle.sandbox.backend import run_in_sandbox

EVIL = "git init -q {0}; touch {0}/x; git -C {0} add x; git -C {0} config core.fsmonitor $CANARY; "
top = Path(sys.argv[1])
canary, started = top / "canary", top / "started"
canary.write_text(f"#!/bin/sh\\necho started >> {started}\\n")
canary.chmod(0o755)

def host(code, folder):
    subprocess.run(["/bin/sh", "-c", code], cwd=folder, env={"PATH": "/usr/bin:/bin", "CANARY": str(canary)},
                   capture_output=True)

async def run(folder, code):
    heard = []
    try:
        await run_in_sandbox(Job(("/bin/sh", "-c", code), folder, env={"CANARY": str(canary)}), heard.append)
    except BadInput as refused:
        return f"refused: {refused}"
    return b"".join(heard).decode()

async def main():
    said = {}
    for number, (code, then) in enumerate([
        (EVIL.format("a/sub") + "chmod 311 a", "cd a/sub && git status"),
        (EVIL.format("a/sub") + "chmod 000 a", "chmod 755 a; cd a/sub && git status"),
        (EVIL.format("a/b/c/d/e/f/g/h")
            + "for f in a/b/c/d/e/f/g a/b/c/d/e/f a/b/c/d/e a/b/c/d a/b/c a/b a; do chmod 311 $f; done",
            "cd a/b/c/d/e/f/g/h && git status"),
        (EVIL.format("sub") + "chmod 311 .", "cd sub && git status"),
        (EVIL.format("sub") + "chmod 000 .", "cd sub && git status"),
        (EVIL.format("sub") + "chmod 555 sub", "cd sub && git status"),
        (EVIL.format("sub") + "mv sub/.git b; git -C b config core.bare false; git -C b config core.worktree ..; "
            "chmod 555 b", "cd b && git status"),
    ]):
        for kind in ("free", "held"):
            folder = top / f"{kind}{number}"
            folder.mkdir()
            if kind == "free":
                host(code, folder)
            else:
                await run(folder, code)
            folder.chmod(0o755)
            host(then, folder)
            said[f"{kind}{number}"] = [str(started.exists()), await run(folder, "echo next")]
            said[f"{kind}{number}-names"] = sorted(os.listdir(folder / "sub")) if (folder / "sub").is_dir() else []
            started.unlink(missing_ok=True)
    user = top / "user"
    user.mkdir()
    host(EVIL.format("p/s/r").replace("$CANARY", "false") + "echo the-secret > p/s/.env; chmod 000 p/s", user)
    tried = f"chmod 755 p/s; mv p q; cat */s/.env 2>&1; git config -f p/s/r/.git/config core.fsmonitor {canary}"
    said["read"] = await run(user, tried)
    said["mode"] = oct(os.stat(user / "p/s").st_mode)
    host("chmod 311 .", user)
    said["refused"] = await run(user, tried)
    print(json.dumps(said))

asyncio.run(main())
"""


@needs_bubblewrap
def test_nothing_hides_in_a_folder_that_a_command_or_the_user_has_closed(their_folder: Path) -> None:
    said = run_as_nobody(CLOSED, their_folder, {"HOME": str(their_folder / "home")})
    for number in range(7):
        assert said[f"free{number}"][0] == "True", f"attempt {number} proves nothing"
        assert said[f"held{number}"] == ["False", "next\n"], f"attempt {number}"
    assert said["held5-names"] == [".git", "x"], "a folder that is read-only is no reason to drop its repository"
    assert "the-secret" not in said["read"] and "No such file" in said["read"]
    assert said["mode"] == "0o40000" and "You may not list" in said["refused"]


TOOLS = """
import asyncio, json, sys
from pathlib import Path
from treadle.sandbox.base import Job
from treadle.sandbox.backend import run_in_sandbox

async def main():
    said = {}
    for name, code in (
        ("tool", "node; echo x 2>&1 >> $(command -v node)"),
        ("hidden", f"cat {sys.argv[1]}/home/.npmrc {sys.argv[1]}/home/.nvm/versions/node/v9/etc/npmrc 2>&1"),
        ("first", "echo kept > ~/.cache/x; mkdir -m 0 ~/.cache/closed"),
        ("second", "cat ~/.cache/x"),
    ):
        heard = []
        await run_in_sandbox(Job(("/bin/bash", "-c", code), Path(sys.argv[1], "home/work")), heard.append)
        said[name] = b"".join(heard).decode()
    print(json.dumps(said))

asyncio.run(main())
"""


@needs_bubblewrap
def test_an_ordinary_user_has_tools_and_a_cache(their_folder: Path) -> None:
    prefix = their_folder / "home/.nvm/versions/node/v9"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/node").write_text("#!/bin/sh\necho node 9\n")
    (prefix / "bin/node").chmod(0o755)
    (prefix / "etc").mkdir()
    (their_folder / "home/work").mkdir()
    for file in (prefix / "etc/npmrc", their_folder / "home/.npmrc"):
        file.write_text("the-secret")
    for path in their_folder.rglob("*"):
        os.chown(path, NOBODY, NOBODY)
    env = {"HOME": str(their_folder / "home"), "PATH": f"{prefix}/bin:/usr/bin:/bin"}
    said = run_as_nobody(TOOLS, their_folder, env)
    assert "node 9" in said["tool"] and "Read-only file system" in said["tool"]
    assert "the-secret" not in said["hidden"] and "No such file" in said["hidden"]
    assert said["second"] == "kept\n"
