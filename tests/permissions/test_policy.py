"""Whether a call may run: patterns on arguments, tiers, grants that only narrow, and remembered answers."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.events import Decision, Grant, Safety, Tier
from treadle.permissions.patterns import covers_call, find_touched_part, suggest_pattern
from treadle.permissions.policy import Assessment, RememberedAnswer, Verdict, choose_strictest, decide_call

SAFETIES: tuple[Safety, ...] = ("safe", "caution", "destructive")
TIERS: tuple[Tier, ...] = ("read-only", "sandbox", "full")
STRICTNESS = {"allow": 0, "ask": 1, "deny": 2}


def action(
    *grants: Grant, tool: str = "write_file", safety: Safety = "caution", remembered: Any = (), **arguments: Any
) -> str:
    return decide_call(grants, remembered, tool, arguments or {"path": "src/a.py"}, Assessment(safety)).action


def touches(pattern: str, tool: str, arguments: dict[str, Any]) -> bool:
    return find_touched_part(pattern, tool, arguments) is not None


# ── tiers and grants ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tier", "actions"),
    [
        ("read-only", ("allow", "ask", "deny")),
        ("sandbox", ("allow", "allow", "ask")),
        ("full", ("allow", "allow", "ask")),
    ],
)
def test_each_tier_has_an_action_for_each_class(tier: Tier, actions: tuple[str, ...]) -> None:
    assert tuple(action(Grant(tier=tier), safety=safety) for safety in SAFETIES) == actions


def test_the_default_tier_is_the_sandbox() -> None:
    for safety in SAFETIES:
        assert action(Grant(), safety=safety) == action(Grant(tier="sandbox"), safety=safety)
        assert action(safety=safety) == action(Grant(), safety=safety)


def test_forbidden_beats_ask_beats_approve() -> None:
    rule = ("write_*",)
    assert action(Grant(approve=rule, ask=rule, forbid=rule, yes=True)) == "deny"
    assert action(Grant(approve=rule, ask=rule)) == "ask"
    assert action(Grant(approve=rule), safety="destructive") == "allow"


def test_approving_and_yes_turn_ask_into_allow_but_never_deny() -> None:
    for grant in (Grant(tier="read-only", approve=("*",)), Grant(tier="read-only", yes=True)):
        assert action(grant, safety="caution") == "allow"
        assert action(grant, safety="destructive") == "deny"
    assert action(Grant(yes=True, ask=("*",))) == "allow"


def test_only_named_tools_may_be_used() -> None:
    grant = Grant(tools=("read_*", "search"), yes=True, approve=("*",))
    assert action(grant, tool="read_file", safety="safe") == "allow"
    assert action(grant, tool="search", safety="safe") == "allow"
    assert action(grant, tool="write_file", safety="safe") == "deny"
    assert action(Grant(tools=()), safety="safe") == "deny"


def test_ask_all_asks_for_each_call_that_is_not_approved() -> None:
    grant = Grant(ask_all=True, approve=("read_file", "shell(git *)"))
    assert action(grant, tool="read_file", safety="safe") == "allow"
    assert action(grant, tool="list_files", safety="safe") == "ask"
    assert action(grant, tool="shell", command="git log") == "allow"
    assert action(grant, tool="shell", command="make") == "ask"
    assert action(grant, tool="shell", command="git log; make") == "ask"


def test_a_verdict_names_the_rule_that_decided() -> None:
    why = decide_call((Grant(forbid=("shell(rm *)",)),), (), "shell", {"command": "ls && rm -rf /"}, Assessment()).why
    assert why == "forbidden by shell(rm *) (rm -rf /)"
    assert "destructive in tier sandbox" in decide_call((Grant(),), (), "erase", {}, Assessment("destructive")).why


PATTERNS = st.sampled_from(["*", "write_*", "write_file(src/**)", "shell(git *)", "shell", "read_file", "shell(*)"])
RULES = st.lists(PATTERNS, max_size=2).map(tuple)
GRANTS = st.builds(
    Grant,
    tier=st.sampled_from(TIERS),
    approve=RULES,
    ask=RULES,
    forbid=RULES,
    tools=st.sampled_from([("*",), ("write_*",), ("shell", "read_file")]),
    yes=st.booleans(),
    ask_all=st.booleans(),
)
REMEMBERED = st.lists(st.builds(RememberedAnswer, PATTERNS, st.sampled_from(["allow", "deny"])), max_size=3)
CALLS = st.sampled_from(
    [
        ("write_file", {"path": "src/a.py", "text": "x"}),
        ("write_file", {"path": "../a.py", "text": "x"}),
        ("shell", {"command": "git log"}),
        ("shell", {"command": "git log; rm -rf /"}),
        ("read_file", {"path": "src/a.py"}),
        ("now", {}),
    ]
)


@given(
    st.lists(GRANTS, min_size=1, max_size=3), GRANTS, st.integers(0, 3), REMEMBERED, CALLS, st.sampled_from(SAFETIES)
)
def test_another_grant_never_allows_more(
    grants: list[Grant], more: Grant, place: int, remembered: list[RememberedAnswer], call: Any, safety: Safety
) -> None:
    before = decide_call(grants, remembered, *call, Assessment(safety))
    after = decide_call([*grants[:place], more, *grants[place:]], remembered, *call, Assessment(safety))
    assert STRICTNESS[after.action] >= STRICTNESS[before.action]


@given(st.lists(GRANTS, min_size=1, max_size=3), REMEMBERED, CALLS, st.sampled_from(SAFETIES))
def test_no_remembered_answer_allows_a_denied_call(
    grants: list[Grant], remembered: list[RememberedAnswer], call: Any, safety: Safety
) -> None:
    if decide_call(grants, (), *call, Assessment(safety)).action == "deny":
        assert decide_call(grants, remembered, *call, Assessment(safety)).action == "deny"


def test_the_strictest_verdict_is_the_one_that_allows_least() -> None:
    allow, ask, deny = Verdict("allow", "a"), Verdict("ask", "b"), Verdict("deny", "c")
    assert choose_strictest(allow, ask) is ask and choose_strictest(deny, ask) is deny
    assert choose_strictest(Verdict("ask", "first"), Verdict("ask", "second")).why == "first"


# ── patterns ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "tool", "matches"),
    [
        ("*", "anything", True),
        ("read_*", "read_file", True),
        ("read_*", "spread_file", False),
        ("read_?", "read_1", True),
        ("read_?", "read_10", False),
        ("read.file", "read_file", False),
        ("mcp__*__get", "mcp__github__get", True),
    ],
)
def test_a_tool_is_matched_by_its_whole_name(pattern: str, tool: str, matches: bool) -> None:
    assert covers_call(pattern, tool, {}) is matches
    assert touches(pattern, tool, {}) is matches


@pytest.mark.parametrize(
    ("pattern", "path", "covered"),
    [
        ("write_file(src/**)", "src/a.py", True),
        ("write_file(src/**)", "src/deep/er/a.py", True),
        ("write_file(src/**)", "./src//a.py", True),
        ("write_file(src/**)", "src/../src/a.py", True),
        ("write_file(src/**)", "src/../../etc/passwd", False),
        ("write_file(src/**)", "src/../etc/passwd", False),
        ("write_file(src/**)", "newdir/../../outside", False),
        ("write_file(src/**)", "srcs/a.py", False),
        ("write_file(src/**)", "/src/a.py", False),
        ("write_file(src/*)", "src/a.py", True),
        ("write_file(src/*)", "src/deep/a.py", False),
        ("write_file(src/**/*.py)", "src/deep/a.py", True),
        ("write_file(src/**/*.py)", "src/a.py", True),
        ("write_file(src/**/*.py)", "src/a.txt", False),
        ("write_file(*.md)", "README.md", True),
        ("write_file(*.md)", "docs/README.md", False),
        ("write_file(**)", "docs/README.md", True),
        ("write_file(**)", "../outside", False),
        ("write_file(**)", "/etc/passwd", False),
        ("write_file(./**)", "a/../../outside", False),
        ("write_file(*)", "..", False),
        ("write_file(../**)", "../sibling/a", True),
        ("write_file(../**)", "../../above/a", False),
        ("write_file(/etc/**)", "/etc/passwd", True),
        ("write_file(/etc/**)", "//etc/passwd", True),
        ("write_file(/etc/**)", "/etc/../root/x", False),
        ("write_file(path=src/**)", "src/a.py", True),
        ("write_file(text=src/**)", "src/a.py", False),
    ],
)
def test_a_path_is_normalized_before_it_is_matched(pattern: str, path: str, covered: bool) -> None:
    assert covers_call(pattern, "write_file", {"path": path, "text": "hello"}) is covered


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("write_file(.env)", "./.env"),
        ("write_file(.env)", "src/../.env"),
        ("write_file(.env)", "/work/project/.env"),
        ("write_file(.env)", "../project/.env"),
        ("write_file(src/**)", "/work/project/src/a.py"),
        ("write_file(/etc/**)", "../../../etc/passwd"),
        ("write_file(/etc/**)", "//etc/passwd"),
        ("write_file(**)", "../outside"),
        ("write_file(*)", "deep/down/a.py"),
    ],
)
def test_each_spelling_of_a_forbidden_path_is_forbidden(pattern: str, path: str) -> None:
    assert action(Grant(forbid=(pattern,)), path=path) == "deny"


def test_a_forbidden_path_forbids_no_other() -> None:
    assert not touches("write_file(.env)", "write_file", {"path": "src/.env"})
    assert not touches("write_file(.env)", "write_file", {"path": "/work/.env.example"})
    assert not touches("write_file(src/**)", "write_file", {"path": "docs/a.md"})


@pytest.mark.parametrize(
    ("command", "covered"),
    [
        ("git", True),
        ("git status", True),
        ("  git   status ", True),
        ("git\tstatus", True),
        ("gitk", False),
        ("sudo git status", False),
        ("git status; rm -rf /", False),
        ("git status && rm -rf /", False),
        ("git status || rm -rf /", False),
        ("git status & rm -rf /", False),
        ("git log | sh", False),
        ("git log > ~/.bashrc", False),
        ("git log < x", False),
        ("git status\nrm -rf /", False),
        ("git status\rrm -rf /", False),
        ("git log $(rm -rf /)", False),
        ("git log `rm -rf /`", False),
        ("git log ${X:=y}", False),
        ("git log <(rm -rf /)", False),
    ],
)
def test_a_command_with_shell_operators_is_never_covered_by_its_first_word(command: str, covered: bool) -> None:
    assert covers_call("shell(git *)", "shell", {"command": command}) is covered
    assert covers_call("shell(*)", "shell", {"command": command})


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "git status; rm -rf /",
        "git status &&rm -rf /",
        "git log | rm -rf /",
        "echo $(rm -rf /)",
        "echo `rm -rf /`",
        "git status\nrm -rf /",
        "(cd /; rm -rf .)",
        "{ rm -rf /; }",
        "! rm x",
        "x & 'rm' y; rm",
    ],
)
def test_a_forbidden_command_is_found_anywhere_among_shell_operators(command: str) -> None:
    assert action(Grant(forbid=("shell(rm *)",), yes=True), tool="shell", command=command) == "deny"
    assert action(Grant(ask=("shell(rm *)",)), tool="shell", command=command) == "ask"


@pytest.mark.parametrize("name", ["command", "cmd", "script", "shell_command", "commands"])
def test_each_argument_that_holds_a_command_is_matched_as_one(name: str) -> None:
    value: Any = ["git log; rm x"] if name == "commands" else "git log; rm x"
    assert not covers_call("run(git *)", "run", {name: value})
    assert touches("run(rm *)", "run", {name: value})


def test_a_glob_is_matched_on_the_parsed_argument_and_never_on_json_text() -> None:
    disguised = {"path": "/etc/passwd", "text": '"path": "src/a.py"'}
    assert not covers_call("write_file(*src/a.py*)", "write_file", disguised)
    assert not covers_call('write_file(*"path": "src/*)', "write_file", disguised)
    assert covers_call("note(*\n*)", "note", {"text": "two\nlines"})
    assert covers_call('note(say "hi")', "note", {"text": 'say "hi"'})


def test_a_pattern_can_name_the_argument_it_is_about() -> None:
    call = {"method": "GET", "url": "https://example.org/x"}
    assert covers_call("fetch(url=https://example.org/*)", "fetch", call)
    assert not covers_call(
        "fetch(url=https://example.org/*)", "fetch", {**call, "url": "https://example.org.evil.net/x"}
    )
    assert not covers_call("fetch(https://example.org/*)", "fetch", call)
    assert covers_call("env(A=1 make)", "env", {"command": "A=1 make"})


@pytest.mark.parametrize(
    ("value", "covered", "is_touched"),
    [
        (["src/a", "src/b"], True, True),
        (["src/a", "etc/b"], False, True),
        (["src/a", {"x": 1}], False, True),
        ([], False, False),
        (None, False, False),
        ({"src/a": 1}, False, False),
    ],
)
def test_a_pattern_covers_all_values_of_a_list_or_touches_one(value: Any, covered: bool, is_touched: bool) -> None:
    assert covers_call("write_files(src/**)", "write_files", {"paths": value}) is covered
    assert touches("write_files(src/**)", "write_files", {"paths": value}) is is_touched
    assert touches("write_files(*)", "write_files", {"paths": value})


def test_a_pattern_on_an_argument_does_not_cover_a_call_without_arguments() -> None:
    assert not covers_call("now(*)", "now", {}) and touches("now(*)", "now", {})
    assert not covers_call("now(x)", "now", {}) and not touches("now(x)", "now", {})


def test_numbers_are_matched_by_their_text() -> None:
    assert covers_call("delete_row(5)", "delete_row", {"id": 5}) and not covers_call(
        "delete_row(5)", "delete_row", {"id": 55}
    )


@given(st.text(), st.text(alphabet="ab*?[]()/. ", max_size=8))
def test_any_pattern_can_be_matched_with_any_value(value: str, pattern: str) -> None:
    for name in ("path", "command", "text"):
        covered = covers_call(f"t({pattern})", "t", {name: value})
        assert not covered or touches(f"t({pattern})", "t", {name: value})


# ── answers that are remembered ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pattern", "decision", "expected"),
    [
        ("shell", "allow", "allow"),
        ("shell", "deny", "deny"),
        ("shell(git push *)", "allow", "allow"),
        ("shell(git status *)", "allow", "ask"),
        ("shell(git push *)", "deny", "deny"),
        ("*", "allow", "allow"),
        ("write_file", "allow", "ask"),
    ],
)
def test_a_remembered_answer_holds_for_the_calls_it_covers(pattern: str, decision: Decision, expected: str) -> None:
    answers = [RememberedAnswer(pattern, decision, "ann")]
    call = {"tool": "shell", "safety": "destructive", "command": "git push --force"}
    assert action(Grant(), remembered=answers, **call) == expected  # type: ignore[arg-type]


def test_a_remembered_denial_also_denies_calls_that_would_not_be_asked() -> None:
    verdict = decide_call(
        (Grant(),), [RememberedAnswer("write_file", "deny", "ann")], "write_file", {"path": "a"}, Assessment()
    )
    assert verdict == Verdict("deny", "ann denied write_file for this session")


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_a_remembered_denial_beats_a_remembered_yes_in_any_order(order: slice) -> None:
    answers = [RememberedAnswer("*", "allow"), RememberedAnswer("shell(rm *)", "deny")][order]
    call = {"tool": "shell", "safety": "destructive"}
    assert action(Grant(), remembered=answers, command="rm x", **call) == "deny"  # type: ignore[arg-type]
    assert action(Grant(), remembered=answers, command="ls", **call) == "allow"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tool", "arguments", "rule"),
    [
        ("write_file", {"path": "src/a/b.py", "text": "x"}, "write_file(path=src/a/**)"),
        ("write_file", {"path": "a.py"}, "write_file(path=a.py)"),
        ("write_file", {"path": "../x/a.py"}, "write_file(path=../x/a.py)"),
        ("write_file", {"path": "/passwd"}, "write_file(path=/passwd)"),
        ("write_file", {"path": "/etc/passwd"}, "write_file(path=/etc/**)"),
        ("shell", {"command": "git push --force"}, "shell(command=git push *)"),
        ("shell", {"command": "ls -la"}, "shell(command=ls *)"),
        ("shell", {"command": "ls | wc"}, "shell(command=ls | wc)"),
        ("shell", {"command": "rm *"}, "shell(command=rm *)"),
        ("fetch", {"url": "https://example.org/?q=*"}, "fetch(url=https://example.org/[?]q=[*])"),
        ("delete_row", {"id": 5}, "delete_row(id=5)"),
        ("now", {}, "now"),
        ("note", {"text": ""}, "note"),
        ("write_files", {"paths": ["a", "b"]}, "write_files"),
        ("apply_patch", {"files": ["src/a/b.py", "src/c.py"], "patch": "x"}, "apply_patch(files=src/**)"),
        ("apply_patch", {"files": ["src/a.py", "b.py"]}, "apply_patch"),
        ("apply_patch", {"files": ["src/a.py", "../b/c.py"]}, "apply_patch"),
        ("apply_patch", {"files": ["src/a.py", "/etc/c"]}, "apply_patch"),
        ("apply_patch", {"files": []}, "apply_patch"),
    ],
)
def test_a_suggested_rule_is_as_wide_as_a_person_would_mean(tool: str, arguments: Any, rule: str) -> None:
    assert suggest_pattern(tool, arguments) == rule


ARGUMENTS = st.one_of(
    st.dictionaries(
        st.sampled_from(["path", "command", "text", "id"]),
        st.text(alphabet="ab *?[]()/.;|\n\t=~\u00a0\"'", max_size=12)
        | st.text(max_size=12)
        | st.integers()
        | st.none(),
        max_size=2,
    )
)


@given(ARGUMENTS)
def test_a_suggested_rule_covers_its_own_call(arguments: dict[str, Any]) -> None:
    assert covers_call(suggest_pattern("t", arguments), "t", arguments)


@given(ARGUMENTS, st.sampled_from(["../../etc/passwd", "/etc/passwd", "x; rm -rf /", "b", "git log | sh"]))
def test_a_suggested_rule_covers_no_path_outside_and_no_other_command(arguments: dict[str, Any], other: str) -> None:
    name = next(iter(arguments), "")
    if name in ("path", "command", "text") and isinstance(arguments[name], str) and arguments[name]:
        if re.search(r"\.\.|[;|]", other) or other.startswith("/"):
            rule, same = suggest_pattern("t", arguments), arguments[name] == other
            inside = name == "path" and arguments[name].startswith("/")
            assert same or inside or not covers_call(rule, "t", {**arguments, name: other})
