"""Each shell command in `tricks.txt` gets its verdict, and no trick runs a command that was not found by reading."""

import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.shell import run_to_the_end
from treadle.events import Grant
from treadle.permissions.patterns import UNREADABLE_MARK
from treadle.permissions.policy import Assessment, RememberedAnswer, Verdict, decide_call
from treadle.permissions.shell import parse, verbatim
from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.command_parts import CommandPart, ShellWord, render_commands
from treadle.permissions.shell.parse import parse_command

GROUP_SIZE = 60


def read_tricks() -> Iterator[tuple[str, str]]:
    """The verdicts and commands in the file."""
    verdict, block = "", None
    for line in Path(__file__).with_name("tricks.txt").read_text("utf-8").splitlines():
        if block is not None and line != ">>>":
            block.append(line)
        elif block is not None:
            yield verdict, "\n".join(block)
            block = None
        elif line.startswith("== "):
            verdict = line.removeprefix("== ")
        elif line == "<<<":
            block = []
        elif line and not line.startswith("# "):
            yield verdict, line


TRICKS = list(read_tricks())


GROUPS = [
    (verdict, commands[start : start + GROUP_SIZE])
    for verdict in dict.fromkeys(verdict for verdict, _ in TRICKS)
    for commands in [[command for one, command in TRICKS if one == verdict]]
    for start in range(0, len(commands), GROUP_SIZE)
]


def classify(command: str) -> str:
    return classify_command(parse_command(command), "/work/project")[0]


def decide(command: str, grant: Grant, *remembered: RememberedAnswer) -> Verdict:
    parts = parse_command(command)
    safety, why = classify_command(parts, "/work/project")
    assessment = Assessment(safety, why, render_commands(parts))
    return decide_call([grant], remembered, "shell", {"command": command}, assessment)


def is_unreadable(command: str) -> bool:
    """Whether a command is marked as unreadable, also as the script of another shell."""
    nested = shlex.join(["bash", "-c", command])
    return all(any(part.kind == "unknown" for part in parse_command(one)) for one in (command, nested))


def runs_rm(command: str) -> bool:
    texts = render_commands(parse_command(command))
    return any(text.removeprefix(UNREADABLE_MARK).startswith("rm x") for text in texts)


def denies_rm(command: str) -> bool:
    verdicts = (
        decide(command, Grant(forbid=("shell(rm *)",), yes=True, approve=("*",))),
        decide(command, Grant(tools=("shell",)), RememberedAnswer("shell(command=rm *)", "deny", "ann")),
    )
    return all(verdict.action == "deny" and "rm" in verdict.why for verdict in verdicts)


def is_never_allowed(command: str) -> bool:
    verdict = decide(command, Grant(forbid=("shell(rm *)",), yes=True, approve=("*",)))
    return (verdict.action == "deny" or verdict.may_be_forbidden) and classify(command) != "safe"


