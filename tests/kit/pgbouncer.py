"""A real PgBouncer in transaction mode in front of a server, run by an ordinary user."""

import shutil
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from shutil import which
from typing import Any, Self

import psycopg
import pytest

from tests.kit import postgres
from tests.kit.postgres import USER, PostgresServer
from tests.kit.processes import Guard, ServerProcess, find_free_port, hand_over, make_server_folder, wait_until

PROGRAM = which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") or ""


def find_missing_part() -> str:
    """Why a pooler cannot be tested here, or nothing."""
    if not PROGRAM:
        return "there is no PgBouncer: make system, or apt-get install pgbouncer"
    return postgres.find_missing_part()


needs_pgbouncer = pytest.mark.skipif(find_missing_part() != "", reason=f"NOT TESTED, {find_missing_part()}")


class PgBouncer:
    """A pooler on a port of its own. A transaction may get another server connection than the one before.

    The settings are PgBouncer's own, except that it tries again after a second when the server was away.
    """

    def __init__(
        self,
        server: PostgresServer,
        *,
        pool_size: int = 20,
        upstream_port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.server = server
        self.folder = make_server_folder("pgbouncer")
        self.log = self.folder / "server.log"
        self.port = find_free_port()
        self._guard = Guard(self.folder)
        self._process: ServerProcess | None = None
        self._upstream_port = upstream_port or server.port
        self._settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": str(self.folder),
            "auth_file": str(self.folder / "users"),
            "auth_type": "scram-sha-256" if server.password else "trust",
            "admin_users": USER,
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
            "max_client_conn": "1000",
            "server_login_retry": "1",
            "ignore_startup_parameters": "extra_float_digits",
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
        """Start the pooler, and wait until it accepts connections."""
        self._write_files()
        self._process = ServerProcess([PROGRAM, str(self.folder / "pgbouncer.ini")], self.log, self._guard)
        wait_until(self._is_ready)

    def stop(self) -> None:
        """Stop the pooler. It ends all connections at once."""
        self.process.stop(signal.SIGTERM)

    def restart(self) -> None:
        """Stop the pooler where it runs, and start it again on the same port."""
        if self.process.is_running():
            self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the pooler at once. `start` starts it again."""
        self.process.kill()

    def freeze(self) -> None:
        """Stop the pooler where it is. Connections stay open, and nothing answers."""
        self.process.freeze()

    def thaw(self) -> None:
        """Let a frozen pooler continue."""
        self.process.thaw()

    def remove(self) -> None:
        """Stop the pooler, and remove its folder."""
        if self._process is not None and self._process.is_running():
            self._process.kill()
        shutil.rmtree(self.folder)
        self._guard.dismiss()

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "the pooler was never started"
        return self._process

    # --- what tests ask it

    def build_url(self, database: str = "postgres") -> str:
        """Build the URL of a database behind the pooler."""
        return self.server.build_url(database, port=self.port)

    def point_at(self, server: PostgresServer) -> None:
        """Send the next transactions to another server, as after a failover."""
        self.server, self._upstream_port = server, server.port
        self._write_files()
        self.query("RELOAD")

    def query(self, command: str) -> list[dict[str, Any]]:
        """Run a command in the admin console, such as `SHOW POOLS`, and return its rows."""
        options: dict[str, Any] = {"autocommit": True, "row_factory": psycopg.rows.dict_row}
        with psycopg.connect(self.build_url("pgbouncer"), **options) as connection:
            cursor = connection.execute(command)
            return cursor.fetchall() if cursor.description else []

    def read_log(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    # --- how it is done

    def _is_ready(self) -> bool:
        assert self.process.is_running(), f"PgBouncer did not start:\n{self.read_log()}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def _write_files(self) -> None:
        password = self.server.password.replace('"', '""')
        (self.folder / "users").write_text(f'"{USER}" "{password}"\n', "utf-8")
        lines = ["[databases]", f"* = host=127.0.0.1 port={self._upstream_port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in self._settings.items()]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n", "utf-8")
        hand_over(self.folder)
