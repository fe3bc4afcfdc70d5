"""The cost of a reply, from a table that users can replace."""

import json
from pathlib import Path

import pytest

from treadle.errors import BadInput
from treadle.messages import Usage
from treadle.models.model_info import UNKNOWN_MODEL, find_model_info, load_table
from treadle.models.ollama_chat import OllamaChat


@pytest.fixture(autouse=True)
def no_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_PRICES", raising=False)


def compute_cost(name: str, usage: Usage, cache_write: int = 0) -> float:
    return OllamaChat("any", "model", find_model_info(name) or UNKNOWN_MODEL).add_cost(usage, cache_write).cost


def test_cached_and_written_tokens_have_their_own_price() -> None:
    cost = compute_cost("anthropic:claude-sonnet-4-6", Usage(1_000_000, 100_000, 600_000), cache_write=200_000)
    assert cost == pytest.approx(0.2 * 3.0 + 0.6 * 0.3 + 0.2 * 3.75 + 0.1 * 15.0)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("openai:gpt-4o-mini", "openai:gpt-4o-mini"),
        ("openai:gpt-4o-2024-11-20", "openai:gpt-4o"),
        ("openai-chat:gpt-4o", "openai:gpt-4o"),
        ("anthropic:claude-haiku-4-5-20251001", "anthropic:claude-haiku-4-5"),
        ("Anthropic:Claude-Haiku-4-5", "anthropic:claude-haiku-4-5"),
        ("openai:gpt-4o-audio", None),
        ("openai:gpt-5.99", None),
        ("anthropic:claude-sonnet-5-5", "anthropic:claude-sonnet-5-5"),
    ],
)
def test_dated_names_find_their_row_and_other_models_do_not(name: str, row: str | None) -> None:
    found = find_model_info(name)
    assert (found.match if found else None) == row


def test_unknown_models_are_free_and_the_users_table_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compute_cost("acme:rocket", Usage(1000, 1000)) == 0.0
    table = tmp_path / "prices.json"
    rows = [{"match": "acme:*", "input": 2.0, "output": 4.0}, {"match": "openai:gpt-4o", "input": 0.0, "output": 1.0}]
    table.write_text(json.dumps({"models": rows}))
    monkeypatch.setenv("TREADLE_PRICES", str(table))
    assert compute_cost("acme:rocket", Usage(1_000_000, 1_000_000)) == pytest.approx(6.0)
    assert compute_cost("openai:gpt-4o", Usage(1_000_000, 1_000_000)) == pytest.approx(1.0)
    assert find_model_info("openai:gpt-4o-mini") is not None


def test_an_unreadable_table_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_PRICES", str(tmp_path / "missing.json"))
    with pytest.raises(BadInput, match=r"missing\.json cannot be read"):
        find_model_info("openai:gpt-4o")


def test_every_row_of_our_table_makes_sense() -> None:
    rows = load_table()
    assert len({row.match for row in rows}) == len(rows) > 50
    for row in rows:
        assert ":" in row.match
        assert 0 < row.input <= row.output
        assert row.cached is None or row.cached < row.input
        assert row.window is None or row.max_output is None or row.max_output <= row.window
