"""A second server that follows a primary by streaming replication, and can take its place."""

import subprocess
from collections.abc import Mapping, Sequence

from tests.kit.postgres import USER, PostgresServer
from tests.kit.processes import build_account_options, wait_until


class Standby(PostgresServer):
    """A hot standby. The primary has to run when it is started for the first time.

    With `synchronous` the primary confirms a commit only when the standby has it too. `upstream_port` is that of a
    relay in front of the primary.
    """

    def __init__(
        self,
        primary: PostgresServer,
        *,
        synchronous: bool = False,
        name: str = "standby",
        upstream_port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.primary, self.name, self.synchronous = primary, name, synchronous
        self._source = f"host=127.0.0.1 port={upstream_port or primary.port} user={USER} application_name={name}"
        if primary.password:
            quoted = primary.password.replace("\\", r"\\").replace("'", r"\'")
            self._source += f" password='{quoted}'"
        following = {"primary_conninfo": self._source, "wal_retrieve_retry_interval": "200ms"}
        super().__init__(
            password=primary.password,
            max_connections=int(primary.settings["max_connections"]),
            settings={**following, **(settings or {})},
        )

    def start(self) -> None:
        """Start the standby. A synchronous one is waited for."""
        super().start()
        if self.synchronous and self.is_following():
            self.primary.configure(synchronous_standby_names=self.name)
            wait_until(self.is_in_sync)

    def is_following(self) -> bool:
        """Whether it is still a standby."""
        return self.query("SELECT pg_is_in_recovery()") == [(True,)]

    def is_in_sync(self) -> bool:
        """Whether the primary waits for it, so that nothing confirmed is lost when it takes over."""
        return self._ask_primary("sync_state IN ('sync', 'quorum')")

    def has_caught_up(self) -> bool:
        """Whether it shows all that the primary has written so far."""
        return self._ask_primary("replay_lsn >= pg_current_wal_lsn()")

    def promote(self) -> None:
        """Make it a primary, and wait until it takes writes. It waits for no other standby then."""
        self.configure(synchronous_standby_names="")
        assert self.query("SELECT pg_promote()") == [(True,)], self.read_log()

    def _ask_primary(self, condition: str) -> bool:
        statement = f"SELECT state = 'streaming' AND {condition} FROM pg_stat_replication WHERE application_name = %s"
        return self.primary.query(statement, self.name) == [(True,)]

    def _make_data(self) -> None:
        command = [self.programs / "pg_basebackup", "--pgdata", self.data, "--dbname", self._source]
        command += ["--checkpoint=fast", "--wal-method=stream", "--no-sync"]
        options = {**build_account_options(), "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, text=True, check=False, **options)
        assert done.returncode == 0, f"pg_basebackup failed:\n{done.stdout}"
        (self.data / "standby.signal").touch()


def build_shared_url(servers: Sequence[PostgresServer], database: str = "postgres") -> str:
    """Build a URL with several hosts, as libpq takes it: whoever connects gets the one that takes writes."""
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    url = servers[0].build_url(database).replace(f"127.0.0.1:{servers[0].port}", hosts)
    return f"{url}?target_session_attrs=read-write"
