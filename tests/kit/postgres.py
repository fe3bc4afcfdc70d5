"""Real PostgreSQL servers from the system's package, each in a temporary folder and run by an ordinary user.

Logic tests share one server (`postgres_server`) and get an empty database each (`postgres_url`). Tests of faults start
their own.
"""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import which
from typing import Any, Literal, Self
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from tests.kit.processes import (
    Guard,
    ServerProcess,
    build_account_options,
    find_free_port,
    hand_over,
    make_server_folder,
    wait_until,
)
from tests.kit.small_disk import mount_small_disk

OLDEST_VERSION = 15
USER = "treadle"
_CACHE = Path(__file__).parents[2] / ".pytest_cache" / "postgres"
# The order of a dictionary, not of bytes: a query that relies on the order of bytes has to say so.
_INITDB = ("--username", USER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions")
_COLLATION = ("--locale-provider=icu", "--icu-locale=en-US")
_SMALL = {"shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap", "max_wal_size": "256MB"}
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


def find_programs() -> Path | None:
    """Find the folder of the newest PostgreSQL that is new enough. Its programs are not in the path of Debian."""
    folders = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    folders.sort(key=lambda path: int(path.parent.name), reverse=True)
    if config := which("pg_config"):
        folders.append(
            Path(subprocess.run([config, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
        )
    return next((path for path in folders if _read_version(path) >= OLDEST_VERSION), None)


def _read_version(programs: Path) -> int:
    """Read the major version of the server in a folder, 0 when it has none."""
    if not all((programs / name).is_file() for name in ("postgres", "initdb", "pg_basebackup")):
        return 0
    return int(_describe_version(programs).split()[2].partition(".")[0])


def _describe_version(programs: Path) -> str:
    return subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout


def find_missing_part() -> str:
    """Why PostgreSQL cannot be tested here, or nothing."""
    if find_programs() is None:
        return f"there is no PostgreSQL {OLDEST_VERSION} or newer: make system, or apt-get install postgresql"
    return ""


def require_postgres() -> None:
    """Skip the test where there is no PostgreSQL."""
    if missing := find_missing_part():
        pytest.skip(f"NOT TESTED, {missing}")


needs_postgres = pytest.mark.skipif(find_missing_part() != "", reason=f"NOT TESTED, {find_missing_part()}")


class PostgresServer:
    """A server of its own, with the superuser `treadle`.

    `durable` is what a fault needs: a server without it may lose everything when the machine fails, and is faster.
    `disk_megabytes` puts its data on a disk of its own, which a test can fill. It needs about 60, and root.
    With a password the network asks for it by SCRAM; the socket in `folder` trusts, for the tests themselves.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        password: str = "",
        max_connections: int = 100,
        settings: Mapping[str, str] | None = None,
        disk_megabytes: int = 0,
    ) -> None:
        programs = find_programs()
        assert programs is not None, find_missing_part()
        self.programs, self.password = programs, password
        self.folder = make_server_folder("postgres")
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.port = find_free_port()
        self._guard = Guard(self.folder, "QUIT")
        self._disk, self._disk_megabytes = ExitStack(), disk_megabytes
        self._process: ServerProcess | None = None
        self.settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": str(max_connections),
            **_SMALL,
            **({} if durable else _NOT_DURABLE),
            **(settings or {}),
        }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    # --- its life

    def start(self) -> None:
        """Start the server, and wait until it accepts connections. The first start makes its data folder."""
        assert not self.is_running(), "the server runs already"
        if not (self.data / "PG_VERSION").is_file():
            self._make_data()
            with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
                file.writelines(f"{name} = {_quote(value)}\n" for name, value in self.settings.items())
        command = [str(self.programs / "postgres"), "-D", str(self.data)]
        self._process = ServerProcess(command, self.log, self._guard)
        wait_until(self._is_ready)

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server. `fast` ends all connections and writes what is left, `immediate` leaves it to a recovery."""
        self.process.stop(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def restart(self) -> None:
        """Stop the server where it runs, and start it again on the same port."""
        if self.is_running():
            self.stop()
        self.start()

    def kill(self) -> None:
        """Kill all processes of the server at once. `start` starts it again."""
        self.process.kill()

    def freeze(self) -> None:
        """Stop all processes where they are. Connections stay open, and nothing answers."""
        self.process.freeze()

    def thaw(self) -> None:
        """Let a frozen server continue."""
        self.process.thaw()

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "the server was never started"
        return self._process

    def remove(self) -> None:
        """Stop the server, and remove its folder."""
        if self.is_running():
            self.thaw()
            self.stop("immediate")
        self._remove_shared_memory()
        self._disk.close()
        shutil.rmtree(self.folder)
        self._guard.dismiss()

    # --- what tests ask it

    def build_url(self, database: str = "postgres", *, port: int = 0, host: str = "127.0.0.1") -> str:
        """Build the URL of a database. A port is that of a relay or pooler in front of the server."""
        login = f"{USER}:{quote(self.password, safe='')}" if self.password else USER
        return f"postgresql://{login}@{host}:{port or self.port}/{database}"

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """Connect as the superuser through the socket, past whatever is in front of the network. Each query commits."""
        options = {"autocommit": True, "connect_timeout": 10, **options}
        return psycopg.connect(host=str(self.folder), port=self.port, user=USER, dbname=database, **options)

    def query(self, statement: str, *values: object, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement, and return its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def configure(self, **settings: str) -> None:
        """Change settings for good. Some of them take effect only at the next start."""
        with self.connect() as connection:
            for name, value in settings.items():
                connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value))
            connection.execute("SELECT pg_reload_conf()")

    @contextmanager
    def make_database(self, name: str) -> Iterator[str]:
        """Make an empty database for the length of a block. Yields its URL."""
        self.query(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield self.build_url(name)
        finally:
            if self.is_running():
                self.query(f"DROP DATABASE {name} WITH (FORCE)")

    def read_log(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    # --- how it is done

    def _is_ready(self) -> bool:
        assert self.process.is_running(), f"PostgreSQL did not start:\n{self.read_log()}"
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text("utf-8").splitlines()
            return len(lines) > 7 and int(lines[0]) == self.process.pid and lines[7].strip() == "ready"
        return False

    def _make_data(self) -> None:
        if self._disk_megabytes:
            self._disk.enter_context(mount_small_disk(self.data, self._disk_megabytes))
        shutil.copytree(make_template(self.programs), self.data, dirs_exist_ok=True)
        way = "scram-sha-256" if self.password else "trust"
        ways = (f"local {what} all trust\nhost {what} all all {way}\n" for what in ("all", "replication"))
        (self.data / "pg_hba.conf").write_text("".join(ways))
        self.data.chmod(0o700)
        hand_over(self.data)
        if self.password:
            quoted = self.password.replace("'", "''")
            self._run_alone(f"ALTER ROLE {USER} PASSWORD '{quoted}'")

    def _run_alone(self, statement: str) -> None:
        """Run a statement in a server that nobody can reach."""
        command = [self.programs / "postgres", "--single", "-D", self.data, "postgres"]
        options = {**build_account_options(), "stdin": None}
        subprocess.run(command, input=f"{statement};\n".encode(), capture_output=True, check=True, **options)

    def _remove_shared_memory(self) -> None:
        """Remove the one segment that a killed server leaves in the system."""
        with suppress(FileNotFoundError, IndexError):
            segment = (self.data / "postmaster.pid").read_text("utf-8").splitlines()[6].split()[1]
            subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)


def _quote(value: str) -> str:
    """Quote a value for a configuration file."""
    return "'" + value.replace("\\", r"\\").replace("'", "''") + "'"


def make_template(programs: Path) -> Path:
    """Make a data folder to copy, once for each version: a copy takes a tenth of the time."""
    template = _CACHE / _describe_version(programs).split()[2]
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            _initialize(programs, template)
    return template


def _initialize(programs: Path, template: Path) -> None:
    folder, unfinished = make_server_folder("initdb"), _CACHE / "unfinished"
    try:
        command = [programs / "initdb", "--pgdata", folder / "data", *_INITDB, *_COLLATION]
        options = {**build_account_options(), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, text=True, check=False, **options)
        assert done.returncode == 0, f"initdb failed:\n{done.stdout}"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(folder / "data", unfinished)
        os.rename(unfinished, template)
    finally:
        shutil.rmtree(folder)
