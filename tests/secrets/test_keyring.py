"""No secret in a fact, a delta, an artifact or a child: what tools give back is redacted before anyone is told."""

import asyncio
import subprocess
import sys

import pytest

from tests.kit.sessions import agent_of, ended
from treadle import ToolContext, tool
from treadle.events import CallFinished, serialize_event
from treadle.messages import Call, Reply
from treadle.secrets.keyring import build_redactor

CANARY = "canary-5f3a9c1e7b"


@tool(safety="safe")
async def leak(how: str, context: ToolContext) -> str:
    """Give a secret away, in one way or another."""
    if how == "raise":
        raise RuntimeError(f"the key was {CANARY}")
    if how == "note":
        await context.services.save_note("acme.note", {"key": [CANARY]})
        return "noted"
    if how == "live":
        context.progress(f"using {CANARY}")
        for piece in (CANARY[:5], CANARY[5:9], CANARY[9:], " and more"):
            context.output(piece)
            await asyncio.sleep(0)
        return "shown"
    return f"{CANARY} " * (3000 if how == "long" else 1)


@pytest.mark.parametrize("given", ["environment", "agent"])
async def test_no_secret_in_the_result_of_a_tool_is_stored_or_shown(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given == "environment":
        monkeypatch.setenv("ACME_API_KEY", CANARY)
    calls = tuple(Call("", "leak", f'{{"how": "{how}"}}') for how in ("plain", "long", "raise", "note", "live"))
    secrets = [CANARY] if given == "agent" else []
    agent, model = agent_of(Reply(calls=calls), "done", tools=[leak], secrets=secrets)
    shown: list[bytes] = []
    async with agent.session() as session:
        watch = session.watch()

        async def look() -> None:
            async for event in watch:
                shown.append(serialize_event(event))

        looking = asyncio.create_task(look())
        await ended(session)
        facts = await session.facts()
        cut = [fact.truncation for fact in facts if isinstance(fact, CallFinished)]
        artifacts = [one.artifact for one in cut if one is not None]
        whole = b"".join([(await session.artifact(one)).data for one in artifacts])
        watch.close()
        await looking
    assert artifacts and b"[secret]" in whole
    told = b"".join(map(serialize_event, facts)) + whole + b"".join(shown) + str(model.requests).encode()
    assert told.count(b"[secret]") >= 5 and b"and more" in told
    assert CANARY.encode() not in told


def test_short_words_in_the_environment_are_no_secrets_and_other_names_are_let_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_TOKEN", "development")
    monkeypatch.setenv("MONKEY", "a-long-enough-value")
    text = "development of a-long-enough-value"
    assert build_redactor().redact_text(text) == text


def test_a_program_that_shuts_its_keys_away_still_finds_them_and_nobody_else_does() -> None:
    code = """
import os, subprocess, sys
from treadle.secrets.keyring import redactor_for, shut_away
from treadle.models.catalog import resolve
shut_away("ACME_PASSWORD")
assert not {"OPENAI_API_KEY", "ACME_PASSWORD"} & set(os.environ)
model = resolve("openai:some-model")
child = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True, text=True)
assert "canary" not in child.stdout + child.stderr and child.stdout
assert "canary" not in redactor_for().text("canary-in-openai canary-in-acme")
assert os.getuid() == 0 or not os.access(f"/proc/{os.getpid()}/environ", os.R_OK)
print("ok")
"""
    env = {"OPENAI_API_KEY": "canary-in-openai", "ACME_PASSWORD": "canary-in-acme", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "ok\n", done.stderr
