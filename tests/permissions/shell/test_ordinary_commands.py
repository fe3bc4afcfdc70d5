"""The commands of an ordinary day in `ordinary.txt` keep their class, and nobody is asked for them in the sandbox."""

from pathlib import Path

from treadle.events import Grant
from treadle.permissions.policy import Assessment, decide_call
from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.command_parts import render_commands
from treadle.permissions.shell.parse import parse_command


def test_nobody_is_asked_for_ordinary_commands() -> None:
    expected, wrong, count = "", list[tuple[str, str, str]](), 0
    for line in Path(__file__).with_name("ordinary.txt").read_text("utf-8").splitlines():
        if line.startswith("== "):
            expected = line.removeprefix("== ")
        elif line and not line.startswith("# "):
            parts, count = parse_command(line), count + 1
            safety, why = classify_command(parts, "/work/project")
            assessment = Assessment(safety, why, render_commands(parts))
            verdict = decide_call([Grant()], [], "shell", {"command": line}, assessment)
            if safety != expected or verdict.action != "allow":
                wrong.append((line, safety, verdict.why))
    assert wrong == [] and count > 200
