"""The first start on a terminal: an empty home without a key, a server or weights."""

import stat
from pathlib import Path

from tests.cli.test_picker_rows import serve
from tests.kit.terminal import Place, wait_until

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


def read_number(text: str, label: str) -> str:
    """Read the number of a choice from the screen."""
    return next(line.split()[0] for line in text.splitlines() if label in line)


def list_settings(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.name in ("config.toml", "keys")]
