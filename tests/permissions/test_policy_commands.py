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


def judge(command: str, *grants: Grant, remembered: tuple[RememberedAnswer, ...] = (), safety: str = "") -> Verdict:
    parts = parse_command(command)
    found, why = classify_command(parts, "/work")
    assessment = Assessment(safety or found, why, render_commands(parts))  # type: ignore[arg-type]
    return decide_call(grants or (Grant(),), remembered, "shell", {"command": command}, assessment)


ASKING = Grant(ask_all=True, approve=("shell(git *)",))


def test_several_patterns_cover_a_command_together_and_all_are_named() -> None:
    grant = Grant(ask_all=True, approve=("shell(git *)", "shell(make *)", "shell(> out/*)"))
    verdict = judge("git pull && make test > out/log", grant)
    assert verdict == Verdict("allow", "approved by shell(git *) and shell(make *) and shell(> out/*)")
    assert judge("git pull && make test > out/../../log", grant).action == "ask"
    assert judge("git pull && ls", grant).action == "ask"


@pytest.mark.parametrize(
    "command",
    [
        *("git push", "git --no-pager push origin main", "git -C sub push"),
        *("git -P -C sub --git-dir=x push", "sudo /usr/bin/git -C 'a b' push"),
    ],
)
def test_a_forbidden_verb_is_found_behind_options(command: str) -> None:
    grant = Grant(forbid=("shell(git push *)",), yes=True)
    assert judge(command, grant).action == "deny"
    assert judge(command.replace("push", "log origin push"), grant).action == "allow"


def test_a_forbidden_variable_and_a_forbidden_place_are_found() -> None:
    assert judge("LD_PRELOAD='a b' ls", Grant(forbid=("shell(LD_PRELOAD=*)",))).action == "deny"
    assert judge("env LD_PRELOAD=x ls", Grant(forbid=("shell(LD_PRELOAD=*)",))).action == "deny"
    assert judge("ls > docs/a.md", Grant(forbid=("shell(> docs/*)",))).action == "deny"


@pytest.mark.parametrize(
    ("pattern", "asked", "allowed"),
    [
        (
            "shell(git push *)",
            ["git $X", "git {push,--force}", "git pus*", "git -P $X", "git -C sub --no-pager $X"],
            ["git -C sub log $X", "git log $X"],
        ),
        ("shell(git * --force)", ["git push $X"], []),
        ("shell(rm *)", ["$CMD x", "eval $x"], ["ls *.py"]),
        ("shell(git)", [], ["git log $X"]),
        ("write_file", [], ["git $X"]),
    ],
)
def test_a_command_that_may_be_forbidden_is_asked_despite_all_approvals(
    pattern: str, asked: list[str], allowed: list[str]
) -> None:
    grant = Grant(forbid=(pattern,), yes=True, approve=("*",), always=("*",))
    for command in asked + allowed:
        verdict = judge(command, grant, remembered=(RememberedAnswer("*", "allow"),), safety="caution")
        is_asked = verdict.action == "ask" and verdict.is_once_only and "nobody can tell" in verdict.why
        assert (is_asked, verdict.action) == ((True, "ask") if command in asked else (False, "allow")), command


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
    verdict = judge(command, Grant(tier=tier, always=("*", "shell", "shell(*)")), remembered=everything)
    assert (verdict.action, verdict.is_once_only) == ("ask", True)
    for grant in (Grant(tier=tier, yes=True), Grant(tier=tier, approve=("shell",))):
        assert judge(command, grant).action == "allow"
    beforehand = (RememberedAnswer("shell", "allow", "ann", was_given_beforehand=True),)
    assert judge(command, Grant(tier=tier), remembered=beforehand).action == "allow"


def test_an_answer_given_beforehand_does_not_allow_a_command_that_may_be_forbidden() -> None:
    beforehand = (RememberedAnswer("*", "allow", "ann", was_given_beforehand=True),)
    verdict = judge("$CMD x", Grant(forbid=("shell(rm *)",)), remembered=beforehand)
    assert (verdict.action, verdict.may_be_forbidden) == ("ask", True)


