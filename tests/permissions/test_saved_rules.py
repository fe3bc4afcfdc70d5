"""Answers for good: kept in the user's data folder, for one workspace or all, and never for what is asked each time."""

import stat
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from treadle.errors import BadInput, StoreDamaged
from treadle.events import Grant
from treadle.permissions.policy import Assessment, decide_call
from treadle.permissions.saved_rules import (
    RULES_FILE,
    RuleBook,
    SavedRule,
    apply_rules,
    forget_rule,
    load_all_rules,
    save_rule,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data" / "treadle"


def load_rules(data: Path, workspace: Path | None = None) -> tuple[SavedRule, ...]:
    """The rules that change a grant in a workspace."""
    grant = RuleBook(data, ()).apply(Grant(), workspace or data)
    found = {*grant.always, *grant.forbid}
    return tuple(rule for rule in load_all_rules(data) if rule.pattern in found)


def test_a_rule_holds_in_its_workspace_or_everywhere(data: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert load_rules(data, here) == ()
    everywhere = save_rule(data, "shell(git add *)")
    local = save_rule(data, "shell(make *)", workspace=here)
    assert load_rules(data, here) == (everywhere, local)
    assert load_rules(data, there) == load_rules(data) == (everywhere,)
    assert load_all_rules(data) == (everywhere, local)


def test_a_rule_holds_for_each_path_to_its_workspace(data: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to("here")
    rule = save_rule(data, "note", workspace=tmp_path / "here")
    assert load_rules(data, tmp_path / "link") == load_rules(data, tmp_path / "x" / ".." / "here") == (rule,)


def test_the_last_answer_for_a_pattern_counts(data: Path) -> None:
    save_rule(data, "note")
    no = save_rule(data, "note", "deny")
    assert load_rules(data) == (no,)


def test_a_rule_can_be_forgotten(data: Path) -> None:
    rule = save_rule(data, "note")
    assert forget_rule(data, rule) and load_rules(data) == ()
    assert not forget_rule(data, rule)


def test_saved_rules_extend_a_grant(data: Path) -> None:
    grant = apply_rules(
        Grant(cautious=True, forbid=("a",)), (SavedRule("shell(git push *)"), SavedRule("drop", "deny"))
    )
    assert grant == Grant(cautious=True, always=("shell(git push *)",), forbid=("a", "drop"))
    plain = Assessment("caution", commands=("git push",))
    assert decide_call((grant,), (), "shell", {"command": "git push"}, plain).action == "allow"
    forced = Assessment("destructive", commands=("git push -f",))
    assert decide_call((grant,), (), "shell", {"command": "git push -f"}, forced).action == "ask"
    assert decide_call((grant,), (), "drop", {}, Assessment("safe")).action == "deny"


@pytest.mark.parametrize("pattern", ["", "  "])
def test_an_empty_rule_cannot_be_saved(data: Path, pattern: str) -> None:
    with pytest.raises(BadInput, match="only be allowed once"):
        save_rule(data, pattern)
    assert not data.exists()


def test_only_the_user_can_read_the_rules(data: Path) -> None:
    save_rule(data, "note")
    assert stat.S_IMODE((data / RULES_FILE).stat().st_mode) == 0o600 and stat.S_IMODE(data.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"rules": [{"pattern": 5}]}', b'{"version": 2}', b'{"x": 1}', b"\xff"]
)
def test_rules_that_cannot_be_read_are_an_error_and_are_not_overwritten(data: Path, content: bytes) -> None:
    data.mkdir(parents=True)
    (data / RULES_FILE).write_bytes(content)
    for attempt in (lambda: load_rules(data), lambda: save_rule(data, "note")):
        with pytest.raises(StoreDamaged, match=r"rules\.json"):
            attempt()
    assert (data / RULES_FILE).read_bytes() == content


def test_two_programs_that_save_at_once_lose_no_rule(data: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(save_rule, [data] * 20, [f"tool{number}" for number in range(20)]))
    assert {rule.pattern for rule in load_all_rules(data)} == {f"tool{number}" for number in range(20)}
    assert sorted(path.name for path in data.iterdir()) == [f".{RULES_FILE}.lock", RULES_FILE]


def test_rules_of_the_own_folder_hold_in_every_session_and_changes_are_seen(data: Path, tmp_path: Path) -> None:
    book = RuleBook(data, [tmp_path / "own"])
    assert book.list_rules() == () and book.apply(Grant(), tmp_path) == Grant()
    own = save_rule(data, "drop", "deny", tmp_path / "own", by="ann")
    there = save_rule(data, "note", workspace=tmp_path / "there")
    assert book.apply(Grant(), tmp_path / "worktree") == Grant(forbid=("drop",))
    assert book.apply(Grant(), tmp_path / "there") == Grant(forbid=("drop",), always=("note",))
    assert (own.by, own.saved_at > 0, own.id != there.id) == ("ann", True, True)
    assert forget_rule(data, own) and book.list_rules() == (there,)
    (data / RULES_FILE).write_text("{")
    with pytest.raises(StoreDamaged):
        book.apply(Grant(), tmp_path)


def test_rules_of_earlier_versions_are_read(data: Path) -> None:
    data.mkdir(parents=True)
    (data / RULES_FILE).write_text('{"rules":[{"pattern":"note"}],"version":1}')
    assert load_all_rules(data) == (SavedRule("note"),)
