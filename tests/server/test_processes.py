"""Real server processes on real ports: killed at any instant, drained by one signal, stopped by a second one."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.exceptions import InvalidStatus

from tests.kit.server import Client, read_until
from tests.kit.sessions import PATIENCE
from tests.server.worker import ROOT, ServerForker, fake_model, start_forker

KILLS = 30
STEPS = 8
MODEL = f"steps-{STEPS}-tok-5-delay-1ms"


class ConnectionBroken(Exception):
    """The connection broke."""


class ReturningClient:
    """A client that reconnects after every kill and records each fact once."""

    def __init__(self, forker: ServerForker, spec: dict[str, str], dice: random.Random) -> None:
        self._forker, self._spec, self._dice = forker, spec, dice
        self.kills = 0

    async def round(self, number: int, most_kills: int) -> None:
        """Run one session to its end, with up to `most_kills` kills."""
        session_id, key, left = "", f"message-{number}", most_kills
        seen: list[dict[str, Any]] = []
        while True:
            base = self._forker.start(**self._spec)
            killing = asyncio.create_task(self._kill_later()) if left else None
            try:
                async with Client(base) as client:
                    session_id = session_id or await client.session(name=f"round {number}")
                    await self._work(client, session_id, key, seen)
                    if killing is not None:
                        killing.cancel()
                    return await self._check(client, session_id, seen)
            except (aiohttp.ClientError, ConnectionBroken):
                if killing is None or not killing.done():
                    raise
                self.kills += 1
                left -= 1
            finally:
                self._forker.kill()

    async def _kill_later(self) -> None:
        await asyncio.sleep(self._dice.uniform(0.0, 0.25))
        self._forker.kill()

    async def _work(self, client: Client, session_id: str, key: str, seen: list[dict[str, Any]]) -> None:
        """Send the message once, answer all questions, and watch to the end."""
        path = f"/v1/sessions/{session_id}/messages?wait=0"
        await client.json("POST", path, {"content": "go"}, headers={"Idempotency-Key": key})
        if seen and seen[-1]["type"] == "run_finished":  # the kill came after the end
            return
        headers = {"Last-Event-ID": str(seen[-1]["seq"])} if seen else {}
        for asked in (await client.json("GET", f"/v1/sessions/{session_id}"))["pending"]:
            await self._answer(client, asked["id"])
        async with client.stream(f"/v1/sessions/{session_id}/events", headers=headers) as events:
            async for one in events:
                if not one.id:
                    continue
                seen.append(one.data)
                if one.data["type"] == "approval_requested":
                    await self._answer(client, f"{session_id}.{one.data['call_id']}")
                if one.data["type"] == "run_finished":
                    return
        raise ConnectionBroken("the stream ended without an ending")

    async def _answer(self, client: Client, approval: str) -> None:
        async with client.request("POST", f"/v1/approvals/{approval}", json={"approved": True}) as answer:
            assert answer.status in (200, 409), await answer.text()

    async def _check(self, client: Client, session_id: str, seen: list[dict[str, Any]]) -> None:
        facts = await client.facts(session_id)
        assert seen == facts, "what was watched across the kills is not what the log has"
        assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
        kinds = Counter(fact["type"] for fact in facts)
        assert kinds["message_received"] == kinds["run_started"] == kinds["run_finished"] == 1
        assert kinds["approval_requested"] == kinds["approval_answered"] == 1
        assert facts[-1]["reason"] == "answered"
        done = Counter(fact["call_id"] for fact in facts if fact["type"] == "call_finished")
        assert len(done) == STEPS and set(done.values()) == {1}


async def test_a_server_killed_at_random_instants_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    side = tmp_path / "side.txt"
    side.touch()
    with fake_model() as port, start_forker() as made:
        spec = {"port": port, "model": MODEL, "store": str(tmp_path / "store.db"), "side": str(side)}
        witness = ReturningClient(made, spec, random.Random(6))
        rounds = 0
        while witness.kills < KILLS:  # how many rounds that takes is the machine's affair
            rounds += 1
            await witness.round(rounds, most_kills=4)
    marks = Counter(side.read_text().split())
    assert set(marks) <= {str(step) for step in range(STEPS)}
    assert all(count <= rounds for count in marks.values()), f"a call ran twice: {marks} in {rounds} rounds"


class ServerProcess:
    """`python -m treadle.server` as an operator starts it. Its grace period is longer than any test."""

    def __init__(self, folder: Path, port: str, model: str) -> None:
        tokens = folder / "tokens.json"
        tokens.write_text(json.dumps([{"name": "owner", "value": "a-token-for-the-tests", "rights": ["view", "send"]}]))
        tokens.chmod(0o600)
        command = [sys.executable, "-m", "treadle.server", "--port", "0", "--allow-root", "--model", model]
        command += ["--base-url", f"http://127.0.0.1:{port}/v1", "--store", str(folder / "store.db")]
        command += ["--workspace", str(folder), "--token-file", str(tokens), "--grace", "3600"]
        env = {**os.environ, "TREADLE_DATA_DIR": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=env)
        assert self.process.stderr is not None
        self.said = ""
        while "tokens for programs" not in self.said:
            line = self.process.stderr.readline()
            assert line, f"the server did not start: {self.said}"
            self.said += line
        found = re.search(r"serves (http://\S+)", self.said)
        assert found is not None
        self.base = found[1]

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        assert self.process.stderr is not None
        self.said += self.process.stderr.read()
        self.process.stderr.close()
        return code

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.wait()


async def test_a_signal_drains_the_server_and_the_next_server_continues(tmp_path: Path) -> None:
    with fake_model() as port:
        with ServerProcess(tmp_path, port, "steps-0-tok-100000-delay-10ms") as real:
            assert "a-token-for-the-tests" not in real.said and "/login?ticket=" in real.said
            async with Client(real.base, "a-token-for-the-tests") as client:
                session_id = await client.session()
                await client.json("POST", f"/v1/sessions/{session_id}/messages?wait=0", {"content": "talk"})
                async with client.stream(f"/v1/sessions/{session_id}/events") as events:
                    await read_until(events, type="text_delta")
                    real.process.send_signal(signal.SIGTERM)
                    comments = [one.comment async for one in events if one.comment]
                assert "shutting down" in comments[-1]
            real.process.send_signal(signal.SIGTERM)  # the turn would have minutes more to say
            assert real.wait() == 128 + signal.SIGTERM and "Traceback" not in real.said
        with ServerProcess(tmp_path, port, "steps-0-tok-3-delay-1ms") as again:
            async with (
                Client(again.base, "a-token-for-the-tests") as client,
                client.stream(f"/v1/sessions/{session_id}/events") as events,
            ):
                assert (await read_until(events, type="run_finished"))[-1]["reason"] == "answered"
                assert (await read_until(events, type="session_renamed"))[-1]["by"] == "auto"
                with pytest.raises(InvalidStatus):
                    await client.socket("/v1/nowhere")
            again.process.send_signal(signal.SIGTERM)
            assert again.wait() == 0 and "Traceback" not in again.said  # nothing runs: it waits for nothing
            assert "handshake" not in again.said  # a refused socket is no mistake of the server's
