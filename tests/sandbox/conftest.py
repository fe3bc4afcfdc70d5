"""A workspace for each test, and a neighbour: another process of the same user with secrets and sockets."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.sandbox import PATIENCE, SECRET, Neighbour, Place

NEIGHBOUR = """
import os, socket, sys
held = open(sys.argv[1], "w+"); held.write(os.environ["SECRET"]); held.flush(); os.unlink(sys.argv[1])
tcp = socket.create_server(("127.0.0.1", 0))
try: six = socket.create_server(("::1", 0), family=socket.AF_INET6)
except OSError: six = tcp
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0" + sys.argv[2]); abstract.listen()
path = socket.socket(socket.AF_UNIX); path.bind(sys.argv[3]); path.listen()
print(tcp.getsockname()[1], six.getsockname()[1], udp.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def neighbour() -> Iterator[Neighbour]:
    folder = Path(tempfile.mkdtemp(prefix="neighbour-"))
    temporary = folder / "temporary"
    temporary.write_text(SECRET)
    shared = Path("/dev/shm", folder.name)
    shared.write_text(SECRET)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", NEIGHBOUR, folder / "held", folder.name, folder / "socket", SECRET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"SECRET": SECRET},
        cwd=folder,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    tcp, six, udp = map(int, process.stdout.readline().split())
    yield Neighbour(process.pid, tcp, six, udp, folder.name, str(folder / "socket"), str(temporary), str(shared))
    process.stdin.close()
    process.wait(PATIENCE)
    process.stdout.close()
    shared.unlink()
    shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path: Path, neighbour: Neighbour) -> Place:
    return Place(tmp_path, neighbour)
