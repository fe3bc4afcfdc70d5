"""No secret gets into a fact, a delta, an artifact or a child process: results of tools are redacted first."""

import asyncio
import subprocess
import sys

import pytest

from tests.kit.sessions import build_agent, run_to_end
from treadle import Agent, ToolContext, tool
from treadle.errors import BadInput
from treadle.events import CallFinished, Event, OutputDelta, serialize_event
from treadle.messages import Call, Reply
from treadle.secrets.keyring import Keyring

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
    agent, model = build_agent(Reply(calls=calls), "done", tools=[leak], secrets=secrets)
    shown: list[Event] = []
    async with agent.session() as session:
        watch = session.watch()

        async def look() -> None:
            async for event in watch:
                shown.append(event)

        looking = asyncio.create_task(look())
        await run_to_end(session)
        facts = await session.facts()
        cut = [fact.truncation for fact in facts if isinstance(fact, CallFinished)]
        artifacts = [one.artifact for one in cut if one is not None]
        whole = b"".join([(await session.artifact(one)).data for one in artifacts])
        watch.close()
        await looking
    assert artifacts and b"[secret]" in whole
    live = "".join(event.text for event in shown if isinstance(event, OutputDelta)).encode()
    seen = b"".join(map(serialize_event, (*facts, *shown))) + whole + live + str(model.requests).encode()
    assert seen.count(b"[secret]") >= 5 and b"and more" in seen
    assert CANARY.encode() not in seen


def test_a_keyring_hides_secret_variables_and_lets_short_words_and_other_names_be() -> None:
    environ = {"ACME_TOKEN": "development", "MONKEY": "a-long-enough-value", "ACME_PASSWORD": "canary-in-acme"}
    redactor = Keyring(["my own secret"], environ).redactor
    text = "development of a-long-enough-value"
    assert redactor.redact_text(f"{text} canary-in-acme my own secret") == f"{text} [secret] [secret]"


def test_a_keyring_takes_keys_out_of_the_environment_and_still_finds_and_hides_them() -> None:
    environ = {"ACME_API_KEY": "canary-in-acme", "EMPTY_KEY": "", "PATH": "/bin"}
    keyring = Keyring(environ=environ)
    keyring.take(["ACME_API_KEY", "EMPTY_KEY", "NO_SUCH_KEY"])
    keyring.add("FILE_API_KEY", "canary-in-file")
    assert environ == {"PATH": "/bin"}
    assert (keyring.get("ACME_API_KEY"), keyring.get("FILE_API_KEY")) == ("canary-in-acme", "canary-in-file")
    assert keyring.get("NO_SUCH_KEY") == ""
    assert "canary" not in keyring.redactor.redact_text("canary-in-acme canary-in-file")


def test_an_agent_resolves_its_model_with_the_keys_of_its_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    keyring = Keyring()
    keyring.take(["OPENAI_API_KEY"])
    assert Agent("openai:some-model", secrets=keyring).resolve_model().name == "openai:some-model"
    with pytest.raises(BadInput, match="OPENAI_API_KEY is not set"):
        Agent("openai:some-model").resolve_model()


def test_no_other_process_sees_the_keys_of_a_program_that_took_them() -> None:
    code = """
import os, subprocess, sys
from treadle.models.catalog import resolve_model
from treadle.secrets.keyring import Keyring, forbid_memory_inspection
keyring = Keyring()
keyring.take(["OPENAI_API_KEY", "ACME_PASSWORD"])
forbid_memory_inspection()
assert not {"OPENAI_API_KEY", "ACME_PASSWORD"} & set(os.environ)
model = resolve_model("openai:some-model", keyring=keyring)
child = subprocess.run([sys.executable, "-c", "import os; print(dict(os.environ))"], capture_output=True, text=True)
assert "canary" not in child.stdout + child.stderr and child.stdout
assert os.getuid() == 0 or not os.access(f"/proc/{os.getpid()}/environ", os.R_OK)
print("ok")
"""
    env = {"OPENAI_API_KEY": "canary-in-openai", "ACME_PASSWORD": "canary-in-acme", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "ok\n", done.stderr
