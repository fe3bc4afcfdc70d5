"""A real server whose store cannot be written: another process is frozen in a write, or the disk is full."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.children import wait_until
from tests.kit.fakes.chat import StrictChat
from tests.kit.serve_process import start_server
from tests.kit.server import Client
from tests.kit.small_disk import fill_disk, mount_small_disk
from treadle.messages import Reply

REPLIES = [Reply(text="first"), Reply(text="second")]
SHORT_WAIT = (
    *(sys.executable, "-c"),
    "import sys; from treadle.log.sqlite import SqliteLog; SqliteLog.__init__.__kwdefaults__['busy_timeout'] = 1.5; "
    "from treadle.cli.main import main; sys.exit(main())",
)
"""treadle, which waits for a lock for a short time only."""
HOLD = """import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()"""


@contextmanager
def freeze_in_write(store: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that takes the write lock and is stopped then."""
    command = [sys.executable, "-c", HOLD, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        wait_until(lambda: Path(f"/proc/{holder.pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] == "T")
        try:
            yield holder
        finally:
            holder.kill()


async def wait_for_readiness(client: Client, status: int) -> Any:
    """Ask until the answer has that status. A result is kept for two seconds."""
    async with asyncio.timeout(60):
        while True:
            async with client.request("GET", "/ready") as answer:
                if answer.status == status:
                    return await answer.json()
            await asyncio.sleep(0.1)


async def test_a_process_frozen_in_a_write_stops_neither_reads_nor_streams(tmp_path: Path) -> None:
    async with (
        StrictChat(REPLIES) as provider,
        start_server(tmp_path, provider, program=SHORT_WAIT) as (base, token),
        Client(base, token) as client,
    ):
        session_id = await client.session(name="named")
        assert (await client.send(session_id, "one"))["reply"] == "first"
        before = await client.facts(session_id)
        key = {"idempotency-key": "two"}
        with freeze_in_write(tmp_path / "store.db") as holder:
            post = asyncio.create_task(client.send(session_id, "two", status=503, headers=key))
            async with client.stream(f"/v1/sessions/{session_id}/events") as events:
                assert [(await anext(events)).id for _ in before] == [str(fact["seq"]) for fact in before]
            for path in ("/health", "/v1/sessions", f"/v1/sessions/{session_id}", "/v1/memory", "/v1/sessions?q=first"):
                await client.json("GET", path)
            assert not post.done(), "the reads waited for the writer"
            ready = await wait_for_readiness(client, 503)
            assert list(ready["problems"]) == ["store"] and f"by process {holder.pid}" in ready["problems"]["store"]
            error = (await post)["error"]
            assert error["type"] == "store" and f"process {holder.pid}" in error["message"]
            assert "which is stopped; nothing was written" in error["message"]
            assert await client.facts(session_id) == before
            holder.send_signal(signal.SIGCONT)
            holder.communicate("\n", timeout=60)
        for _ in range(2):
            assert (await client.send(session_id, "two", headers=key))["reply"] == "second"
        stored = [fact["type"] for fact in await client.facts(session_id)]
        assert stored.count("message_received") == stored.count("run_finished") == 2
        assert (await wait_for_readiness(client, 200))["ready"]


async def test_a_full_disk_is_reported_before_it_refuses_facts_and_when_it_does(tmp_path: Path) -> None:
    with mount_small_disk(tmp_path / "disk", 64) as disk:
        async with (
            StrictChat(REPLIES) as provider,
            start_server(tmp_path, provider, "--store", str(disk / "store.db")) as (base, token),
            Client(base, token) as client,
        ):
            session_id = await client.session(name="named")
            assert (await client.send(session_id, "one"))["reply"] == "first"
            assert (await wait_for_readiness(client, 200))["checks"]["disk"] == "ok"
            filler = fill_disk(disk)
            ready = await wait_for_readiness(client, 503)
            assert list(ready["problems"]) == ["disk"] and "MiB are left on the disk" in ready["problems"]["disk"]
            refused = (await client.send(session_id, "x" * 1_000_000, status=503))["error"]
            assert "no room left on the disk" in refused["message"]
            assert await client.json("GET", "/health") == {"status": "ok"}
            assert "named" in str(await client.json("GET", "/v1/sessions"))
            filler.write_bytes(bytes(40 << 20))
            assert (await client.send(session_id, "two"))["reply"] == "second"
            await wait_for_readiness(client, 503)  # there is room for a fact, but not for many
            filler.unlink()
            assert (await wait_for_readiness(client, 200))["ready"]