def test_a_remembered_rule_does_not_allow_the_dangerous_form_of_a_command() -> None:
    remembered = (RememberedAnswer("shell(command=git push *)", "allow"),)
    cautious = Grant(cautious=True)
    assert judge("git push", cautious, remembered=remembered).action == "allow"
    assert judge("git push origin main", cautious, remembered=remembered).action == "allow"
    assert judge("git push --force", cautious, remembered=remembered).action == "ask"
    assert judge("git push && git push -f", Grant(cautious=True, always=("shell(git push *)",))).action == "ask"


def test_a_remembered_denial_denies_commands_that_are_asked_each_time() -> None:
    assert judge("sudo ls", remembered=(RememberedAnswer("shell(sudo *)", "deny", "ann"),)).action == "deny"


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
    assert judge(command, grant).why == why


def test_a_reason_is_short_and_shows_hidden_characters() -> None:
    assert judge("ls \x1b[2J\u202e x").why == "nobody can tell what this would run: ls \\x1b[2J\\u202e x"
    assert judge("sudo \u202els").why.endswith("(sudo \\u202els)")
    assert len(judge(f"sudo {'x' * 5000}").why) < 400 and len(judge(f"$X {'x' * 5000}").why) < 400


def test_a_doubt_asks_until_somebody_approves() -> None:
    doubtful = Assessment("caution", doubts=("something is odd",))
    assert decide_call((Grant(),), (), "send", {}, doubtful) == Verdict("ask", "something is odd")
    assert decide_call((Grant(approve=("send",)),), (), "send", {}, doubtful).action == "allow"
    assert decide_call((Grant(),), (RememberedAnswer("send", "allow"),), "send", {}, doubtful).action == "allow"


# ── rules to remember ──────────────────────────────────────────────────────────────────────────────────────


WHOLE_LINES = """\
ls | wc
cd a && make
python3 -c 'x'
ls > out
A=1 make
git -C sub status
uv run pytest -q
docker exec x ls
tar xf a.tar
gawk 1 a
source venv/bin/activate
. ./x
export A=1
java -version
cargo +nightly build
git $X
npm
pip --version
""".splitlines()


@pytest.mark.parametrize(
    ("command", "glob"),
    [
        ("git push --tags", "git push *"),
        ("timeout 9 git push", "git push *"),
        ("/usr/bin/git  'push'", "git push *"),
        ("ls -la", "ls *"),
        ("make", "make *"),
        ("find . -name [*]", "find . -name [[*]]"),
        ("pip install x", "pip install *"),
        ("rg x src", "rg x *"),
        *((command, command) for command in WHOLE_LINES),
    ],
)
def test_a_suggested_rule_names_a_plain_command_or_the_whole_command_line(command: str, glob: str) -> None:
    rule = f"shell(command={glob})"
    assert suggest_pattern("shell", {"command": command}, commands(command)) == rule
    assert covers_call(rule, "shell", {"command": command}, commands(command))


@pytest.mark.parametrize(
    "command",
    [
        *("rg --pre ./x y", "rg --hostname-bin=./x y", "sort --comp=./x a"),
        *("tar xf a --to-command='./x'", "tar -I./x -xf a", "printf -v PATH ./x"),
    ],
)
def test_a_rule_for_a_command_does_not_cover_commands_in_its_options(command: str) -> None:
    name = command.split(" ")[0]
    grant = Grant(cautious=True, always=(f"shell({name} *)",))
    assert judge(command, grant).action == "ask", commands(command)
    assert judge(f"{name} a", grant).action == "allow"


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
    assert (*told, judge("sudo ls", grant).action) == actions


def test_a_posture_never_allows_a_denied_call() -> None:
    grant = apply_posture(Grant(tier="read-only", forbid=("note",)), "trusting")
    assert decide_call((grant,), (), "note", {}, Assessment("safe")).action == "deny"
    assert decide_call((grant,), (), "erase", {}, Assessment("destructive")).action == "deny"
