"""The example of a cluster in `deploy` fits the program, and its scripts set up real servers. Docker is not needed."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.kit.fakes.chat import StrictChat
from tests.kit.obedient_provider import answer_request
from tests.kit.pgbouncer import PROGRAM, needs_pgbouncer
from tests.kit.postgres import find_programs, needs_postgres
from tests.kit.processes import (
    PATIENCE,
    Guard,
    ServerProcess,
    build_account_options,
    find_free_port,
    hand_over,
    make_server_folder,
    wait_until,
)
from tests.kit.serve_process import start_process, write_tokens
from tests.kit.server import Client
from treadle.cli import serve
from treadle.secrets.store_url import parse_postgres_url
from treadle.server.tokens import load_tokens

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SETTINGS = {"POSTGRES_PASSWORD": "a1b2c3d4e5f6a1b2c3d4", "TREADLE_TOKEN": "token-of-the-balancer-0001"}
NODES = ("node1", "node2", "node3")
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def interpolate(text: str, values: Mapping[str, str]) -> str:
    """Fill in variables as Compose does. One without a value and a default is an error."""

    def fill(found: re.Match[str]) -> str:
        name, kind, default = found.groups()
        assert name in values or kind == "-", f"{name} needs a value"
        return values.get(name) or default or ""

    return _VARIABLE.sub(fill, text)


def read_compose(**values: str) -> dict[str, Any]:
    return yaml.safe_load(interpolate((DEPLOY / "compose.yaml").read_text("utf-8"), {**SETTINGS, **values}))


COMPOSE = read_compose()
SERVICES: dict[str, Any] = COMPOSE["services"]


# ── it fits the program ──────────────────────────────────────────────────────────────────────────────────


def test_it_starts_three_nodes_a_primary_a_standby_a_pooler_and_a_balancer() -> None:
    assert set(SERVICES) == {*NODES, "balancer", "pooler", "primary", "standby"}


@pytest.mark.parametrize("name", NODES)
def test_the_options_of_a_node_are_those_of_the_program(name: str) -> None:
    service = SERVICES[name]
    command, *options = service["command"]
    assert command == "serve"
    parsed = serve.parser().parse_args(options)
    assert (parsed.host, parsed.port, parsed.root, parsed.workspace) == ("0.0.0.0", 8420, ["/work"], "/work")
    assert int(service["stop_grace_period"].removesuffix("s")) > parsed.grace
    assert parsed.token_file in {config["target"] for config in service["configs"]}


def test_a_node_finds_the_pooler_and_both_servers() -> None:
    url = parse_postgres_url(SERVICES["node1"]["environment"]["TREADLE_STORE"])
    assert "@pooler:6432/treadle" in url.connect
    assert "@primary:5432,standby:5432/treadle" in url.listen
    assert url.password == "", "it is in a private file"
    private = {config["source"]: config for config in SERVICES["node1"]["configs"]}
    assert private["pgpass"]["target"] == "/home/treadle/.pgpass"
    assert {config["mode"] for config in private.values()} == {0o600}


def test_a_node_reads_the_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.touch(mode=0o600)
    file.write_text(COMPOSE["configs"]["tokens"]["content"], "utf-8")
    assert [token.value for token in load_tokens(file)] == [SETTINGS["TREADLE_TOKEN"]]


def test_every_file_volume_and_service_that_is_named_exists() -> None:
    for name, service in SERVICES.items():
        assert {config["source"] for config in service.get("configs", ())} <= set(COMPOSE["configs"])
        assert set(service.get("depends_on", ())) <= set(SERVICES), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"], volume
        if build := service.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    balanced = re.findall(r"^ +server (\S+) (\S+):8420$", (DEPLOY / "haproxy.cfg").read_text("utf-8"), re.MULTILINE)
    assert balanced == [(name, name) for name in NODES]


def test_the_image_of_the_nodes_has_the_driver() -> None:
    assert "postgres]" in (ROOT / "packaging" / "Dockerfile").read_text("utf-8")


# ── it works ─────────────────────────────────────────────────────────────────────────────────────────────


class Servers:
    """A primary and a standby, set up by the scripts as the image of PostgreSQL does it, and the pooler."""

    def __init__(self) -> None:
        programs = find_programs()
        assert programs is not None
        self.programs = programs
        self.folder = make_server_folder("deploy")
        self.ports = {name: find_free_port() for name in ("primary", "standby", "pooler")}
        self.processes: dict[str, ServerProcess] = {}
        self.guards: list[Guard] = []
        for script in DEPLOY.glob("*.sh"):
            shutil.copy(script, self.folder)
        hand_over(self.folder)

    def start(self) -> None:
        self.start_primary()
        self.start_standby()
        self.start_pooler()

    def start_primary(self) -> None:
        """Make a database, run the script in a server that only it reaches, and start the real one."""
        secret = self.folder / "secret"
        secret.write_text(SETTINGS["POSTGRES_PASSWORD"], "utf-8")
        hand_over(self.folder)
        data = self.folder / "primary"
        self.run("initdb", "--username=postgres", f"--pwfile={secret}", "--auth-host=scram-sha-256", f"--pgdata={data}")
        local = f"-c listen_addresses='' -c unix_socket_directories={self.folder}"
        self.run(
            "pg_ctl", "-D", str(data), "-o", f"-p {self.ports['primary']} {local}", "-w", "-l", f"{data}.log", "start"
        )
        self.run("sh", str(self.folder / "primary.sh"), name="primary")
        self.run("pg_ctl", "-D", str(data), "-w", "stop")
        command = SERVICES["primary"]["command"]
        self.launch(
            "primary", [str(self.programs / command[0]), "-D", str(data), *command[1:], *self.limit_to_loopback()]
        )

    def start_standby(self) -> None:
        command = ["sh", str(self.folder / "standby.sh"), *self.limit_to_loopback()]
        self.launch("standby", command, {"PRIMARY": "127.0.0.1", "PRIMARY_PORT": str(self.ports["primary"])})

    def start_pooler(self, behind: str = "primary") -> None:
        content = read_compose(PRIMARY="127.0.0.1")["configs"]["pgbouncer"]["content"]
        for old, new in (
            ("port=5432", f"port={self.ports[behind]}"),
            ("listen_addr = *", f"listen_addr = 127.0.0.1\nunix_socket_dir = {self.folder}"),
            ("6432", str(self.ports["pooler"])),
            ("/etc/pgbouncer/", f"{self.folder}/"),
        ):
            assert old in content
            content = content.replace(old, new)
        (self.folder / "pgbouncer.ini").write_text(content, "utf-8")
        (self.folder / "users.txt").write_text(COMPOSE["configs"]["pgbouncer_users"]["content"], "utf-8")
        self.launch("pooler", [PROGRAM, str(self.folder / "pgbouncer.ini")])

    def limit_to_loopback(self) -> list[str]:
        return ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]

    def build_environment(self, name: str) -> dict[str, str]:
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PGDATA": str(self.folder / name),
            "PGPORT": str(self.ports[name]),
            "PGHOST": str(self.folder),
            "POSTGRES_PASSWORD": SETTINGS["POSTGRES_PASSWORD"],
            "PGPASSWORD": SETTINGS["POSTGRES_PASSWORD"],
        }

    def run(self, *command: str, name: str = "primary") -> None:
        options: dict[str, Any] = build_account_options()
        options["env"] = {**options["env"], **self.build_environment(name)}
        done = subprocess.run(
            command, **options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout)

    def launch(self, name: str, command: list[str], more: Mapping[str, str] | None = None) -> None:
        guard = Guard(self.folder, "QUIT")
        self.guards.append(guard)
        environment = {**self.build_environment(name), **(more or {})}
        values = [f"{key}={value}" for key, value in environment.items()]
        self.processes[name] = ServerProcess(["env", *values, *command], self.folder / f"{name}.log", guard)
        wait_until(lambda: self.can_connect(name))

    def can_connect(self, name: str) -> bool:
        assert self.processes[name].is_running(), (self.folder / f"{name}.log").read_text("utf-8")
        try:
            psycopg.connect(self.build_url(name), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def build_url(self, name: str) -> str:
        return f"postgresql://treadle:{SETTINGS['POSTGRES_PASSWORD']}@127.0.0.1:{self.ports[name]}/treadle"

    def query(self, name: str, statement: str) -> list[tuple[Any, ...]]:
        """Ask a server as its administrator, through its socket."""
        where = {"host": str(self.folder), "port": self.ports[name], "user": "postgres", "dbname": "postgres"}
        with psycopg.connect(**where, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def remove(self) -> None:
        for process in self.processes.values():
            if process.is_running():
                process.kill()
        shutil.rmtree(self.folder)
        for guard in self.guards:
            guard.dismiss()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    try:
        made.start()
        yield made
    finally:
        made.remove()


@needs_postgres
@needs_pgbouncer
async def test_the_servers_are_set_up_and_nodes_go_on_at_the_standby(servers: Servers, tmp_path: Path) -> None:
    following = "SELECT application_name, sync_state FROM pg_stat_replication"
    wait_until(lambda: servers.query("primary", following) == [("standby", "sync")])
    rights = "SELECT rolsuper OR rolcreaterole OR rolreplication FROM pg_roles WHERE rolname = 'treadle'"
    assert servers.query("primary", rights) == [(False,)], "the nodes have a user without special rights"
    listen = f"127.0.0.1:{servers.ports['primary']},127.0.0.1:{servers.ports['standby']}"
    store = f"{servers.build_url('pooler')}?listen={listen}"
    options = ("--lease=2", "--store", store)
    async with StrictChat(answer_request) as provider:
        homes = [tmp_path / name for name in NODES]
        for home in homes:
            write_tokens(home, *json.loads(COMPOSE["configs"]["tokens"]["content"]))
        async with (
            start_process(homes[0], provider, *options) as one,
            start_process(homes[1], provider, *options) as two,
            start_process(homes[2], provider, *options) as three,
            Client(one.address, one.token) as first,
            Client(two.address, two.token) as second,
            Client(three.address, three.token) as third,
        ):
            session_id = await first.session()
            answer = await second.send(session_id, "say: on the primary")
            assert answer["reply"] == "on the primary"
            servers.processes["primary"].kill()
            assert servers.query("standby", "SELECT pg_promote()") == [(True,)]
            servers.processes["pooler"].stop(signal.SIGTERM)
            servers.start_pooler(behind="standby")  # PRIMARY=standby docker compose up pooler
            await wait_until_ready(third)
            answer = await third.send(session_id, "say: on the standby")
            assert answer["reply"] == "on the standby"
            messages = (await first.json("GET", f"/v1/sessions/{session_id}"))["messages"]
            assert [one["role"] for one in messages] == ["user", "assistant"] * 2
            log = one.read_log() + two.read_log() + three.read_log()
            assert SETTINGS["POSTGRES_PASSWORD"] not in log


async def wait_until_ready(client: Client) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            async with client.request("GET", "/ready") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)
