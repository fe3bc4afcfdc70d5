"""The rows of the pickers, the user's status line, and what a first start keeps."""

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from tests.kit import sessions as kit
from tests.kit.terminal import wait_until
from treadle.app import first_model
from treadle.app.settings import Settings, load_settings
from treadle.cli import status_script
from treadle.cli.picker_rows import list_agent_rows, list_model_rows, list_session_rows
from treadle.cli.status_script import StatusScript, clean_line, run_status_command
from treadle.errors import BadInput
from treadle.log.in_memory import InMemoryLog
from treadle.messages import Json
from treadle.models.providers import list_key_variables
from treadle.secrets.keyring import Keyring
from treadle.testing import call
from treadle.tools.delegate import build_delegate_tool


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing to use: no key, no server, no weights, an empty home."""
    for name in list_key_variables():
        monkeypatch.delenv(name, raising=False)
    for name in ("OLLAMA_HOST", "LLAMACPP_BASE_URL", "LMSTUDIO_BASE_URL", "VLLM_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TREADLE_CONFIG", str(tmp_path / "config.toml"))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a status command take as long as a slow machine needs."""
    monkeypatch.setattr(status_script, "LIMIT_SECONDS", kit.PATIENCE)


async def serve(models: list[str], status: int = 200) -> tuple[web.AppRunner, str]:
    """Serve a list of models on this machine."""

    async def list_models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in models]}, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", list_models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


@pytest.mark.usefixtures("no_models")
async def test_models_say_what_is_reachable_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, url = await serve(["tiny"])
    monkeypatch.setenv("LMSTUDIO_BASE_URL", url)
    keyring = Keyring((), {"ANTHROPIC_API_KEY": "sk-of-a-test"})
    rows = await list_model_rows(Settings(model="groq:x"), keyring, current="lmstudio:tiny")
    await runner.cleanup()
    by_value = {row.value: row for row in rows}
    assert [row.value for row in rows][:2] == ["lmstudio:tiny", "groq:x"]
    assert rows[0].facts[0] == "now" and rows[1].facts[0] == "your default"
    [claude] = [row for row in rows if row.value.startswith("anthropic:") and not row.problem]
    assert claude.facts[0] == "ANTHROPIC_API_KEY is set"
    assert "no key: set OPENAI_API_KEY" in by_value["openai:NAME"].problem
    assert "nothing listens on" in by_value["ollama:NAME"].problem and "ollama serve" in by_value["ollama:NAME"].problem
    reachable = [not row.problem for row in rows]
    assert reachable == sorted(reachable, reverse=True)


@pytest.mark.usefixtures("no_models")
async def test_with_an_address_of_their_own_the_models_are_those_that_the_server_lists() -> None:
    runner, url = await serve(["fake", "other"])
    keyring = Keyring((), {"ANTHROPIC_API_KEY": "sk-of-a-test", "OPENAI_API_KEY": "sk-of-a-test"})
    settings = Settings(model="openai:fake", base_url=url)
    rows = await list_model_rows(settings, keyring, current="openai:fake")
    assert [(row.value, row.facts[0]) for row in rows] == [("openai:fake", "now"), ("openai:other", f"at {url}")]
    rows = await list_model_rows(Settings(base_url=url), keyring, current="fake")
    assert [row.value for row in rows] == ["fake", "other"]
    await runner.cleanup()
    rows = await list_model_rows(settings, keyring, current="openai:fake")
    assert [row.value for row in rows] == ["openai:fake", "openai:NAME"]
    assert f"{url} does not answer" in rows[1].problem


async def test_a_server_that_never_answers_does_not_hold_up_the_list_of_models() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts connections and reads nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        rows = await list_model_rows(Settings(model="m", base_url=url), Keyring((), {}), "m")
    assert "does not answer" in rows[-1].problem


def test_agents_come_from_the_folder_and_the_user(tmp_path: Path) -> None:
    folder = tmp_path / ".treadle" / "agents"
    folder.mkdir(parents=True)
    (folder / "reviewer.md").write_text("---\ndescription: reads diffs\nposture: cautious\n---\nReview.")
    rows = list_agent_rows(tmp_path, "default", available=["default", "reviewer"])
    assert rows[0].value == "default" and rows[0].facts[0] == "now"
    reviewer = next(row for row in rows if row.value == "reviewer")
    assert reviewer.facts == ("cautious", "of this folder") and reviewer.passage == "reads diffs"
    assert rows[-1].problem


