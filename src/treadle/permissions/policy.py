"""Should this call run: allow, ask or deny. Pure; how a question reaches a person is a gate's business.

A pattern is a glob on the tool's name, with an optional glob on an argument in brackets: `read_*`, `shell(git *)`,
`write_file(src/**)`, `fetch(url=https://example.org/*)`. Without a name the bracket means the tool's first argument.
Arguments are matched as parsed values, never as JSON text, commands part by part. `[*]` is a star, to the letter.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.events import Decision, Grant, Safety, Tier
from treadle.messages import Json
from treadle.permissions.patterns import compile_name_glob, compile_path_glob, compile_text_glob

Action = Literal["allow", "ask", "deny"]
_STRICTNESS: dict[Action, int] = {"allow": 0, "ask": 1, "deny": 2}
_TIERS: dict[Tier, dict[Safety, Action]] = {
    "read-only": {"safe": "allow", "caution": "ask", "destructive": "deny"},
    "sandbox": {"safe": "allow", "caution": "allow", "destructive": "ask"},
    "full": {"safe": "allow", "caution": "allow", "destructive": "ask"},
}
_WHY = {(tier, safety): f"{safety} in tier {tier}" for tier, actions in _TIERS.items() for safety in actions}
_WIDTH: tuple[Tier, ...] = ("read-only", "sandbox", "full")
_PATH_NAMES = re.compile(r"(^|_)(path|file|filename|folder|directory|dir)s?$")
_COMMAND_NAMES = re.compile(r"(^|_)(command|cmd|script)s?$")
_SHELL_OPERATORS = re.compile(r"[;&|<>`\n\r]|\$\(|\$\{")
_MOST_OPTIONS = 100
_WORDS = re.compile(r"""(?:'[^']*'|"[^"]*"|[^ ])+""")
_BLANKS = re.compile(r"[ \t]+")
_AROUND = " \t(){}!\"'"
_LOOSE = re.compile(r"[$`*?\[{]|^~")
_OPEN_ENDED = re.compile(
    r"[gmn]?awk|bash|bunx?|cmake|dash|dc|deno|ed|elixir|emacs|env|erl|eval|ex|expect|fd(find)?|find|gdb|groovy|ipython3?|java"
    r"|jshell|julia|ksh|less|lua[\d.]*|m4|man|mysql|n?vim?|nc(at)?|netcat|node|npx|ocaml|parallel|perl|php|psql|pypy[\d.]*"
    r"|python[\d.]*|R|Rscript|rsync|ruby|runghc|scala|screen|sed|sh|socat|sqlite3|ssh|tar|tclsh|tmux|ts-node|tsx"
    r"|uvx|watch|xargs|zip|zsh|\.|source|enable|exec|export|declare|local|readonly|typeset|read|mapfile|readarray"
)
_RUNNING = re.compile(r"run|exec|dlx|x|shell|foreach|bisect|submodule")
_WITH_VERBS = re.compile(
    r"git|docker|podman|kubectl|npm|pnpm|yarn|bun|cargo|go|uv|poetry|pdm|hatch|pipenv|conda|bundle|nix"
    r"|pip[\d.]*|gh|aws|gcloud|az|helm|brew|apt(-get)?|gem|dotnet|rustup|composer|swift|dart|flutter"
)
_VERB = re.compile(r"[a-z][\w-]*")

UNREADABLE_MARK = "? "
"""How a command begins, in an assessment, of which nobody can tell what it would run."""

Posture = Literal["cautious", "balanced", "trusting"]


class Verdict(Struct, frozen=True):
    """What is decided, and the rule that decided it.

    An `is_once_only` question takes only an answer to this call, or one that was given beforehand. A call that
    `may_be_forbidden` takes only an answer to this call.
    """

    action: Action
    why: str
    is_once_only: bool = False
    may_be_forbidden: bool = False


