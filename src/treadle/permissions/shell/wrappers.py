"""Commands that run another command, and where in their words that one begins."""

from __future__ import annotations

from collections.abc import Sequence

WRAPPERS: dict[str, tuple[str, int]] = {
    "builtin": ("", 0),
    "busybox": ("", 0),
    "chrt": ("a b f i o r R v all-tasks batch fifo idle other rr verbose", 1),
    "command": ("p", 0),
    "doas": ("n u: C:", 0),
    "env": ("i ignore-environment 0 null v debug u: unset: C: chdir:", 0),
    "exec": ("c l a:", 0),
    "ionice": ("t ignore c: class: n: classdata:", 0),
    "nice": ("n: adjustment:", 0),
    "nohup": ("", 0),
    "setsid": ("c ctty f fork w wait", 0),
    "stdbuf": ("i: o: e: input: output: error:", 0),
    "strace": ("f q c e: o: s:", 0),
    "sudo": ("n E H S b A P non-interactive preserve-env set-home stdin u: g: h: p: C: D: user: group: chdir:", 0),
    "taskset": ("a c all-tasks cpu-list", 1),
    "time": ("p", 0),
    "toybox": ("", 0),
    "timeout": ("foreground preserve-status v verbose k: kill-after: s: signal:", 1),
    "watch": ("d t e g b c p no-title errexit chgexit beep color precise n: interval:", 0),
    "xargs": ("0 r t x null no-run-if-empty verbose exit n: I: P: L: d: a: s: E: max-args: max-procs: max-lines:", 0),
}
"""Options, with a colon where a value follows, and how many words come before the command."""

HELPERS = {
    "rg": "pre hostname-bin",
    "sort": "compress-program",
    "tar": "to-command use-compress-program info-script new-volume-script rsh-command rmt-command I F",
}
"""Options whose value is a command that is run on the way."""


def find_helper_commands(words: Sequence[str]) -> list[tuple[int, str]]:
    """What a command is told to run by its options: which word says so, and what; nothing where it is not said."""
    options, found = HELPERS.get(words[0], "").split(), list[tuple[int, str]]()
    for number, word in enumerate(words[1:] if options else (), 1):
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        short = not word.startswith("--")
        # Most programs take the beginning of a long option for the whole.
        if any(name == f"-{one}" if short else len(name) > 2 and one.startswith(name[2:]) for one in options):
            found.append((number, value) if equals else (number + 1, "".join(words[number + 1 : number + 2])))
    return found


def find_first_operand(words: Sequence[str], spec: str) -> int | None:
    """Where a wrapper's options end; None when one of them is not known."""
    known = spec.split()
    number = 1
    while number < len(words):
        word = words[number]
        if not word.startswith("-") or word == "-":
            return number
        if word == "--":
            return number + 1
        taken = _option(word, known)
        if taken is None:
            return None
        number += taken
    return number


def _option(text: str, known: Sequence[str]) -> int | None:
    """How many words an option takes up, its value included; None when it is not known."""
    if text.startswith("--"):
        name, equals, _ = text[2:].partition("=")
        if name in known or (equals and f"{name}:" in known):
            return 1
        return 2 if f"{name}:" in known else None
    for number, letter in enumerate(text[1:], 1):
        if f"{letter}:" in known:
            return 1 if number < len(text) - 1 else 2
        if letter not in known:
            return None
    return 1
