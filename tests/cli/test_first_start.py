"""The first start on a terminal: an empty home without a key, a server or weights."""

import asyncio
import hashlib
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.test_picker_rows import serve
from tests.kit.terminal import Place, wait_until
from treadle.cli import first_start
from treadle.models.local import weights
from treadle.secrets.keyring import Keyring

NO_SERVERS = dict.fromkeys(
    ("OLLAMA_HOST", "LLAMACPP_BASE_URL", "LMSTUDIO_BASE_URL", "VLLM_BASE_URL"), "http://127.0.0.1:9"
)


async def test_a_first_start_offers_the_choices_and_keeps_a_key_that_is_not_shown(place: Place) -> None:
    runner, url = await serve(["claude"])
    async with place.screen("chat", env={**NO_SERVERS, "ANTHROPIC_BASE_URL": url}) as screen:
        await screen.until("or Enter to leave:")
        assert "No model is set up yet" in screen.text and "another address" in screen.text
        screen.type("9\r")  # there is no such choice: it asks again
        await screen.until(lambda text: text.count("or Enter to leave:") == 2)
        screen.type(f"{read_number(screen.text, 'Anthropic')}\r")
        await screen.until("it is not shown")
        screen.type("sk-typed-secret\r")
        await screen.until("the key is in")
        await wait_until(lambda: not screen.echoes, "the prompt of the chat")
        assert b"sk-typed-secret" not in screen.raw
        assert await screen.leave() == 0
    await runner.cleanup()
    file = place.home / ".local/share/treadle/keys/anthropic"
    assert file.read_text() == "sk-typed-secret" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "anthropic:" in (place.home / ".config/treadle/config.toml").read_text()


async def test_an_address_is_asked_for_again_until_a_server_answers_and_leaving_sets_up_nothing(place: Place) -> None:
    async with place.screen("run", "hello", env=NO_SERVERS) as screen:
        await screen.until("or Enter to leave:")
        screen.type(f"{read_number(screen.text, 'another address')}\r")
        await screen.until("address, such as")
        screen.type("http://127.0.0.1:9/v1\r")
        await screen.until("nothing was saved")
        await screen.until(lambda text: text.count("or Enter to leave:") == 2)
        screen.type("\r")
        await screen.until("nothing was set up")
    assert not list_settings(place.home)


async def test_a_first_start_in_a_pipe_asks_nothing(place: Place) -> None:
    done = await place.run("run", "--model", "anthropic:claude", "hello", env=NO_SERVERS)
    assert done.code and "Which one?" not in done.err
    assert not list_settings(place.home)


async def test_the_embedded_model_is_set_up_and_its_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(weights.MAGIC).hexdigest())
    file = weights.find_models_dir() / weights.SMALL
    file.parent.mkdir(parents=True)
    file.write_bytes(weights.MAGIC)
    assert await first_start.set_up_model("local", "", Keyring((), {})) == f"the weights are in {file}"


async def test_leaving_during_the_download_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended, is_over = threading.Event(), threading.Event(), threading.Event()

    def download(source: str, progress: Callable[[str, float, float], None]) -> NoReturn:
        began.set()
        try:
            while not is_over.wait(0.01):
                progress(f"downloading {source}", 1, 2)
        finally:
            ended.set()
        raise AssertionError("nothing stopped the download")

    monkeypatch.setattr(first_start, "pull_weights", download)
    setting_up = asyncio.create_task(first_start.set_up_model("local", "", Keyring((), {})))
    try:
        await wait_until(began.is_set, "the download")
        setting_up.cancel()
        await wait_until(ended.is_set, "the end of the download")
    finally:
        is_over.set()
    with pytest.raises(asyncio.CancelledError):
        await setting_up


def read_number(text: str, label: str) -> str:
    """Read the number of a choice from the screen."""
    return next(line.split()[0] for line in text.splitlines() if label in line)


def list_settings(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.name in ("config.toml", "keys")]


async def test_the_banner_breaks_no_word_of_a_long_reason(place: Place) -> None:
    async with place.screen("chat", env={**NO_SERVERS, "OPENAI_API_KEY": "sk-test"}, columns=44) as screen:
        await screen.until("What shall be done?")
        lines = [line.strip() for line in screen.text.splitlines()]
        assert {"OPENAI_API_KEY is set", "writes in this folder only; no", "network"} <= set(lines)
        assert await screen.leave() == 0