class Assessment(Struct, frozen=True):
    """What a call would do, as far as its tool can tell; `why` is the reason for its class.

    `commands` are the simple commands it would run, redirections (`> path`) and assignments (`NAME=value`) among
    them. `doubts` are reasons to ask that lie outside of the call. `asks_each_time` is a tool's own word that no yes to
    such a call may be remembered. After one that `moves` later calls of its tool may mean something else, so they are
    judged when it has ended.
    """

    safety: Safety = "caution"
    why: str = ""
    commands: tuple[str, ...] | None = None
    doubts: tuple[str, ...] = ()
    asks_each_time: bool = False
    affects_later_calls: bool = False

    @property
    def unreadable_command(self) -> str | None:
        """The first command that could not be read."""
        return next(
            (one.removeprefix(UNREADABLE_MARK) for one in self.commands or () if one.startswith(UNREADABLE_MARK)), None
        )

    @property
    def is_once_only(self) -> bool:
        """Whether no yes may be remembered: a dangerous command, one that nobody can read, or when its tool says so."""
        dangerous = self.commands is not None and (self.safety == "destructive" or self.unreadable_command is not None)
        return dangerous or self.asks_each_time


class RememberedAnswer(Struct, frozen=True):
    """A person's answer that holds for more than one call; `beforehand` as with --approve, before any was asked."""

    pattern: str
    decision: Decision
    by: str = ""
    was_given_beforehand: bool = False


def decide_call(
    grants: Sequence[Grant],
    remembered: Sequence[RememberedAnswer],
    tool: str,
    arguments: Mapping[str, Json],
    assessment: Assessment,
) -> Verdict:
    """The strictest of what each grant says; a person's remembered answer denies, or turns ask into allow."""
    first, *narrower = grants or (Grant(),)
    verdict = _by_grant(first, tool, arguments, assessment)
    for grant in narrower:
        verdict = choose_strictest(verdict, _by_grant(grant, tool, arguments, assessment))
    if verdict.action == "deny":
        return verdict
    commands = assessment.commands
    for answer in remembered:
        if (
            answer.decision == "deny"
            and (part := find_touched_part(answer.pattern, tool, arguments, commands)) is not None
        ):
            return Verdict("deny", f"{answer.by or 'a person'} denied {answer.pattern} for this session{_told(part)}")
    if verdict.action == "ask" and not verdict.may_be_forbidden:
        yes = [answer for answer in remembered if answer.decision == "allow"]
        allowed = [answer for answer in yes if answer.was_given_beforehand or not verdict.is_once_only]
        rules = _covering([answer.pattern for answer in allowed], tool, arguments, commands)
        if rules:
            who = next(answer.by for answer in allowed if answer.pattern == rules[0])
            return Verdict("allow", f"{who or 'a person'} allowed {' and '.join(rules)} for this session")
    return verdict


def find_narrowest_tier(grants: Sequence[Grant]) -> Tier:
    """The narrowest tier of a chain of grants."""
    if len(grants) == 1:
        return grants[0].tier
    tiers: list[Tier] = [grant.tier for grant in grants or (Grant(),)]
    return min(tiers, key=_WIDTH.index)


def choose_strictest(*verdicts: Verdict) -> Verdict:
    """The one that allows least; the first of equals."""
    return max(
        verdicts, key=lambda verdict: (_STRICTNESS[verdict.action], verdict.is_once_only, verdict.may_be_forbidden)
    )


def apply_posture(grant: Grant, posture: Posture) -> Grant:
    """A grant as an agent of this posture has it: cautious ones ask for all that is not safe, trusting ones only for
    what must be asked for each time. Only the user's own configuration may make an agent trusting.
    """
    if posture == "cautious":
        return replace(grant, cautious=True)
    return replace(grant, always=(*grant.always, "*")) if posture == "trusting" else grant


