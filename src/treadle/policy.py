"""Should this call run: allow, ask or deny. Pure; how a question reaches a person is a gate's business.

A pattern is a glob on the tool's name, with an optional glob on an argument in brackets: `read_*`,
`shell(git *)`, `write_file(src/**)`, `fetch(url=https://example.org/*)`. Without a name the bracket means the
tool's first argument. Arguments are matched as parsed values, never as JSON text. `[*]` is a star, to the letter.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal, cast

from msgspec import Struct

from treadle.events import Decision, Grant, Safety, Tier
from treadle.messages import Json

Action = Literal["allow", "ask", "deny"]
_STRICTNESS: dict[Action, int] = {"allow": 0, "ask": 1, "deny": 2}
_TIERS: dict[Tier, dict[Safety, Action]] = {
    "read-only": {"safe": "allow", "caution": "ask", "destructive": "deny"},
    "sandbox": {"safe": "allow", "caution": "allow", "destructive": "ask"},
    "full": {"safe": "allow", "caution": "allow", "destructive": "ask"},
}
_WIDTH: tuple[Tier, ...] = ("read-only", "sandbox", "full")
_PATH_NAMES = re.compile(r"(^|_)(path|file|filename|folder|directory|dir)s?$")
_COMMAND_NAMES = re.compile(r"(^|_)(command|cmd|script)s?$")
_SHELL_OPERATORS = re.compile(r"[;&|<>`\n\r]|\$\(|\$\{")
_BLANKS = re.compile(r"[ \t]+")
_AROUND = " \t(){}!\"'"


class Verdict(Struct, frozen=True):
    """What is decided, and the rule that decided it."""

    action: Action
    why: str


class Remembered(Struct, frozen=True):
    """A person's answer that holds for more than one call."""

    pattern: str
    decision: Decision
    by: str = ""


def decide(
    grants: Sequence[Grant],
    remembered: Sequence[Remembered],
    tool: str,
    safety: Safety,
    arguments: Mapping[str, Json],
) -> Verdict:
    """The strictest of what each grant says; a person's remembered answer denies, or turns ask into allow."""
    verdict = strictest(*(_by_grant(grant, tool, safety, arguments) for grant in grants or (Grant(),)))
    if verdict.action == "deny":
        return verdict
    for answer in remembered:
        if answer.decision == "deny" and touches(answer.pattern, tool, arguments):
            return Verdict("deny", f"{answer.by or 'a person'} denied {answer.pattern} for this session")
    for answer in remembered if verdict.action == "ask" else ():
        if answer.decision == "allow" and covers(answer.pattern, tool, arguments):
            return Verdict("allow", f"{answer.by or 'a person'} allowed {answer.pattern} for this session")
    return verdict


def tier_of(grants: Sequence[Grant]) -> Tier:
    """The narrowest tier of a chain of grants."""
    tiers: list[Tier] = [grant.tier for grant in grants or (Grant(),)]
    return min(tiers, key=_WIDTH.index)


def strictest(*verdicts: Verdict) -> Verdict:
    """The one that allows least; the first of equals."""
    return max(verdicts, key=lambda verdict: _STRICTNESS[verdict.action])


def _by_grant(grant: Grant, tool: str, safety: Safety, arguments: Mapping[str, Json]) -> Verdict:
    if not any(_glob(pattern).fullmatch(tool) for pattern in grant.tools):
        return Verdict("deny", f"{tool} is not among the tools that may be used here")
    for pattern in grant.forbid:
        if touches(pattern, tool, arguments):
            return Verdict("deny", f"forbidden by {pattern}")
    action = _TIERS[grant.tier][safety]
    why = f"{safety} in tier {grant.tier}"
    if action == "deny":
        return Verdict("deny", why)
    asked = next((pattern for pattern in grant.ask if touches(pattern, tool, arguments)), None)
    if asked is not None:
        return Verdict("allow", "approved by --yes") if grant.yes else Verdict("ask", f"asked for by {asked}")
    if action == "ask" or grant.ask_all:
        for pattern in grant.approve:
            if covers(pattern, tool, arguments):
                return Verdict("allow", f"approved by {pattern}")
        if grant.yes:
            return Verdict("allow", "approved by --yes")
        return Verdict("ask", why if action == "ask" else "every tool is asked for unless approved")
    return Verdict("allow", why)


def covers(pattern: str, tool: str, arguments: Mapping[str, Json]) -> bool:
    """Whether the pattern speaks for the whole call, so that it may be allowed by it.

    A command with shell operators is more than its first word says: only `*` or the very same command
    covers it. A path that leaves the workspace is covered only by a pattern that does so too.
    """
    return _matches(pattern, tool, arguments, whole=True)


def touches(pattern: str, tool: str, arguments: Mapping[str, Json]) -> bool:
    """Whether the pattern speaks of any part of the call, so that it may be denied or asked by it."""
    return _matches(pattern, tool, arguments, whole=False)