async def test_sessions_are_listed_without_helpers_and_those_that_wait_first(tmp_path: Path) -> None:
    log = InMemoryLog()
    asking, _ = kit.build_agent(kit.DROP, "done", tools=kit.Tables().tools, gate=kit.later)
    async with asking.session(log, new=True, workspace=tmp_path) as waiting:
        await kit.run_message(waiting, "drop the\nusers")
    await asyncio.sleep(0)
    agent, _ = kit.build_agent(call("delegate", id="d", task="task"), "helped", "done", tools=[build_delegate_tool()])
    async with agent.session(log, new=True, workspace=tmp_path) as session:
        await kit.run_to_end(session, "delegate it")
    rows = await list_session_rows(log, tmp_path)
    assert [row.value for row in rows] == [waiting.id, session.id]
    assert rows[0].facts[0] == "needs you" and rows[0].label == "drop the users"
    assert rows[1].passage == "delegate it" and "ago" in rows[1].facts[1]
    assert not await list_session_rows(log, tmp_path / "elsewhere")
    assert len(await list_session_rows(log, current=session.id)) == 1


# ── the user's status line ─────────────────────────────────────────────────────────────────────────────────


async def test_a_status_command_gets_facts_and_its_first_line_is_shown(patient: None) -> None:
    script = StatusScript("cat; echo; echo second")
    assert await script.update({"access": "plan"}) == "" and script.line == '{"access": "plan"}'
    assert await script.update({"access": "full"}) == "" and script.line == '{"access": "plan"}'  # it ran just now


def test_a_status_command_gets_no_keys_and_no_programs_of_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    facts: dict[str, Json] = {"folder": str(tmp_path)}
    assert run_status_command("echo key=$OPENAI_API_KEY home=$HOME", facts) == f"key= home={os.environ['HOME']}"
    assert str(tmp_path) not in run_status_command("echo $PATH", facts)


@pytest.mark.parametrize(
    ("command", "why"), [("exit 3", "code 3"), ("head -c 9999999 /dev/zero | tr '\\0' x", "longer than")]
)
async def test_a_status_command_that_fails_or_floods_is_noted_once(
    command: str, why: str, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_script, "PAUSE_SECONDS", 0)
    script = StatusScript(command)
    assert why in await script.update({}) and script.line == ""
    assert await script.update({}) == ""


async def test_a_status_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def is_over() -> bool:
        with suppress(BlockingIOError):  # a process still has the other end
            return os.read(reader, 1) == b""
        return False

    script = StatusScript(f"exec 3> {fifo}; (while :; do sleep 0.05; done) & wait")
    assert "more than 0.3 s" in await script.update({}) and script.line == ""
    await wait_until(is_over, "the end of every process")
    os.close(reader)


def test_a_status_line_keeps_styles_and_nothing_else() -> None:
    assert clean_line("\x1b[1;31mred\x1b[0m\x1b]0;title\x07\x1b[2J\nmore") == (
        "\x1b[1;31mred\x1b[0m\\x1b]0;title\\x07\\x1b[2J\x1b[0m"
    )


def test_a_workspace_cannot_set_the_status_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".treadle").mkdir()
    (tmp_path / ".treadle" / "config.toml").write_text('[terminal]\nstatus_command = "touch hacked"\n')
    user = tmp_path / "user.toml"
    monkeypatch.setenv("TREADLE_CONFIG", str(user))
    loaded = load_settings({"workspace": str(tmp_path)})
    assert loaded.settings.terminal.status_command == "" and "terminal is ignored" in loaded.ignored[0]
    user.write_text('[terminal]\nstatus_command = "date"\n')
    assert load_settings({"workspace": str(tmp_path)}).settings.terminal.status_command == "date"


# ── the first start ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("no_models")
async def test_a_first_start_offers_choices_only_when_there_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [choice.value for choice in await first_model.find_choices(Settings(), Keyring((), {}))]
    assert offered == ["local", "anthropic", "openai", "address"]
    assert await first_model.find_choices(Settings(model="local"), Keyring((), {})) == []
    assert await first_model.find_choices(Settings(), Keyring((), {"OPENAI_API_KEY": "sk-of-a-test"})) == []


@pytest.mark.usefixtures("no_models")
async def test_a_key_is_checked_and_kept_for_the_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing, url = await serve([], status=401)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    with pytest.raises(BadInput, match="refuses this key"):
        await first_model.save_key("anthropic", "sk-wrong", Keyring((), {}))
    assert not (tmp_path / "data").exists() and not (tmp_path / "config.toml").exists()
    await refusing.cleanup()
    accepting, url = await serve(["claude"])
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    note = await first_model.save_key("anthropic", "sk-right", Keyring((), {}))
    with pytest.raises(BadInput, match="nothing was saved"):
        await first_model.save_address("http://127.0.0.1:9/v1", Keyring((), {}))
    await accepting.cleanup()
    file = tmp_path / "data" / "keys" / "anthropic"
    assert file.read_text() == "sk-right" and stat.S_IMODE(os.stat(file).st_mode) == 0o600
    settings = load_settings({"workspace": str(tmp_path)}).settings
    assert settings.api_key_file == str(file) and settings.model.startswith("anthropic:")
    assert "sk-right" not in note and "sk-right" not in (tmp_path / "config.toml").read_text()