def apply_aliases(grant: Grant, aliases: Mapping[str, str]) -> Grant:
    """A grant whose patterns also mean a tool by its other names: who forbids `bash` means `shell`."""
    if not aliases:
        return grant

    def meant(patterns: tuple[str, ...]) -> tuple[str, ...]:
        more = (
            f"{real}{pattern[len(name) :]}"
            for pattern in patterns
            for name in [pattern.partition("(")[0]]
            for alias, real in aliases.items()
            if compile_name_glob(name).matches(alias) and not compile_name_glob(name).matches(real)
        )
        return (*patterns, *more)

    return replace(
        grant,
        approve=meant(grant.approve),
        ask=meant(grant.ask),
        forbid=meant(grant.forbid),
        tools=meant(grant.tools),
        always=meant(grant.always),
    )


def pin_version(pattern: str, version: str) -> str:
    """A pattern that holds only for this version of its tool: `git__log@1f3a…(path=src/**)`."""
    name, bracket, rest = pattern.partition("(")
    return f"{name}@{version}{bracket}{rest}" if version else pattern


def unpin_version(pattern: str) -> str:
    """A pattern for its tool in whatever version."""
    name, bracket, rest = pattern.partition("(")
    return f"{name.partition('@')[0]}{bracket}{rest}"


def select_for_version(patterns: Sequence[str], version: str) -> tuple[str, ...]:
    """The patterns that hold for a version of a tool, unpinned: those that were made for another are left out."""
    plain = {one: unpin_version(one) for one in patterns}
    return tuple(bare for one, bare in plain.items() if one in (bare, pin_version(bare, version)))


def _by_grant(grant: Grant, tool: str, arguments: Mapping[str, Json], assessment: Assessment) -> Verdict:
    commands = assessment.commands
    if "*" not in grant.tools and not any(compile_name_glob(pattern).matches(tool) for pattern in grant.tools):
        return Verdict("deny", f"{tool} is not among the tools that may be used here")
    for pattern in grant.forbid:
        if (part := find_touched_part(pattern, tool, arguments, commands)) is not None:
            return Verdict("deny", f"forbidden by {pattern}{_told(part)}")
    action = _TIERS[grant.tier][assessment.safety]
    why = _WHY[grant.tier, assessment.safety] + (f": {assessment.why}" if assessment.why else "")
    if action == "deny":
        return Verdict("deny", why)
    for pattern in grant.forbid:
        if (part := _perhaps(pattern, tool, arguments, commands)) is not None:
            unsure = f"it cannot be told whether {pattern} forbids this: {make_printable(part)}"
            return Verdict("ask", unsure, is_once_only=True, may_be_forbidden=True)
    for pattern in grant.ask:
        if (part := find_touched_part(pattern, tool, arguments, commands)) is not None:
            asked = Verdict("ask", f"asked for by {pattern}{_told(part)}", is_once_only=assessment.is_once_only)
            return Verdict("allow", "approved by --yes") if grant.yes else asked
    asking = _reason_to_ask(grant, action, why, assessment)
    if asking is None:
        return Verdict("allow", why)
    patterns = grant.approve if assessment.is_once_only else (*grant.approve, *grant.always)
    rules = _covering(patterns, tool, arguments, commands)
    if rules:
        return Verdict("allow", f"approved by {' and '.join(rules)}")
    return (
        Verdict("allow", "approved by --yes")
        if grant.yes
        else Verdict("ask", asking, is_once_only=assessment.is_once_only)
    )


def _reason_to_ask(grant: Grant, action: Action, why: str, assessment: Assessment) -> str | None:
    if action == "ask":
        return why
    if assessment.unreadable_command is not None:
        return f"it cannot be told what this would run: {make_printable(assessment.unreadable_command)}"
    if assessment.doubts:
        return assessment.doubts[0]
    if grant.ask_all:
        return "every tool is asked for unless approved"
    if grant.cautious and assessment.safety != "safe":
        return f"{assessment.safety}, and this agent is cautious"
    return None


def _told(part: str) -> str:
    return f" ({make_printable(part)})" if part else ""


