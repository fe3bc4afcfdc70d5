"""Shell commands are decided part by part: the strictest part counts, and an unreadable part is asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.events import Grant, Safety, Tier
from treadle.permissions.patterns import covers_call, find_touched_part, suggest_pattern
from treadle.permissions.policy import Assessment, RememberedAnswer, Verdict, apply_posture, decide_call
from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.command_parts import render_commands
from treadle.permissions.shell.parse import parse_command


def commands(command: str) -> tuple[str, ...]:
    return render_commands(parse_command(command))


def judged(command: str, *grants: Grant, remembered: tuple[RememberedAnswer, ...] = (), safety: str = "") -> Verdict:
    parts = parse_command(command)
    found, why = classify_command(parts, "/work")
    assessment = Assessment(safety or found, why, render_commands(parts))  # type: ignore[arg-type]
    return decide_call(grants or (Grant(),), remembered, "shell", {"command": command}, assessment)


ASKING = Grant(ask_all=True, approve=("shell(git *)",))


def test_several_patterns_cover_a_command_together_and_all_are_named() -> None:
    grant = Grant(ask_all=True, approve=("shell(git *)", "shell(make *)", "shell(> out/*)"))
    verdict = judged("git pull && make test > out/log", grant)
    assert verdict == Verdict("allow", "approved by shell(git *) and shell(make *) and shell(> out/*)")
    assert judged("git pull && make test > out/../../log", grant).action == "ask"
    assert judged("git pull && ls", grant).action == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git --no-pager push origin main",
        "git -C sub push",
        "git -P -C sub --git-dir=x push",
        "sudo /usr/bin/git -C 'a b' push",
    ],
)
def test_a_forbidden_verb_is_found_behind_options(command: str) -> None:
    grant = Grant(forbid=("shell(git push *)",), yes=True)
    assert judged(command, grant).action == "deny"
    assert judged(command.replace("push", "log origin push"), grant).action == "allow"


def test_a_forbidden_variable_and_a_forbidden_place_are_found() -> None:
    assert judged("LD_PRELOAD='a b' ls", Grant(forbid=("shell(LD_PRELOAD=*)",))).action == "deny"
    assert judged("env LD_PRELOAD=x ls", Grant(forbid=("shell(LD_PRELOAD=*)",))).action == "deny"
    assert judged("ls > docs/a.md", Grant(forbid=("shell(> docs/*)",))).action == "deny"


@pytest.mark.parametrize(
    ("pattern", "command", "asked"),
    [
        ("shell(git push *)", "git $X", True),
        ("shell(git push *)", "git {push,--force}", True),
        ("shell(git push *)", "git pus*", True),
        ("shell(git push *)", "git -P $X", True),
        ("shell(git push *)", "git -C sub --no-pager $X", True),
        ("shell(git push *)", "git -C sub log $X", False),
        ("shell(git * --force)", "git push $X", True),
        ("shell(rm *)", "$CMD x", True),
        ("shell(rm *)", "eval $x", True),
        ("shell(git push *)", "git log $X", False),
        ("shell(rm *)", "ls *.py", False),
        ("shell(git)", "git log $X", False),
        ("write_file", "git $X", False),
    ],
)
def test_a_command_that_may_be_forbidden_is_asked_despite_all_approvals(
    pattern: str, command: str, asked: bool
) -> None:
    grant = Grant(forbid=(pattern,), yes=True, approve=("*",), always=("*",))
    verdict = judged(command, grant, remembered=(RememberedAnswer("*", "allow"),), safety="caution")
    assert (verdict.action, verdict.is_once_only) == (("ask", True) if asked else ("allow", False))
    assert not asked or "nobody can tell" in verdict.why


# ── what is asked for each time ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command", ["git push --force", "sudo ls", "rm -rf /etc", "curl x | sh", "$CMD x", "ls; eval $x"]
)
@pytest.mark.parametrize("tier", ["sandbox", "full"])
def test_dangerous_and_unreadable_commands_are_asked_each_time(command: str, tier: Tier) -> None:
    everything = (
        RememberedAnswer("*", "allow"),
        RememberedAnswer("shell", "allow"),
        RememberedAnswer("shell(*)", "allow"),
    )
    verdict = judged(command, Grant(tier=tier, always=("*", "shell", "shell(*)")), remembered=everything)
    assert (verdict.action, verdict.is_once_only) == ("ask", True)
    for grant in (Grant(tier=tier, yes=True), Grant(tier=tier, approve=("shell",))):
        assert judged(command, grant).action == "allow"
    beforehand = (RememberedAnswer("shell", "allow", "ann", was_given_beforehand=True),)
    assert judged(command, Grant(tier=tier), remembered=beforehand).action == "allow"


def test_an_answer_given_beforehand_does_not_allow_a_command_that_may_be_forbidden() -> None:
    beforehand = (RememberedAnswer("*", "allow", "ann", was_given_beforehand=True),)
    verdict = judged("$CMD x", Grant(forbid=("shell(rm *)",)), remembered=beforehand)
    assert (verdict.action, verdict.may_be_forbidden) == ("ask", True)


def test_a_remembered_rule_does_not_allow_the_dangerous_form_of_a_command() -> None:
    remembered = (RememberedAnswer("shell(command=git push *)", "allow"),)
    cautious = Grant(cautious=True)
    assert judged("git push", cautious, remembered=remembered).action == "allow"
    assert judged("git push origin main", cautious, remembered=remembered).action == "allow"
    assert judged("git push --force", cautious, remembered=remembered).action == "ask"
    assert judged("git push && git push -f", Grant(cautious=True, always=("shell(git push *)",))).action == "ask"


def test_a_remembered_denial_denies_commands_that_are_asked_each_time() -> None:
    assert judged("sudo ls", remembered=(RememberedAnswer("shell(sudo *)", "deny", "ann"),)).action == "deny"


def test_an_answer_to_a_destructive_tool_without_commands_can_be_remembered() -> None:
    verdict = decide_call(
        (Grant(),), (RememberedAnswer("drop", "allow"),), "drop", {"table": "x"}, Assessment("destructive")
    )
    assert verdict.action == "allow"
    assert not decide_call((Grant(),), (), "drop", {"table": "x"}, Assessment("destructive")).is_once_only


# ── reasons ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "grant", "why"),
    [
        ("ls && rm -rf /", Grant(forbid=("shell(rm *)",)), "forbidden by shell(rm *) (rm -rf /)"),
        ("ls; make x", Grant(ask=("shell(make *)",)), "asked for by shell(make *) (make x)"),
        ("ls && sudo ls", Grant(), "destructive in tier sandbox: it takes the rights of another user (sudo ls)"),
        ("ls; $CMD  x", Grant(), "nobody can tell what this would run: $CMD x"),
        ("make x", Grant(tier="read-only"), "caution in tier read-only"),
        ("make x", Grant(cautious=True), "caution, and this agent is cautious"),
        ("make x", Grant(), "caution in tier sandbox"),
        ("ls", Grant(), "safe in tier sandbox"),
        (
            "git $X",
            Grant(forbid=("shell(git push *)",)),
            "nobody can tell whether shell(git push *) forbids this: git $X",
        ),
        ("make x", Grant(ask_all=True, approve=("shell(make *)",)), "approved by shell(make *)"),
        ("make x", Grant(cautious=True, always=("shell(make *)",)), "approved by shell(make *)"),
        ("make x", Grant(cautious=True, yes=True), "approved by --yes"),
    ],
)
def test_every_decision_says_which_rule_made_it_and_for_which_part(command: str, grant: Grant, why: str) -> None:
    assert judged(command, grant).why == why


def test_a_reason_is_short_and_shows_hidden_characters() -> None:
    assert judged("ls \x1b[2J\u202e x").why == "nobody can tell what this would run: ls \\x1b[2J\\u202e x"
    assert judged("sudo \u202els").why.endswith("(sudo \\u202els)")
    assert len(judged(f"sudo {'x' * 5000}").why) < 400 and len(judged(f"$X {'x' * 5000}").why) < 400


def test_a_doubt_asks_until_somebody_approves() -> None:
    doubtful = Assessment("caution", doubts=("something is odd",))
    assert decide_call((Grant(),), (), "send", {}, doubtful) == Verdict("ask", "something is odd")
    assert decide_call((Grant(approve=("send",)),), (), "send", {}, doubtful).action == "allow"
    assert decide_call((Grant(),), (RememberedAnswer("send", "allow"),), "send", {}, doubtful).action == "allow"


# ── rules to remember ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("git push --tags", "shell(command=git push *)"),
        ("timeout 9 git push", "shell(command=git push *)"),
        ("/usr/bin/git  'push'", "shell(command=git push *)"),
        ("ls -la", "shell(command=ls *)"),
        ("make", "shell(command=make *)"),
        ("ls | wc", "shell(command=ls | wc)"),
        ("cd a && make", "shell(command=cd a && make)"),
        ("python3 -c 'x'", "shell(command=python3 -c 'x')"),
        ("find . -name [*]", "shell(command=find . -name [[*]])"),
        ("ls > out", "shell(command=ls > out)"),
        ("A=1 make", "shell(command=A=1 make)"),
        ("git -C sub status", "shell(command=git -C sub status)"),
        ("uv run pytest -q", "shell(command=uv run pytest -q)"),
        ("docker exec x ls", "shell(command=docker exec x ls)"),
        ("tar xf a.tar", "shell(command=tar xf a.tar)"),
        ("gawk 1 a", "shell(command=gawk 1 a)"),
        ("source venv/bin/activate", "shell(command=source venv/bin/activate)"),
        (". ./x", "shell(command=. ./x)"),
        ("export A=1", "shell(command=export A=1)"),
        ("java -version", "shell(command=java -version)"),
        ("cargo +nightly build", "shell(command=cargo +nightly build)"),
        ("git $X", "shell(command=git $X)"),
        ("npm", "shell(command=npm)"),
        ("pip --version", "shell(command=pip --version)"),
        ("pip install x", "shell(command=pip install *)"),
        ("rg x src", "shell(command=rg x *)"),
    ],
)
def test_a_suggested_rule_names_a_plain_command_or_the_whole_command_line(command: str, rule: str) -> None:
    assert suggest_pattern("shell", {"command": command}, commands(command)) == rule
    assert covers_call(rule, "shell", {"command": command}, commands(command))


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        ("rg *", "rg --pre ./x y"),
        ("rg *", "rg --hostname-bin=./x y"),
        ("sort *", "sort --comp=./x a"),
        ("tar *", "tar xf a --to-command='./x'"),
        ("tar *", "tar -I./x -xf a"),
        ("printf *", "printf -v PATH ./x"),
    ],
)
def test_a_rule_for_a_command_does_not_cover_commands_in_its_options(rule: str, command: str) -> None:
    assert judged(command, Grant(cautious=True, always=(f"shell({rule})",))).action == "ask", commands(command)
    assert judged(command.split(" ")[0] + " a", Grant(cautious=True, always=(f"shell({rule})",))).action == "allow"


SCRIPTS = st.lists(
    st.sampled_from(["git log", "rm -rf x", "ls", "make a", "> x", "$X", "A=1", "sudo ls", "git push", "'a b'"]),
    min_size=1,
).map(";".join)


@given(SCRIPTS, SCRIPTS)
def test_a_suggested_rule_covers_another_command_only_if_all_parts_begin_alike(one: str, other: str) -> None:
    rule = suggest_pattern("shell", {"command": one}, commands(one))
    assert covers_call(rule, "shell", {"command": one}, commands(one)) or any(
        part.startswith("? ") for part in commands(one)
    )
    if covers_call(rule, "shell", {"command": other}, commands(other)) and one != other:
        first = {part.split(" ")[0] for part in commands(one)}
        assert {part.split(" ")[0] for part in commands(other)} == first


@given(SCRIPTS, st.sampled_from(["git *", "ls", "rm *", "*", "sudo *", "> x", "A=*", "? *"]))
def test_a_pattern_that_covers_a_command_also_touches_it(command: str, glob: str) -> None:
    pattern, arguments = f"shell({glob})", {"command": command}
    if covers_call(pattern, "shell", arguments, commands(command)):
        assert find_touched_part(pattern, "shell", arguments, commands(command)) is not None


# ── postures and narrowing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("posture", "actions"),
    [
        ("cautious", ("allow", "ask", "ask", "ask")),
        ("balanced", ("allow", "allow", "ask", "ask")),
        ("trusting", ("allow", "allow", "allow", "ask")),
    ],
)
def test_a_posture_decides_which_classes_are_asked(posture: str, actions: tuple[str, ...]) -> None:
    grant = apply_posture(Grant(), posture)  # type: ignore[arg-type]
    classes: tuple[Safety, ...] = ("safe", "caution", "destructive")
    told = [decide_call((grant,), (), "erase", {}, Assessment(safety)).action for safety in classes]
    assert (*told, judged("sudo ls", grant).action) == actions


def test_a_posture_never_allows_a_denied_call() -> None:
    grant = apply_posture(Grant(tier="read-only", forbid=("note",)), "trusting")
    assert decide_call((grant,), (), "note", {}, Assessment("safe")).action == "deny"
    assert decide_call((grant,), (), "erase", {}, Assessment("destructive")).action == "deny"
