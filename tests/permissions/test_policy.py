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
    ("pattern", "matching", "others"),
    [
        ("*", ["anything"], []),
        ("read_*", ["read_file"], ["spread_file"]),
        ("read_?", ["read_1"], ["read_10"]),
        ("read.file", [], ["read_file"]),
        ("mcp__*__get", ["mcp__github__get"], []),
    ],
)
def test_a_tool_is_matched_by_its_whole_name(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [tool for tool in matching + others if covers_call(pattern, tool, {})] == matching
    assert [tool for tool in matching + others if touches(pattern, tool, {})] == matching


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        (
            "src/**",
            ["src/a.py", "src/deep/er/a.py", "./src//a.py", "src/../src/a.py"],
            ["src/../../etc/passwd", "src/../etc/passwd", "newdir/../../outside", "srcs/a.py", "/src/a.py"],
        ),
        ("src/*", ["src/a.py"], ["src/deep/a.py"]),
        ("src/**/*.py", ["src/deep/a.py", "src/a.py"], ["src/a.txt"]),
        ("*.md", ["README.md"], ["docs/README.md"]),
        ("**", ["docs/README.md"], ["../outside", "/etc/passwd"]),
        ("./**", [], ["a/../../outside"]),
        ("*", [], [".."]),
        ("../**", ["../sibling/a"], ["../../above/a"]),
        ("/etc/**", ["/etc/passwd", "//etc/passwd"], ["/etc/../root/x"]),
        ("path=src/**", ["src/a.py"], []),
        ("text=src/**", [], ["src/a.py"]),
    ],
)
def test_a_path_is_normalized_before_it_is_matched(pattern: str, covered: list[str], others: list[str]) -> None:
    def covers(path: str) -> bool:
        return covers_call(f"write_file({pattern})", "write_file", {"path": path, "text": "hello"})

    assert [path for path in covered + others if covers(path)] == covered


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        (".env", ["./.env", "src/../.env", "/work/project/.env", "../project/.env"]),
        ("src/**", ["/work/project/src/a.py"]),
        ("/etc/**", ["../../../etc/passwd", "//etc/passwd"]),
        ("**", ["../outside"]),
        ("*", ["deep/down/a.py"]),
    ],
)
def test_each_spelling_of_a_forbidden_path_is_forbidden(pattern: str, paths: list[str]) -> None:
    grant = Grant(forbid=(f"write_file({pattern})",))
    assert {path: action(grant, path=path) for path in paths} == dict.fromkeys(paths, "deny")


def test_a_forbidden_path_forbids_no_other() -> None:
    assert not touches("write_file(.env)", "write_file", {"path": "src/.env"})
    assert not touches("write_file(.env)", "write_file", {"path": "/work/.env.example"})
    assert not touches("write_file(src/**)", "write_file", {"path": "docs/a.md"})


OPERATORS = ["; {}", " && {}", " || {}", " & {}", "\n{}", "\r{}", " $({})", " `{}`", " <({})", " | {}"]


@pytest.mark.parametrize("command", ["git", "git status", "  git   status ", "git\tstatus"])
def test_a_plain_command_is_covered_by_its_first_word(command: str) -> None:
    assert covers_call("shell(git *)", "shell", {"command": command})


@pytest.mark.parametrize(
    "command",
    [
        *("git status" + operator.format("rm -rf /") for operator in OPERATORS),
        *("gitk", "sudo git status", "git log | sh", "git log > ~/.bashrc", "git log < x", "git log ${X:=y}"),
    ],
)
def test_a_command_with_shell_operators_is_never_covered_by_its_first_word(command: str) -> None:
    assert not covers_call("shell(git *)", "shell", {"command": command})
    assert covers_call("shell(*)", "shell", {"command": command})


@pytest.mark.parametrize(
    "command",
    [
        *("git status" + operator.format("rm -rf /") for operator in OPERATORS if operator != "\r{}"),
        *("rm -rf /", "(cd /; rm -rf .)", "{ rm -rf /; }", "! rm x", "x & 'rm' y; rm", "git status &&rm -rf /"),
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
    assert [covers_call("delete_row(5)", "delete_row", {"id": id}) for id in (5, 55)] == [True, False]


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