def make_printable(text: str, most: int = 200) -> str:
    """A piece of a call for a person to read: short, and with nothing in it that a screen would hide or turn round."""
    visible = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text[:most])
    return f"{visible}…" if len(text) > most else visible


def _covering(
    patterns: Sequence[str], tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None
) -> list[str]:
    """The patterns that together speak for the whole call; none when a part of it is left over."""
    rules: list[str] = []
    for part in [(one,) for one in commands] if commands else [None]:
        rule = next((pattern for pattern in patterns if covers_call(pattern, tool, arguments, part)), None)
        if rule is None:
            return []
        rules.append(rule)
    return list(dict.fromkeys(rules))


def covers_call(
    pattern: str, tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None = None
) -> bool:
    """Whether the pattern speaks for the whole call, so that it may be allowed by it.

    Where the simple commands are known, it must speak for each. Where they are not, a command with shell operators
    is more than its first word says: only `*` or the very same command covers it. A path that leaves the workspace
    is covered only by a pattern that does so too.
    """
    found = _bracket(pattern, tool, arguments)
    if found is None:
        return False
    argument, glob = found
    if not glob:
        return True
    values, plain = _values(arguments.get(argument) if argument else None)
    if not values or len(plain) < len(values):
        return False
    return all(_covers_value(glob, one, _kind_of(argument), commands) for one in plain)


def find_touched_part(
    pattern: str, tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None = None
) -> str | None:
    """The part of the call that the pattern speaks of, so that it may be denied or asked by it; None if there is none.

    It is a command, or nothing in particular (empty).
    """
    found = _bracket(pattern, tool, arguments)
    if found is None:
        return None
    argument, glob = found
    if glob in ("", "*", "**"):
        return ""
    kind = _kind_of(argument)
    for one in _values(arguments.get(argument) if argument else None)[1]:
        for piece in _pieces(one, kind, commands):
            if (compile_path_glob(_normal(glob)) if kind == "path" else compile_text_glob(glob)).matches(piece):
                return piece if kind == "command" and piece != one else ""
    return None


def _perhaps(pattern: str, tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None) -> str | None:
    """A command that the pattern may speak of: as far as its words are known before it runs, they agree."""
    found = _bracket(pattern, tool, arguments) if commands else None
    if found is None or _kind_of(found[0]) != "command":
        return None
    globs = found[1].split(" ")
    for command in commands or ():
        if command.startswith(UNREADABLE_MARK):
            return command.removeprefix(UNREADABLE_MARK)
        if any(_may_match(globs, one.split(" ")) for one in (command, *_without_options(command))):
            return command
    return None


def _may_match(globs: Sequence[str], words: Sequence[str]) -> bool:
    known = next((number for number, word in enumerate(words) if _LOOSE.search(word)), len(words))
    agree = all(compile_text_glob(glob).matches(word) for glob, word in zip(globs, words[:known], strict=False))
    return known < len(words) and agree and (len(globs) > known or "*" in "".join(globs[:known]))


def _bracket(pattern: str, tool: str, arguments: Mapping[str, Json]) -> tuple[str, str] | None:
    """The argument that a pattern is about and its glob, both empty for all of the call; None for another tool."""
    name, bracket, rest = pattern.partition("(")
    if not compile_name_glob(name).matches(tool):
        return None
    return _argument(rest.removesuffix(")"), arguments) if bracket else ("", "")


def _values(value: Json) -> tuple[list[Json], list[str]]:
    """An argument as a list, and those of its values that can be matched."""
    values = cast("list[Json]", value) if isinstance(value, list) else [value]
    return values, [str(one) for one in values if isinstance(one, str | int | float)]


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