def _matches(pattern: str, tool: str, arguments: Mapping[str, Json], *, whole: bool) -> bool:
    name, bracket, rest = pattern.partition("(")
    if not _glob(name).fullmatch(tool):
        return False
    if not bracket:
        return True
    argument, glob = _argument(rest.removesuffix(")"), arguments)
    if not whole and glob in ("*", "**"):
        return True
    value = arguments.get(argument) if argument else None
    values = cast("list[Json]", value) if isinstance(value, list) else [value]
    plain = [str(one) for one in values if isinstance(one, str | int | float)]
    if whole and (not values or len(plain) < len(values)):
        return False
    kind = _kind_of(argument)
    results = [_value_matches(glob, one, kind, whole=whole) for one in plain]
    return all(results) if whole else any(results)


def _argument(inside: str, arguments: Mapping[str, Json]) -> tuple[str, str]:
    """Which argument the bracket is about, and the glob on it."""
    name, equals, glob = inside.partition("=")
    if equals and name in arguments:
        return name, glob
    return next(iter(arguments), ""), inside


def _kind_of(argument: str) -> Literal["path", "command", "text"]:
    if _PATH_NAMES.search(argument):
        return "path"
    return "command" if _COMMAND_NAMES.search(argument) else "text"


def _value_matches(glob: str, value: str, kind: str, *, whole: bool) -> bool:
    if kind == "path":
        path, glob = _normal(value), _normal(glob)
        if whole:
            return _root(path) == _root(glob) and _path_glob(glob).fullmatch(path) is not None
        return any(_path_glob(glob).fullmatch(reading) for reading in _readings(path))
    if kind == "command" and glob not in ("*", "**"):
        if whole and _SHELL_OPERATORS.search(value):
            return glob == _literal(value)
        pieces = [value] if whole else [value, *(part.strip(_AROUND) for part in _SHELL_OPERATORS.split(value))]
        return any(_text_glob(glob).fullmatch(_BLANKS.sub(" ", piece).strip()) for piece in pieces)
    return _text_glob(glob).fullmatch(value) is not None


def _normal(path: str) -> str:
    normal = posixpath.normpath(path)
    return normal[1:] if normal.startswith("//") else normal


def _root(path: str) -> str:
    """What a path starts from: the workspace (empty), the root, or a folder so many steps above."""
    if path.startswith("/"):
        return "/"
    return "".join(piece for piece in path.split("/") if piece == "..")


def _readings(path: str) -> list[str]:
    """What a path may mean. Where the workspace lies is not known here, and a denial must not be talked round."""
    if not _root(path):
        return [path]
    pieces = [piece for piece in path.split("/") if piece not in ("", "..")]
    ends = ["/".join(pieces[start:]) for start in range(len(pieces))]
    return [path, f"/{'/'.join(pieces)}", *ends]


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    return _compile(pattern, any_run=".*", one="[^/]" if "/" in pattern else ".")


@lru_cache(maxsize=1024)
def _text_glob(pattern: str) -> re.Pattern[str]:
    # `git *` means git with or without more words, as a person would read it.
    if pattern.endswith(" *"):
        return re.compile(_compile(pattern[:-2], any_run=".*", one=".").pattern + r"([ \t\n].*)?", re.DOTALL)
    return _compile(pattern, any_run=".*", one=".")


@lru_cache(maxsize=1024)
def _path_glob(pattern: str) -> re.Pattern[str]:
    if pattern.endswith("/**"):
        return re.compile(_compile(pattern[:-3], any_run="[^/]*", one="[^/]").pattern + "(/.*)?", re.DOTALL)
    return _compile(pattern, any_run="[^/]*", one="[^/]")


def _compile(pattern: str, *, any_run: str, one: str) -> re.Pattern[str]:
    """A glob as a regular expression: `**` is anything, `*` any run, `?` one character, the rest is literal."""
    pieces = re.split(r"(\[[*?]\]|\*\*/?|\*|\?)", pattern)
    special = {"**": ".*", "**/": "(.*/)?", "*": any_run, "?": one, "[*]": r"\*", "[?]": r"\?"}
    return re.compile("".join(special.get(piece) or re.escape(piece) for piece in pieces), re.DOTALL)


def _literal(value: str) -> str:
    """A glob that matches this value and nothing else."""
    return re.sub(r"[*?]", r"[\g<0>]", value)


def generalise(tool: str, arguments: Mapping[str, Json]) -> str:
    """The rule that scope `pattern` would remember for this call; shown to the person before it is saved."""
    argument = next(iter(arguments), "")
    value = arguments.get(argument)
    if not isinstance(value, str | int | float) or value == "":
        return tool
    kind, text = _kind_of(argument), str(value)
    rule = _literal(text)
    if kind == "path":
        folder = posixpath.dirname(_normal(text))
        if folder not in ("", "/") and not folder.startswith(".."):
            rule = f"{_literal(folder)}/**"
    elif kind == "command" and not _SHELL_OPERATORS.search(text):
        words = _BLANKS.sub(" ", text).strip().split(" ")
        # `git status` and `git push` are different things: a plain second word belongs to the rule.
        count = 2 if len(words) > 1 and re.fullmatch(r"[a-z][\w-]*", words[1]) else 1
        rule = f"{_literal(' '.join(words[:count]))} *"
    return f"{tool}({argument}={rule})"