APPROVES_GIT = Grant(ask_all=True, approve=("shell(git *)",))
CHECKS: dict[str, Callable[[str], bool]] = {
    "safe": lambda command: classify(command) == "safe",
    "caution": lambda command: classify(command) == "caution",
    "destructive": lambda command: classify(command) == "destructive",
    "unreadable": is_unreadable,
    "runs rm x": runs_rm,
    "denied where rm is forbidden": denies_rm,
    "not allowed where rm is forbidden": is_never_allowed,
    "allowed where rm is forbidden": lambda command: decide(command, Grant(forbid=("shell(rm *)",))).action == "allow",
    "allowed where git is approved": lambda command: decide(command, APPROVES_GIT).action == "allow",
    "asked where git is approved": lambda command: decide(command, APPROVES_GIT).action == "ask",
}


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that create a file when they run. The tricks try to run `alpha`."""
    folder = tmp_path_factory.mktemp("stub")
    for name in ("alpha", "beta"):
        (folder / name).write_text(f"#!/bin/sh\n: > {shlex.quote(str(folder))}/ran-{name}\n")
        (folder / name).chmod(0o755)
    (folder / "f").write_text("a[$(alpha)]")
    (folder / "s").write_text("alpha\n")
    return folder


def runs_alpha(command: str, stub: Path) -> bool:
    (stub / "ran-alpha").unlink(missing_ok=True)
    environment = {"PATH": f"{stub}:/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    run_to_the_end(["bash", "-c", f"eval {shlex.quote(command)}"], environment, stub)
    return (stub / "ran-alpha").exists()


def finds_alpha(command: str) -> bool:
    """Whether `alpha` is found among the commands, or the command is asked because it cannot be read."""
    parts = parse_command(command)
    is_found = any(text.partition(" ")[0].endswith("alpha") for text in render_commands(parts))
    return is_found or any(part.kind == "unknown" or part.name == "$((" for part in parts)


@pytest.mark.parametrize(("verdict", "commands"), GROUPS, ids=lambda value: value if isinstance(value, str) else "")
def test_each_command_gets_its_verdict(verdict: str, commands: list[str], stub: Path) -> None:
    if verdict == "hides alpha":
        ran = [command for command in commands if runs_alpha(command, stub)]
        assert [command for command in ran if not finds_alpha(command) or classify(command) == "safe"] == []
        assert len(ran) > len(commands) / 2, "most of these do run it, or they would prove nothing"
    else:
        assert [command for command in commands if not CHECKS[verdict](command)] == []


def test_each_trick_stands_once_in_the_file() -> None:
    assert len(set(TRICKS)) == len(TRICKS) > 1200


@pytest.mark.parametrize("command", ["git status\rrm x", "echo \x1b[2J", "\udc80", "eval " * 12 + "ls"])
def test_control_characters_and_deep_nesting_are_unreadable(command: str) -> None:
    assert any(part.kind == "unknown" for part in parse_command(command))


@pytest.mark.parametrize(
    "command", ["[[ $(cat f) -eq 1 ]]", "echo $(( $(cat f) ))", "for x in $(cat f); do ((x)); done"]
)
@pytest.mark.parametrize(
    "grant", [Grant(tier="read-only", approve=("shell(cat *)", "shell(echo *)")), Grant(forbid=("shell(rm *)",))]
)
def test_a_number_that_comes_from_text_is_asked(command: str, grant: Grant) -> None:
    assert decide(command, grant).action == "ask"


@pytest.mark.parametrize(
    "command",
    [
        ";".join(f"echo {number}" for number in range(4500)),
        "find . " + "-exec a {} " * 4000,
        "find . " + "-exec a {} + " * 4000,
        "a" + " `x`" * 10000,
        "echo $(" * 2500 + "x" + ")" * 2500,
        "eval '" + "ls;" * 15000 + "'",
        "$((" * 10000,
        "rm " + "x " * 20000,
        "git " + "-c " * 15000,
        "echo " + "a[" * 22500,
        "for x in " + "$a " * 15000 + "; do ls; done",
        *(form * 12000 + "sh -c ls" for form in ("env -i ", "sudo ", "xargs ", "timeout 5 ", "find . -exec ")),
        *(form * 30000 for form in ("?)", "<<A ", ";]]", "||", "f()", "a&&", "1+")),
    ],
    ids=lambda command: command[:12],
)
def test_no_command_takes_long_to_decide(command: str) -> None:
    start = time.process_time()
    decide(command, Grant(ask_all=True, approve=("shell(echo *)", "shell(ls *)"), forbid=("shell(git push *)",)))
    assert time.process_time() - start < 2.5  # it takes up to half a second


def test_hiding_long_texts_from_the_parser_changes_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbatim, "_MIN_LENGTH", 1)
    with_texts = [command for _, command in TRICKS if re.search("['\"]|<<", command)]
    before = f": '{'x' * verbatim.MAX_SYNTAX}'\n"
    same = 0
    for command in with_texts:
        first = CommandPart("command", (ShellWord(":"), ShellWord("x" * verbatim.MAX_SYNTAX)))
        plain = parse_command(command)
        shortened = tuple(part for part in parse_command(before + command) if part != first)
        same += shortened == plain
        assert shortened == plain or any(part.kind == "unknown" for part in shortened), command
    assert same > len(with_texts) / 2, "or it would prove nothing"


def test_a_long_file_in_a_command_is_read_like_a_short_one() -> None:
    code = "".join(f"def f{number}(x):\n    return \"it's $(rm y)\" # don't\n" for number in range(500))
    long = f"mkdir -p src && cat > src/a.py <<'EOF'\n{code}EOF\npython3 -c '{'print(1);' * 800}' && rm x"
    assert len(long) > 4 * verbatim.MAX_SYNTAX and not is_unreadable(long)
    texts = render_commands(parse_command(long))
    assert [text.partition(" ")[0] for text in texts] == ["mkdir", "cat", ">", "python3", "rm"]
    assert denies_rm(long) and texts[3].endswith("print(1);")


NESTED = st.lists(
    st.sampled_from(
        (
            *("env ", "env -i ", "sudo ", "xargs ", "watch ", "find . -exec ", "eval ", "bash -c ", "nice -n 1 "),
            *("$(", "echo $(", '"$(', "`", "((", "${x:-", "<(", "(", "{ ", "if ls; then ", "case x in x) ", "<<A "),
            *("'", '"', "\\", "&&", "|", ";", "\n", ">a ", "a=1 ", "[[ ", "{a,", "a[", "?)", "f()", "]]", "# ", "$'"),
        )
    ),
    min_size=1,
    max_size=4,
).map("".join)


@settings(max_examples=60, deadline=None)
@given(NESTED)
def test_the_work_for_a_command_grows_with_its_length_at_most(unit: str) -> None:
    """Counts what the parser gets and what is read out of it, for a command and for one four times as long."""
    work: list[int] = []
    for length in (20_000, 80_000):
        command = (unit * (length // len(unit) + 1))[:length] + "ls"
        reader = parse.CommandReader()
        reader.read_script(command, 0)
        assert reader.parsed <= parse.MAX_PARSED + verbatim.MAX_SYNTAX
        work.append(reader.parsed + sum(len(part.text) for part in reader.parts))
        assert work[-1] <= 20 * length
    assert work[1] <= 5 * work[0] + 100_000