def _covers_value(glob: str, value: str, kind: str, commands: tuple[str, ...] | None) -> bool:
    if kind == "path":
        path, glob = _normal(value), _normal(glob)
        return _root(path) == _root(glob) and compile_path_glob(glob).matches(path)
    if kind == "command" and glob not in ("*", "**"):
        if len(glob) >= len(value) and glob == _literal(value):
            return True
        if commands:
            return all(not one.startswith(UNREADABLE_MARK) and compile_text_glob(glob).matches(one) for one in commands)
        straight = _BLANKS.sub(" ", value).strip()
        return not _SHELL_OPERATORS.search(value) and compile_text_glob(glob).matches(straight)
    return compile_text_glob(glob).matches(value)


def _pieces(value: str, kind: str, commands: tuple[str, ...] | None) -> list[str]:
    """What a denial looks at in one argument: every reading of it, so that it cannot be talked round."""
    if kind == "path":
        return _readings(_normal(value))
    if kind == "text":
        return [value]
    plain = [command.removeprefix(UNREADABLE_MARK) for command in commands or ()]
    named = [posixpath.basename(name) + blank + rest for name, blank, rest in (one.partition(" ") for one in plain)]
    if not commands or any(command.startswith(UNREADABLE_MARK) for command in commands):
        plain += [part.strip(_AROUND) for part in _SHELL_OPERATORS.split(value)]
    told = [reading for one in named for reading in _without_options(one)]
    return [value, *plain, *named, *told, *(_BLANKS.sub(" ", piece).strip() for piece in (value, *plain))]


def _without_options(command: str) -> list[str]:
    """A command without the options before its first word: `git -C x push` is `git push`, whatever `-C` takes."""
    name, *words = _WORDS.findall(command) or [command]
    readings, starts = list[str](), {0}
    for number, word in enumerate(words[:_MOST_OPTIONS]):
        if number in starts and word.startswith("-"):
            starts |= {number + 1, number + 2}
        elif number in starts and number:
            readings.append(" ".join([name, *words[number:]]))
    return readings


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


def _literal(value: str) -> str:
    """A glob that matches this value and nothing else."""
    return re.sub(r"[*?]", r"[\g<0>]", value)


def suggest_pattern(tool: str, arguments: Mapping[str, Json], commands: tuple[str, ...] | None = None) -> str:
    """The rule that scope `pattern` would remember for this call; shown to the person before it is saved."""
    argument = next(iter(arguments), "")
    value = arguments.get(argument)
    if isinstance(value, list) and _kind_of(argument) == "path":
        folder = _common_folder(_values(value)[1])
        return f"{tool}({argument}={_literal(folder)}/**)" if folder else tool
    if not isinstance(value, str | int | float) or value == "":
        return tool
    kind, text = _kind_of(argument), str(value)
    rule = _literal(text)
    if kind == "path":
        folder = posixpath.dirname(_normal(text))
        if folder not in ("", "/") and not folder.startswith(".."):
            rule = f"{_literal(folder)}/**"
    elif kind == "command" and (len(commands) == 1 if commands else not _SHELL_OPERATORS.search(text)):
        words = (commands[0] if commands else _BLANKS.sub(" ", text).strip()).split(" ")
        # What these run is in the rest of their words, so a rule on the first would be a rule for everything.
        # `git status` and `git push` are different things: a plain second word belongs to the rule.
        verb = words[1] if len(words) > 1 and _VERB.fullmatch(words[1]) else ""
        told = verb and not _RUNNING.fullmatch(verb) if _WITH_VERBS.fullmatch(words[0]) else True
        if told and not _OPEN_ENDED.fullmatch(words[0]) and not _LOOSE.search(words[0]):
            count = 2 if verb else 1
            rule = f"{_literal(' '.join(words[:count]))} *"
    return f"{tool}({argument}={rule})"


def _common_folder(paths: Sequence[str]) -> str:
    """The folder below the workspace in which all of these lie, or nothing."""
    folders = [posixpath.dirname(_normal(path)) for path in paths]
    if not folders or any(folder.split("/")[0] in ("", "..") for folder in folders):
        return ""
    return posixpath.commonpath(folders)
