"""Ways to run a command past the one who reads it: whatever bash runs was read beforehand, or is asked for."""

import shlex
from pathlib import Path

import pytest

from tests.kit.shell import run_to_the_end
from treadle.events import Grant
from treadle.permissions.policy import Assessment, decide_call
from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.command_parts import render_commands
from treadle.permissions.shell.parse import parse_command

TRICKS = Path(__file__).with_name("tricks.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n%%\n")
GROUPS = [TRICKS[start : start + 60] for start in range(0, len(TRICKS), 60)]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that say by a file that they ran; the tricks are about running `alpha`."""
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


@pytest.mark.parametrize("tricks", GROUPS, ids=lambda tricks: shlex.quote(tricks[0])[:30])
def test_no_trick_runs_what_was_not_read(tricks: list[str], stub: Path) -> None:
    ran = 0
    for command in tricks:
        parts = parse_command(command)
        read = any(text.partition(" ")[0].endswith("alpha") for text in render_commands(parts))
        asked = any(part.kind == "unknown" or part.name == "$((" for part in parts)
        if runs_alpha(command, stub):
            ran += 1
            assert read or asked, (command, render_commands(parts))
            assert classify_command(parts, str(stub))[0] != "safe", command
    assert ran > len(tricks) / 2, "most of these do run it, or they would prove nothing"


def test_a_number_made_of_text_is_no_part_of_what_was_allowed_or_may_hide_what_was_forbidden() -> None:
    for command in ("[[ $(cat f) -eq 1 ]]", "echo $(( $(cat f) ))", "for x in $(cat f); do ((x)); done"):
        parts = parse_command(command)
        assessment = Assessment(classify_command(parts, "/workspace")[0], "", render_commands(parts))
        allowed = Grant(tier="read-only", approve=("shell(cat *)", "shell(echo *)"))
        for grant in (allowed, Grant(forbid=("shell(rm *)",))):
            assert decide_call([grant], [], "shell", {"command": command}, assessment).action == "ask", command


@pytest.mark.parametrize(
    "command",
    [
        "echo $((1 + 2 * 3))",
        "for i in 1 2 3; do echo $((i * 2)); done",
        "for i in {1..5}; do echo $((i * 2)) ${i:0:1}; done",
        "for f in *.c; do [[ -f $f ]] && cat $f; done",
        "cat f; [ $? -eq 0 ] && ls",
        '[ "$(wc -l < f)" -gt 5 ] && cat f',
        "[[ -n $(cat f) ]] && ls",
        'test -n "$(cat f)" && ls',
        "cat f | xargs grep x",
        "echo ${x:-$(cat f)} $((y + 1))",
    ],
)
def test_numbers_that_are_numbers_are_harmless(command: str) -> None:
    assert classify_command(parse_command(command), "/workspace")[0] == "safe"


@pytest.mark.parametrize(("start", "again", "end"), [("echo ", "a[", ""), ("for x in ", "$a ", "; do ls; done")])
def test_a_long_command_holds_nobody_up(start: str, again: str, end: str) -> None:
    command = start + again * (90_000 // len(again)) + end
    assert classify_command(parse_command(command), "/workspace")[0], (
        "where its words are gone through for each word, it takes long"
    )


def test_the_tricks_are_many_and_each_is_its_own() -> None:
    assert len(set(TRICKS)) == len(TRICKS) > 450
