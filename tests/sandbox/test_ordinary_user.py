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


@needs_bubblewrap
def test_an_ordinary_user_has_the_same_sandbox(their_folder: Path) -> None:
    same = subprocess.run([PYTHON, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    if same.stdout.split() != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(f"NOT TESTED, {PYTHON} cannot use the libraries of {sys.executable}")
    for library in LIBRARIES:
        if subprocess.run(["test", "-x", library / "."], user=NOBODY, group=NOBODY, extra_groups=[]).returncode:
            pytest.skip(f"NOT TESTED, nobody else can read {library}")
    done = subprocess.run(
        [PYTHON, "-B", "-c", CODE, str(their_folder)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"PYTHONPATH": os.pathsep.join(map(str, LIBRARIES))},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE * 3,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["level"] == "bubblewrap"
    assert said["who"] == ["exited", f"{NOBODY}\n"] and said["written"] == ["exited", "x\n"]
    assert "Read-only" in said["protected"][1] and said["bomb"] == ["processes", ""]
    assert "403" in said["network"][1] and "Read-only" in said["further"][1]
    assert said["closed"][1].count("Read-only") == 2 and said["closed"][1].endswith("\nfile\n"), said["closed"]
    assert said["commit"] == ["exited", "Ann:one\n"], said["commit"]
    assert sorted(os.listdir(their_folder)) == [".git", "closed", "file", "sub"]
