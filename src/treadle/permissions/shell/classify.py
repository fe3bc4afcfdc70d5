"""How dangerous a shell command is. It allows nothing: the sandbox is what protects.

A command is safe when all of it is known to only read. It is destructive when a part is known to do harm, or writes
outside of the workspace. Everything else is caution. What is known about commands is in `commands.toml`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

from treadle.events import Safety
from treadle.permissions.paths import (
    is_instruction_path,
    is_protected_path,
    may_match_secret,
    names_secret,
    normalize_path,
)
from treadle.permissions.policy import make_printable
from treadle.permissions.shell.command_parts import STANDARD_DEVICES, CommandPart, ShellWord, find_exec_commands
from treadle.permissions.shell.command_table import load_command_table
from treadle.permissions.shell.inner_scripts import split_sed_words

_CHANGES_PROTECTED = "it changes what runs at the next git or treadle command"
_CHANGES_INSTRUCTIONS = "it changes a file that instructs agents, editors or build services"
_CHANGES_PROGRAMS = "it runs programs of the workspace in place of those of the system"
_WRITES_OUTSIDE = "it writes outside the workspace"

LASTING_REASONS = (_CHANGES_PROTECTED, _CHANGES_INSTRUCTIONS, _WRITES_OUTSIDE)
"""How the reasons begin for commands whose changes outlast the session and may steer or reach others."""

_HARMLESS_PLACES = ("/dev/fd", *STANDARD_DEVICES)
_PRIVATE_PLACES = ("/tmp", "/var/tmp")
"""Folders of which each command in the sandbox has its own."""

_IN_PLACE = re.compile(r"(^| )(-[a-zA-Z]*i|--in-place)")
_RECURSIVE = re.compile(r"(^| )(-[a-zA-Z]*[rR]|--recursive)")
_TARGET = re.compile(r"(^| )(-t|--target)")
_OTHER_FOLDER = re.compile(r"-\w*C|--(chdir|directory)|-(exec|ok)dir")
_BEFORE_PATH = re.compile(r"^((of|--[a-z-]+)=|-[tTC](?=[/~.]))")
_REMOTE = re.compile(r"/dev/(tcp|udp)/|(--?[\w-]+=)?(?!file:)[a-z][a-z0-9+.-]*://")
_EXPANSION = re.compile(r"[$`*?\[{]")


def classify_command(
    parts: Sequence[CommandPart],
    workspace: str,
    folder: str = "",
    *,
    in_sandbox: bool = True,
    writable: Sequence[str] = (),
) -> tuple[Safety, str]:
    """Classify a command that starts in a folder of the workspace. A destructive one also has a reason.

    Outside of the sandbox the files in /tmp belong to other programs too. `writable` are folders elsewhere that the
    user lets commands change, also as `~/NAME`. To delete something there is still asked for.
    """
    private = _PRIVATE_PLACES if in_sandbox else ()
    classifier = _Classifier(parts, (workspace, *_HARMLESS_PLACES, *private), folder, writable)
    for part in parts:
        why = classifier.find_danger(part)
        if why:
            return "destructive", f"{why} ({make_printable(part.text)})"
    return "safe" if parts and all(map(classifier.only_reads, parts)) else "caution", ""


def sends_data(parts: Sequence[CommandPart]) -> bool:
    """Whether a part is known to send data out, cannot be read, or may run any code."""
    table = load_command_table()
    for part in parts:
        name, words = posixpath.basename(part.name), [word.text for word in part.words[1:]]
        if name == "git":
            words = words[table.git.count_options(words) :]
        if part.kind == "unknown" or (part.kind == "command" and table.sends_data(name, " ".join(words))):
            return True
        if name not in table.files.opens_no_file and any(_REMOTE.match(word.text) for word in part.words[1:]):
            return True
    return False


class _Classifier:
    """Looks at one part of a command at a time, and knows the other parts."""

    def __init__(
        self, parts: Sequence[CommandPart], places: Sequence[str], folder: str, writable: Sequence[str]
    ) -> None:
        self._table = load_command_table()
        self._files = self._table.files
        self._places = tuple(map(posixpath.normpath, places))
        self._workspace, self._writable = self._places[0], tuple(writable)
        self._downloads = any(part.name in self._files.downloads for part in parts)
        self._downloaded = self._find_downloaded_names(parts) if self._downloads else frozenset[str]()
        assigned = [part.name.partition("=")[::2] for part in parts if part.kind == "assignment"]
        others = {name for name, value in assigned if value != "$!"}
        self._started = {f"${name}" for name, _ in assigned if name not in others}
        # After leaving the workspace no relative path is known to be in it.
        self._is_elsewhere, self._folder = False, ""
        self._is_elsewhere = any(part.kind == "command" and self._leaves_workspace(part) for part in parts)
        # Paths are relative to the starting folder, unless the command changes its folder before it uses them.
        self._folder = "" if any(map(self._may_change_folder, parts)) else folder
        # A file in an instruction folder is written without naming that folder.
        entered = (word.text for part in parts if part.name in ("cd", "pushd") for word in part.words[1:])
        places = [posixpath.join(folder, place, "") for place in ("", *entered)]
        self._instruction_folder = next((place for place in places if _explain_instruction(f"{place}x")), "")

    def find_danger(self, part: CommandPart) -> str:
        """Say why this part must not run unasked; empty when nothing is known against it."""
        if self._downloads and self._runs_download(part):
            return "it runs a download that nobody has seen"
        if part.kind == "assignment":
            folders = part.name.removeprefix("PATH=").split(":") if part.name.startswith("PATH=") else []
            return _CHANGES_PROGRAMS if any(map(self._is_in_workspace, folders)) else ""
        if part.kind == "unknown":
            return self._find_known_danger(part)
        opens_files = part.name not in self._files.opens_no_file
        if opens_files and any(_may_be_secret(word, part.name) for word in part.words[1:]):
            return "it touches a file that may hold secrets"
        if part.kind == "redirect":
            if part.name != ">":
                return ""
            target = part.words[1]
            return _WRITES_OUTSIDE if self._is_forbidden(target) else self._explain_written(target)
        if part.name == "find" and self._runs_on_files_outside(part):
            return "it runs a command on files outside the workspace"
        return (not self._ends_own_processes(part) and self._find_known_danger(part)) or self._find_bad_write(part)

    def only_reads(self, part: CommandPart) -> bool:
        """Whether this part is known to only read, and only in the workspace."""
        if part.kind == "command":
            is_reader = self._is_reader(part.name, part.words[1:])
        else:
            is_reader = part.kind == "redirect" and part.name == "<"
        return is_reader and not self._is_elsewhere and not any(map(self._is_outside, part.words[1:]))

    def _find_downloaded_names(self, parts: Sequence[CommandPart]) -> frozenset[str]:
        """Find the names of the files that a download may be written to."""
        names: set[str] = set()
        for part in parts:
            if part.name in self._files.downloads or part.kind == "redirect" or part.name == "tee":
                for word in part.words[1:]:
                    place = self._read_output_option(word.text)
                    place = word.text if place is None else place
                    if place and not place.startswith("-"):
                        names.add(posixpath.basename(place))
        return frozenset(names)

    def _leaves_workspace(self, part: CommandPart) -> bool:
        if part.name == "env":
            return any(re.match(r"-[a-zA-Z]*C|--chdir", word.text) for word in part.words)
        if part.name not in self._files.changes_folder:
            return False
        places = [word for word in part.words[1:] if not word.text.startswith("-")]
        return not places or any(self._is_outside(word, or_may_be=True) for word in places)

    def _may_change_folder(self, part: CommandPart) -> bool:
        """Whether a part goes to another folder, or may run something there."""
        if part.kind == "unknown" or part.name in self._files.changes_folder:
            return True
        return any(_OTHER_FOLDER.match(word.text) for word in part.words)

    def _runs_download(self, part: CommandPart) -> bool:
        if part.kind != "command":
            return part.kind == "unknown"
        programs, words = self._table.programs, [word.text for word in part.words[1:]]
        is_interpreter = part.name in programs.interpreters
        if (is_interpreter or part.name in programs.script_runners) and any(
            re.search(r"[<$]\(|`", word) or posixpath.basename(word) in self._downloaded for word in words
        ):
            return True
        reads_code = len(words) < 2 or "-" in words or all(word.startswith("-") for word in words)
        if part.reads_pipe and is_interpreter and reads_code:
            return True
        return "/" in part.name and posixpath.basename(part.name) in self._downloaded

    def _ends_own_processes(self, part: CommandPart) -> bool:
        """Whether it ends only processes that this very command started: `make & x=$!; kill $x`."""
        ended = [word.text.strip('"') for word in part.words[1:] if not word.text.startswith("-")]
        return part.name == "kill" and bool(ended) and self._started.issuperset(ended)

    def _runs_on_files_outside(self, part: CommandPart) -> bool:
        runs = [words for words in find_exec_commands(part.words) if words]
        if all(self._is_reader(words[0].text, words[1:]) for words in runs):
            return False
        return any(map(self._is_outside, part.words[1:]))

    def _find_known_danger(self, part: CommandPart) -> str:
        """Say why the table calls a command destructive, or nothing."""
        return self._table.find_danger(posixpath.basename(part.name), [word.text for word in part.words[1:]])[0]

    def _find_bad_write(self, part: CommandPart) -> str:
        """Say why a file that a command writes or deletes must not be changed unasked, or nothing."""
        name, words = posixpath.basename(part.name), part.words[1:]
        flags = " ".join(word.text for word in words if word.text.startswith("-"))
        deletes = name == "rm" or (name == "find" and "-delete" in flags)
        writes_last = name in self._files.writes_last_path
        edits = name in self._files.edits_in_place and _IN_PLACE.search(flags)
        if not (deletes or edits or writes_last or name in self._files.writes_paths):
            outputs = list(self._find_outputs(name, words)) if name in self._files.writes_output else []
            if any(map(self._is_forbidden, outputs)):
                return _WRITES_OUTSIDE
            return next((why for output in outputs if (why := self._explain_written(output))), "")
        if writes_last and not _TARGET.search(flags):
            words = words[-1:]
        if name == "sed":
            words = split_sed_words(part.words)[1]
        for word in words:
            path = ShellWord(_BEFORE_PATH.sub("", word.text), word.is_literal)
            if path.text.startswith("-") or (name == "dd" and not word.text.startswith("of=")):
                continue
            # A device stays a device when it is written to, but not when it is deleted or moved over.
            is_lost = posixpath.normpath(path.text) in STANDARD_DEVICES and name not in self._files.keeps_devices
            if is_lost or (self._is_outside(path) if deletes else self._is_forbidden(path)):
                return "it deletes outside the workspace" if deletes else _WRITES_OUTSIDE
            if why := self._explain_written(path):
                return why
            is_unknown = not word.is_literal and re.search(r"[$`]", path.text)
            if name == "rm" and _RECURSIVE.search(flags) and (is_unknown or self._is_whole_workspace(word.text)):
                return "it deletes the whole workspace, or a place that is not known"
        return ""

    def _find_outputs(self, name: str, words: Sequence[ShellWord]) -> Iterator[ShellWord]:
        """Find the files and folders that options tell a command to write to."""
        for number, word in enumerate(words):
            output = self._read_output_option(word.text)
            if output is not None:
                yield ShellWord(output, word.is_literal) if output else _word_at(words, number + 1)
        if name == "git":
            yield from self._find_git_folders(words)

    def _read_output_option(self, word: str) -> str | None:
        """Read the value of an output option, empty when it is the next word; None for another word."""
        found = re.fullmatch(rf"({self._files.output_options.pattern})=?(?P<value>.*)", word, re.DOTALL)
        return found["value"] if found else None

    def _find_git_folders(self, words: Sequence[ShellWord]) -> Iterator[ShellWord]:
        """Find the folders in which git works when it does more than read, and those that it creates."""
        git = self._table.git
        options = git.count_options([word.text for word in words])
        if not self._is_reader("git", words[options:]):
            for number, word in enumerate(words[:options]):
                name, _, value = word.text.partition("=")
                if name in git.folder_options:
                    yield ShellWord(value, word.is_literal) if value else _word_at(words, number + 1)
        operands = [word for word in words[options:] if not word.text.startswith("-")]
        if operands:
            yield from operands[git.folder_position.get(operands[0].text, len(operands)) :]

    def _is_reader(self, name: str, words: Sequence[ShellWord]) -> bool:
        """Whether a command is known to read and to do nothing else."""
        words = list(words)
        if name == "git":
            while words and words[0].text in self._table.git.harmless_options:
                words.pop(0)
            if words:
                name = f"git {words.pop(0).text}"
        row = self._table.find_safe(name)
        if row is None:
            return False
        # A word that is not known before it runs may be any word.
        return row.is_always_safe or all(word.is_literal and row.allows_word(word.text) for word in words)

    def _explain_written(self, word: ShellWord) -> str:
        """Say why a person must see that this file is written, or nothing."""
        why = _explain_instruction(word.text)
        if why or not self._instruction_folder or word.text.startswith("/"):
            return why
        return _explain_instruction(f"{self._instruction_folder}{word.text}")

    def _is_in_workspace(self, path: str) -> bool:
        return f"{normalize_path(path)}/".startswith(f"{self._workspace}/")

    def _is_whole_workspace(self, text: str) -> bool:
        path = posixpath.normpath(posixpath.join(self._folder, text))
        names_all = posixpath.normpath(text or ".") in (".", "*", self._workspace) or text in ("./*", ".*")
        return names_all or path in (".", self._workspace)

    def _is_forbidden(self, word: ShellWord) -> bool:
        """Whether a word is a path outside of the workspace that the user does not let commands write."""
        path = f"{posixpath.normpath(word.text)}/"
        is_plain = ".." not in word.text and not _EXPANSION.search(word.text)
        return self._is_outside(word) and not (is_plain and any(path.startswith(f"{one}/") for one in self._writable))

    def _is_outside(self, word: ShellWord, *, or_may_be: bool = False) -> bool:
        """Whether a word is a path that is known to be outside of the workspace; with `or_may_be`, or may be."""
        text = word.text.strip("\"'")
        if not word.is_literal:
            known = _EXPANSION.split(text)[0]
            if re.match(r"~|\$\{?(HOME|OLDPWD)", text) or re.search(r"\.\.|[{,][/~]", text):
                return True
            if or_may_be and not known:
                return True
            text = posixpath.dirname(known) or "."
        path = posixpath.normpath(posixpath.join(self._folder, text) if text.startswith(".") else text) if text else "."
        if path.startswith("/"):
            return not any(path == place or path.startswith(f"{place}/") for place in self._places)
        return path == ".." or path.startswith("../") or (self._is_elsewhere and not path.startswith("-"))


def _word_at(words: Sequence[ShellWord], number: int) -> ShellWord:
    return words[number] if number < len(words) else ShellWord("")


def _explain_instruction(path: str) -> str:
    """Say why a person must see that a path is written, or nothing. It may instruct agents or programs later on."""
    if is_protected_path(path):
        return _CHANGES_PROTECTED
    # A folder that is copied or moved there brings all its files.
    return _CHANGES_INSTRUCTIONS if is_instruction_path(path) or is_instruction_path(f"{path}/x") else ""


def _may_be_secret(word: ShellWord, command: str) -> bool:
    """Whether a word names a file that may hold secrets, alone or among others."""
    text = word.text.strip("\"'")
    if word.is_literal:
        names = [text]
        # A name may be part of an option or of another word: `-f.env`, `if=.env`, `HEAD:.env`, `@.env`.
        if not text.startswith(("--exclude", "--ignore")):
            names += re.split(r"[=:@]", text)
            if text.startswith("-"):
                names.append(text[2:])
        return any(names_secret(normalize_path(name)) for name in names if name)
    for piece in (text, *re.split(r"[{},:=\"'`$()\s-]+", text)):
        if names_secret(piece) or (command != "ls" and may_match_secret(posixpath.basename(piece))):
            return True
    return False
