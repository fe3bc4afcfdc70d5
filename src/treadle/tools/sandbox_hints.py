"""What a failed command is told about the sandbox: what it ran into, and what to do. Pure but for two questions.

It names files outside only if the command itself named them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from treadle.permissions.paths import GUARDED_NAMES
from treadle.sandbox.base import CommandResult, Job

MAX_HINTS = 3
_TAIL_CHARACTERS = 20_000
_HEAD_CHARACTERS = 4_000
_MAX_NAMES = 20
_LAST_LINES = 10

_PATH_WORD = re.compile(r"(?:^|[\s=:'\"(`])(~?/[^\s'\"`;|&<>()*?\[\]{}$\\:]*)")
_MISSING_PROGRAM = re.compile(
    r"(?:^|[:\s‘'])([\w.+-]+)['’]?: (?:command not found|not found|No such file or directory)", re.M
)
_NOT_THERE = re.compile(r"No such file or directory|cannot access|not found|does not exist|ENOENT", re.I)
_READ_ONLY = re.compile(r"Read-only file system|EROFS|os error 30", re.I)
_NOT_PERMITTED = re.compile(rf"{_READ_ONLY.pattern}|Permission denied|EACCES", re.I)
_NO_NAMES = re.compile(
    r"could not resolve|name resolution|name or service not known|getaddrinfo|EAI_AGAIN|ENOTFOUND|no such host|"
    r"network is unreachable|ENETUNREACH|failed to lookup address|failed to establish a new connection",
    re.I,
)
_FORCED_PUSH = re.compile(r"\bgit\b.*\bpush\b.*\s(--force\b(?!-with)|-f\b|--delete\b|-d\b|--mirror\b|[+:]\S)")
_NO_SERVER = re.compile(r"ECONNREFUSED|connection refused|failed to connect to (localhost|127\.)", re.I)
_GIT_REMOTE = re.compile(r"\bgit\b[^;&|\n]*?\s(push|fetch|pull|clone|ls-remote)\b")
_HIDDEN_PLACE = re.compile(r"(?:~|/root|/home/[^/]+)/\.(?!cache\b)[^/]+")
_BACKGROUND = re.compile(r"\b(?:nohup|setsid|disown)\b|(?<![&>|])&\s*(?:echo\b[^&|;]*)?$")
_ROOT_COMMAND = re.compile(r"(?:^|[\s;&|(])(?:sudo|su|doas|apt|apt-get|aptitude|dnf|yum|apk|pacman|zypper)\s")
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"Please tell me who you are|empty ident name"),
        "git knows no name and e-mail of the user, and commands cannot set them for good. Ask the user to run "
        "git config --global user.name NAME and git config --global user.email ADDRESS.",
    ),
    (
        re.compile(r"externally-managed-environment"),
        "Make a virtual environment in the workspace: python3 -m venv .venv, then .venv/bin/pip install.",
    ),
    (
        re.compile(
            r"not a tty|inappropriate ioctl for device|no controlling tty|/dev/tty|not (?:a|to a|from a) terminal|"
            r"EOF when reading",
            re.I,
        ),
        "There is no terminal and no input. Use options that ask nothing, such as --yes.",
    ),
    (
        re.compile(r"No space left on device|ENOSPC"),
        "/tmp and the home hold at most {bounds.tmp_mb} MB. Put large files into the workspace.",
    ),
    (re.compile(r"File too large|File size limit exceeded|EFBIG"), "A file may have at most {bounds.file_mb} MB."),
    (re.compile(r"Too many open files|EMFILE"), "A process may open at most {bounds.open_files} files."),
    (
        re.compile(
            r"Cannot allocate memory|MemoryError|out of memory|std::bad_alloc|ENOMEM|Cannot fork|Resource temporarily",
            re.I,
        ),
        "All processes together may use {bounds.memory_mb} MB of memory, and be {bounds.processes}. Run fewer at once.",
    ),
    (re.compile(r"Docker daemon|docker\.sock", re.I), "Docker cannot be reached from the sandbox."),
    (
        re.compile(r"ptrace|PTRACE|perf_event_open"),
        "The sandbox refuses tracing and profiling of processes by the kernel.",
    ),
)
_LIMITS = {
    "memory": "Run fewer processes at once, or work on less at a time.",
    "processes": "Run fewer processes at once.",
    "disk": "Write less, or remove what is not needed.",
    "wall": "If it needs longer, set timeout_s. A server, and a program that waits for input, never ends by itself.",
}


class HintFacts(Struct, frozen=True):
    """What hints depend on besides the command and its output.

    `shown` are the folders that the command sees. `find_on_host` finds a program on the user's search path.
    `find_outside` finds the folder of a path that is there for the user and that commands do not see, as the command
    wrote it, if a person could show it to them.
    """

    job: Job
    shown: tuple[Path, ...]
    find_on_host: Callable[[str], Path | None]
    find_outside: Callable[[str], str]


def find_hints(command: str, output: str, result: CommandResult, facts: HintFacts) -> tuple[str, ...]:
    """Find out what of the sandbox made a command fail, and what to do. Nothing if it did what it should.

    The code of `npm ci | tail` is that of `tail`. So the last lines of a pipe are looked at even if it succeeded.
    """
    tail = output[-_TAIL_CHARACTERS:]
    if result.code == 0:
        if _BACKGROUND.search(command.strip()):
            return ("No process outlives its command: what still ran in the background was ended.",)
        if "|" not in command or not facts.job.writable:
            return ()
        tail = "\n".join(tail.splitlines()[-_LAST_LINES:])
    failure = _Failure(command[:_HEAD_CHARACTERS], tail, result, facts)
    return tuple(dict.fromkeys(failure.explain()))[:MAX_HINTS]


class _Failure(Struct, frozen=True):
    """A command that failed: how it began, and the end of its output."""

    command: str
    tail: str
    result: CommandResult
    facts: HintFacts

    def explain(self) -> Iterator[str]:
        """Explain all possible reasons, the surest first."""
        if self.result.reason in _LIMITS:
            yield _LIMITS[self.result.reason]
        if _ROOT_COMMAND.search(self.command):
            yield (
                "There is no root in the sandbox, and the system is read-only. Install into the workspace, or ask the "
                "user to install it."
            )
        yield from self._explain_network()
        yield from self._explain_missing_program()
        yield from self._explain_paths()
        yield from self._explain_writing()
        yield from (text.format(bounds=self.facts.job.bounds) for pattern, text in _RULES if pattern.search(self.tail))

    def _explain_network(self) -> Iterator[str]:
        remote = _GIT_REMOTE.search(self.command)
        if remote:
            action = "fetch" if remote[1] == "ls-remote" else remote[1]
            yield (
                f"Run a plain `git {action}` as a command of its own, without a refspec: the user is asked, and it "
                "runs outside the sandbox with the user's credentials."
            )
            if _FORCED_PUSH.search(self.command):
                yield (
                    "`git push --force-with-lease` replaces commits of the remote after a fetch. No other option "
                    "forces a push, and only the user deletes branches of a remote."
                )
        elif _NO_SERVER.search(self.tail):
            yield (
                "Commands reach no program outside the sandbox, and no process outlives its command. Start the server "
                "and use it in the same command."
            )
        if not remote and not self.result.refused_hosts and _NO_NAMES.search(self.tail):
            if self.facts.job.network or self.facts.job.ask_host is not None:
                yield "The network is reached only through the proxy in https_proxy, and only over HTTP and HTTPS."
            else:
                yield "There is no network in the sandbox. Use what is installed, or ask the user to allow a host."

    def _explain_missing_program(self) -> Iterator[str]:
        for name in list(dict.fromkeys(_MISSING_PROGRAM.findall(self.tail)))[:_MAX_NAMES]:
            is_named = re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w.-])", self.command)
            if is_named and (program := self.facts.find_on_host(name)):
                yield (
                    f"`{name}` is installed in {program.parent}, which commands do not see. Ask the user to add it to "
                    "read_only of [sandbox] in their config."
                )

    def _explain_paths(self) -> Iterator[str]:
        if not _NOT_THERE.search(self.tail):
            return
        for word in list(dict.fromkeys(_PATH_WORD.findall(self.command)))[:_MAX_NAMES]:
            path = Path(word)
            if path.is_relative_to("/tmp") and not any(path.is_relative_to(folder) for folder in self.facts.shown):
                yield "/tmp is new for each command. Keep files in the workspace."
            elif _HIDDEN_PLACE.match(word):
                yield "Commands do not see hidden files of the home, such as keys and settings. Do without them."
            elif folder := self.facts.find_outside(word):
                yield f'{word} is outside the sandbox. Call shell again with read_folders=["{folder}"] to ask the user.'

    def _explain_writing(self) -> Iterator[str]:
        lines = [line for line in self.tail.splitlines() if _NOT_PERMITTED.search(line)]
        found = next(
            (name for name in GUARDED_NAMES for line in lines if re.search(rf"(?<![\w.]){re.escape(name)}\b", line)), ""
        )
        is_read_only = any(map(_READ_ONLY.search, lines))
        if is_read_only and not self.facts.job.writable:
            yield "It was run read-only, because it looked like a command that only reads."
        elif found:
            yield f"Commands cannot write {found}: it runs or instructs outside the sandbox. Use the file tools."
        elif is_read_only:
            yield (
                "Commands write only the workspace, /tmp and ~/.cache. For another folder, call shell again with "
                "write_folders=[…] to ask the user."
            )
