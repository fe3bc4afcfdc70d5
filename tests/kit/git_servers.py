"""Real git servers on loopback, a home with the user's own settings, and a repository that talks to them."""

import base64
import json
import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.kit.file_tools import RecordingServices
from treadle.sandbox import backend
from treadle.tools.base import ToolContext, ToolResult
from treadle.tools.git_remote import GitRemote

USER, PASSWORD = "builder", "correct-horse-battery"
_PATH = os.environ["PATH"]
_WHO = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org"}
_BY_WHOM = {name.replace("AUTHOR", "COMMITTER"): value for name, value in _WHO.items()}


class GitHome:
    """The home of a user, whose own settings are in `.gitconfig`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self.configure(
            "[user]\n\tname = A\n\temail = a@example.org\n[init]\n\tdefaultBranch = main\n[protocol]\n\tversion = 2\n"
        )

    def configure(self, text: str) -> None:
        with open(self.folder / ".gitconfig", "a", encoding="utf-8") as file:
            file.write(text)

    def write_program(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def git(self, *words: str, at: Path, check: bool = True, **variables: str) -> str:
        """Run git as the user would in a terminal."""
        environment = {"HOME": str(self.folder), "PATH": _PATH, "GIT_TERMINAL_PROMPT": "0", **_WHO, **_BY_WHOM}
        done = subprocess.run(
            ["git", *words],
            cwd=at,
            env=environment | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0 or not check, f"git {words}: {done.stderr}"
        return done.stdout.strip()

    def commit(self, repository: Path, name: str) -> str:
        """Commit a new file. Return the commit."""
        (repository / name).write_text(f"{name}\n", encoding="utf-8")
        self.git("add", name, at=repository)
        self.git("commit", "-qm", f"Add {name}", at=repository)
        return self.git("rev-parse", "HEAD", at=repository)


class RemoteCaller:
    """Calls of `git_remote` in one workspace, as the engine makes them."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.tool = GitRemote(backend)

    async def bind(self, action: str, **arguments: Any) -> dict[str, Any]:
        parsed = self.tool.parse(json.dumps({"action": action, **arguments}))
        self.bound = (await self.tool.bind_call(parsed, self.workspace, "sandbox"))[1]
        return self.bound.arguments

    async def run_bound(self) -> ToolResult:
        context = ToolContext("session", "call", self.workspace, services=RecordingServices())
        result = await self.tool.run(self.bound, context)
        assert isinstance(result, ToolResult)
        return result

    async def run(self, action: str, **arguments: Any) -> ToolResult:
        await self.bind(action, **arguments)
        return await self.run_bound()


def read_served(home: GitHome, shared: Path, ref: str = "main") -> str:
    return home.git("rev-parse", ref, at=shared / "app.git")


@contextmanager
def serve_git(base: Path) -> Iterator[int]:
    """Serve all repositories below a folder by git's own protocol. Everybody may push. Yield the port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            words = ["git", "daemon", "--inetd", "--export-all", "--enable=receive-pack", f"--base-path={base}"]
            environment = {"PATH": _PATH, "HOME": str(base)}
            process = subprocess.Popen(
                words, stdin=self.request, stdout=self.request, stderr=subprocess.DEVNULL, env=environment
            )
            process.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        yield from _run_server(server)


class WebHandler(BaseHTTPRequestHandler):
    """Repositories behind a password, by `git http-backend`."""

    base: ClassVar[Path]
    seen: ClassVar[list[str]]
    accepted: ClassVar[str]
    redirect: ClassVar[str]

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""

    def handle_git(self) -> None:
        authorization = self.headers.get("Authorization", "")
        self.seen.append(authorization)
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.redirect:
            self._answer(301, [("Location", f"{self.redirect}{self.path}")])
        elif self.accepted and authorization != self.accepted:
            self._answer(401, [("WWW-Authenticate", 'Basic realm="git"')])
        else:
            self._run_backend(data)

    do_GET = do_POST = handle_git

    def _run_backend(self, data: bytes) -> None:
        path, _, query = self.path.partition("?")
        environment = {
            "PATH": _PATH,
            "HOME": str(self.base),
            "GIT_PROJECT_ROOT": str(self.base),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": USER,
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(data)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=data, env=environment, capture_output=True, check=False)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = [tuple(line.split(": ", 1)) for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in headers if name == "Status"), 200)
        self._answer(status, [(name, value) for name, value in headers if name != "Status"], body)

    def _answer(self, status: int, headers: list[Any], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve_web(base: Path, *, password: str = PASSWORD, redirect: str = "") -> Iterator[tuple[int, list[str]]]:
    """Serve repositories over HTTP. Yield the port, and the credentials of each request as they come."""
    accepted = f"Basic {base64.b64encode(f'{USER}:{password}'.encode()).decode()}" if password else ""
    seen: list[str] = []
    kind = type("Handler", (WebHandler,), {"base": base, "seen": seen, "accepted": accepted, "redirect": redirect})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        for port in _run_server(server):
            yield port, seen


@contextmanager
def serve_silence() -> Iterator[tuple[int, threading.Event]]:
    """Take connections and never answer. Yield the port, and an event that is set at the first connection."""
    connected, held = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return
                connected.set()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1], connected
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in held:
            one.close()


def _run_server(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[misc]
    finally:
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def prepared_repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the repositories once: tests copy them."""
    folder = tmp_path_factory.mktemp("git")
    home = GitHome(folder / "home")
    home.git("init", "-q", "--template=", "--bare", str(folder / "served/app.git"), at=folder)
    home.git("init", "-q", "--template=", str(folder / "first"), at=folder)
    home.commit(folder / "first", "README")
    home.git("push", "-q", str(folder / "served/app.git"), "main", at=folder / "first")
    home.git("clone", "-q", "--template=", f"file://{folder}/served/app.git", str(folder / "work"), at=folder)
    return folder


@pytest.fixture(name="home")
def users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitHome:
    """The home of the user who runs treadle in this test."""
    home = GitHome(tmp_path / "home")
    for name in ("GIT_SSH_COMMAND", "GIT_SSH", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home.folder))
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    return home


@pytest.fixture(name="shared")
def served_folder(tmp_path: Path, prepared_repositories: Path) -> Path:
    """A folder with the bare repository `app.git`, which has one commit. It was pushed from `first` beside it."""
    shutil.copytree(prepared_repositories / "first", tmp_path / "first")
    shutil.copytree(prepared_repositories / "served", tmp_path / "served")
    return tmp_path / "served"


@pytest.fixture(name="port")
def served_port(shared: Path) -> Iterator[int]:
    with serve_git(shared) as port:
        yield port


@pytest.fixture(name="work")
def users_clone(tmp_path: Path, prepared_repositories: Path, port: int) -> Path:
    """A clone that the user made."""
    shutil.copytree(prepared_repositories / "work", tmp_path / "work")
    settings = tmp_path / "work/.git/config"
    url = f"file://{prepared_repositories}/served/app.git"
    text = settings.read_text(encoding="utf-8")
    assert url in text
    settings.write_text(text.replace(url, f"git://127.0.0.1:{port}/app.git"), encoding="utf-8")
    return tmp_path / "work"
