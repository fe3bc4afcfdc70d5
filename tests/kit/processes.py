"""Servers that tests start: as an ordinary user, on a free port, and gone at the latest when the tests are."""

import os
import pwd
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE = 60.0
"""Seconds that only a hang exceeds."""
PORTS = range(15_000, 32_000)
"""Below the ports that the kernel gives to clients, so that a stopped server finds its port free again."""
ENDED = ("", "Z", "X")
STOPPED = ("T", *ENDED)
"""States of a process that does nothing any more, as `ps` shows them."""
# Is told which process to watch, a line each. The end of its input is the end of the tests.
_GUARD = """
pid=
while read -r line; do pid=$line; done
if test "$pid"; then
    kill -s "$1" "$pid"
    kill -CONT "$pid"
    while kill -0 "$pid"; do sleep 0.05; done
fi
umount --lazy "$2/data"
rm -rf -- "$2"
"""


def wait_until(what: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait until a condition is true. Return how long it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - began


def find_free_port() -> int:
    """Find a TCP port on loopback that nobody uses."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("100 ports were tried, and none was free")


def choose_account() -> pwd.struct_passwd:
    """Choose who runs the servers: we ourselves, or where we are root, an ordinary user."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise AssertionError("there is no ordinary user: neither `postgres` nor `nobody`")


def make_server_folder(name: str) -> Path:
    """Make a temporary folder that belongs to whoever runs the servers. That of the tests is closed to them."""
    folder = Path(tempfile.mkdtemp(prefix=f"treadle-{name}-"))
    hand_over(folder)
    return folder


def hand_over(folder: Path) -> None:
    """Give a folder and all that is in it to whoever runs the servers."""
    account = choose_account()
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def build_account_options() -> dict[str, object]:
    """Build what `subprocess` needs to run a program as whoever runs the servers."""
    account = choose_account()
    options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8", "TZ": "UTC"}
    return {**options, "env": environment, "cwd": "/", "stdin": subprocess.DEVNULL}


def list_descendants(pid: int) -> list[int]:
    """List the processes that a process has started, and those that they have."""
    children = _list_children(pid)
    return [*children, *(each for child in children for each in list_descendants(child))]


def _list_children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # a process or a thread may have just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text("ascii").split())
    return children


def read_state(pid: int) -> str:
    """Read the state of a process as `ps` shows it, or nothing when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _wait_for_states(pids: Sequence[int], states: Sequence[str]) -> None:
    """Wait until each process has one of the states."""
    wait_until(lambda: all(read_state(pid) in states for pid in pids))


class Guard:
    """Ends a server and removes its folder when the tests end without doing so, however they end."""

    def __init__(self, folder: Path, end_signal: str = "KILL") -> None:
        command = ["sh", "-c", _GUARD, "guard", end_signal, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def watch(self, pid: int | None) -> None:
        """Name the process that has to be ended, in place of the last one."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % pid if pid else b"\n")
        self._process.stdin.flush()

    def dismiss(self) -> None:
        """End the guard: there is nothing left to do for it."""
        self._process.kill()
        self._process.communicate()


class ServerProcess:
    """A server with all its children, run by an ordinary user. What it writes is added to a file."""

    def __init__(self, command: Sequence[str], log: Path, guard: Guard) -> None:
        self._guard = guard
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, **build_account_options()
            )
        guard.watch(self.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the process has not ended. A frozen one has not."""
        return self._process.poll() is None

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to the process, and wait until it has ended."""
        self._process.send_signal(number)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server ignored {number.name} for {PATIENCE} s") from None
        self._guard.watch(None)

    def kill(self) -> None:
        """Kill the process and its children at once, like a power cut, and wait until all are gone."""
        pids = self.freeze()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        _wait_for_states(pids, ENDED)
        self._guard.watch(None)

    def freeze(self) -> list[int]:
        """Stop the process and its children where they are. Return their ids, the parent first."""
        frozen: list[int] = []
        found = [self.pid] if self.is_running() else []
        while found:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            frozen += found
            _wait_for_states(frozen, STOPPED)
            found = [pid for pid in list_descendants(self.pid) if pid not in frozen]
        return frozen

    def thaw(self) -> None:
        """Let the process and its children continue."""
        for pid in (*list_descendants(self.pid), self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
