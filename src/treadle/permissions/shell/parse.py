"""What a shell command would run: its simple commands, redirections and assignments, found in bash's own grammar.

It reads, it runs nothing and allows nothing. What it cannot follow (a name known only when it runs, a syntax error)
is a part of the kind "unknown", so that a person is asked.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from treadle.permissions.policy import UNREADABLE_MARK
from treadle.permissions.shell.grammar import (
    assigns_text,
    decode_ansi_quotes,
    find_arithmetic,
    get_node_text,
    is_misread,
    parse_script,
    remove_escapes,
)
from treadle.permissions.shell.wrappers import WRAPPERS, find_first_operand, find_helper_commands

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 8
_SHELLS = frozenset(("sh", "bash", "dash", "ash"))
_NOT_READ = re.compile(
    r"|zsh|ksh|fish|t?csh|pwsh|alias|script|parallel|flock|systemd-run|compgen|complete|setarch|linux(32|64)|setpriv"
    r"|prlimit|choom|ssh-agent|dbus-run-session|fakeroot|run-parts|unbuffer|fc"
)

_SEEN_TOO = frozenset(("doas", "sudo", "xargs"))
_RESERVED = re.compile(
    r"[{}!]|\[\[|\]\]|if|then|elif|else|fi|for|while|until|do|done|case|esac|in|function|select|coproc"
)
_SYSTEM = ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin")
_STREAM = re.compile(r"-|/dev/(stdin|fd/.*)|/proc/[^/]+/fd/.*")
STANDARD_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty")
_BRACES = re.compile(r"\{(?=[^{}]*(,|\.\.))[^{}]*\}")
_MARKER = re.compile(r"\\?[\w.-]+|'[\w.-]+'|\"[\w.-]+\"")
# Bash reads subscripts and numbers a second time, and then runs what was only text at first.
_READ_TWICE = re.compile(r"'[^']*(\$\(|`)|\\[$`]|[<>]\(|\$[\"'][^\"']*\(")
_SUBSCRIPT = re.compile(r"(?:^|\])(?>[^\]]*?\w\[)[^\]]*(\$\(|`)")
# In a number: what comes from a command, or from a value that is no plain name.
_DERIVED = re.compile(r"\$(?!\{#)[^\w?#$!]|`")
_LOOSE = re.compile(r"[A-Za-z_]|\$\d")
_COUNTS = re.compile(r"\{\d+\.\.\d+\}|\$\(\([^$`\[]*\)\)")
_RUN_LATER = re.compile(
    r"(PS[04]|BASH_ENV|BASH_CMDS|BASH_ALIASES|BASH_FUNC_[^=]*|PROMPT_COMMAND)(\[.*\])?(:?\+?=|$)|ENV\+?=", re.DOTALL
)
_GLUED = re.compile(r"^-\w*?(?=PS|BASH|PROMPT)")
_READING = frozenset(("getopts", "mapfile", "printf", "read", "readarray", "set"))
_DECLARING = frozenset(("declare", "export", "local", "readonly", "typeset"))
_SETTERS = _DECLARING | {"getopts", "printf", "read"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

PartKind = Literal["command", "redirect", "assignment", "unknown"]


class ShellWord(Struct, frozen=True):
    """One word: what it is, or how it is written where only running it would tell (`fixed` is False)."""

    text: str
    is_literal: bool = True


class CommandPart(Struct, frozen=True):
    """One thing that a command line does. `fed` is a command that reads what another one writes."""

    kind: PartKind
    words: tuple[ShellWord, ...]
    reads_pipe: bool = False

    @property
    def name(self) -> str:
        return self.words[0].text

    @property
    def text(self) -> str:
        """The part as the policy sees it: quotes, escapes and blanks put straight."""
        first, *rest = self.words
        name = _quoted(first) if self.kind == "command" else first.text
        told = " ".join([name, *(_quoted(word) for word in rest)])
        return f"{UNREADABLE_MARK}{told}" if self.kind == "unknown" else told


def _quoted(word: ShellWord) -> str:
    return shlex.quote(word.text) if word.is_literal and re.search(r"[\s'\"\\]|^$", word.text) else word.text


@lru_cache(maxsize=256)
def parse_command(command: str) -> tuple[CommandPart, ...]:
    """Everything that a command line would do, as far as it can be read without running it."""
    reader = _Reader()
    reader.script(command, 0)
    reader.end()
    return tuple(dict.fromkeys(reader.parts))


def render_commands(parts: Sequence[CommandPart]) -> tuple[str, ...]:
    """The parts as the policy judges them, without `<` for files below: to read one is no more than to be given it."""
    return tuple(
        part.text for part in parts if not (part.name == "<" and re.match(r"(?!\.\.)[\w.]", part.words[1].text))
    )


class _Reader:
    """Walks a syntax tree and collects what it does; scripts inside of scripts are read the same way."""

    def __init__(self) -> None:
        self.parts: list[CommandPart] = []
        self._depth = 0
        self._counted = ""
        self._texts = False

    def script(self, source: str, depth: int) -> None:
        if depth > MAX_DEPTH or _CONTROL.search(source) or not _writable(source):
            self._unknown(source)
            return
        before, self._depth = self._depth, depth
        root = parse_script(source)
        if is_misread(root):
            self._unknown(source)
        try:
            self._visit(root)
        except RecursionError:
            self._unknown(source)
        self._depth = before

    def end(self) -> None:
        """What is known only when all has been read: that a value which may be any text is taken for a number."""
        if self._counted and self._texts:
            self._computed(self._counted)

    def _count(self, text: str) -> None:
        if _DERIVED.search(text):
            self._computed(text)
        elif _LOOSE.search(text):
            self._counted = text

    def _computed(self, text: str) -> None:
        """Numbers may run what stands in the text they are made of, as a script does, so they are a part as well."""
        self.parts.append(
            CommandPart(
                "command", (ShellWord("$((", is_literal=False), ShellWord(" ".join(text.split()), is_literal=False))
            )
        )

    def _unknown(self, source: str, *more: ShellWord) -> None:
        self.parts.append(CommandPart("unknown", (ShellWord(" ".join(source.split()), is_literal=False), *more)))

    def _visit(self, node: Node, *, fed: bool = False) -> None:
        for text in find_arithmetic(node):
            self._count(text)
        self._texts = self._texts or assigns_text(node)
        match node.type:
            case "command":
                self._command(node, fed=fed)
            case "pipeline":
                inside = node.parent is not None and node.parent.type == "heredoc_redirect"
                for number, child in enumerate(node.named_children):
                    self._visit(child, fed=fed or inside or number > 0)
            case "declaration_command" | "unset_command":
                words = [
                    ShellWord(get_node_text(child)) if not child.is_named else self._word(child)
                    for child in node.children
                ]
                self._late(words)
                self._names(words[0].text, words)
                self._texts = self._texts or not all(_is_plain(_value(word)) for word in words if "=" in word.text)
                self.parts.append(
                    CommandPart("unknown" if _reads_commands(words[0].text, words) else "command", tuple(words))
                )
            case "variable_assignment":
                self._assignment(self._assigned(node))
            case "file_redirect":
                self._redirect(node)
            case "heredoc_redirect":
                self._heredoc(node)
            case "herestring_redirect":
                self._late([self._word(child) for child in node.named_children])
            case "for_statement":
                self._loop(node)
            case "command_substitution":
                self._substitution(node)
            case "arithmetic_expansion" if "'" in get_node_text(node):  # which quotes nothing there
                self._unknown(get_node_text(node))
            case "expansion" if _RUN_LATER.match(get_node_text(node)[2:-1]):
                self._unknown(get_node_text(node))
            case "expansion" | "subscript" | "test_command" if _READ_TWICE.search(get_node_text(node)):
                self._unknown(get_node_text(node))
            case "compound_statement" if get_node_text(node).startswith("((") and _READ_TWICE.search(
                get_node_text(node)
            ):
                self._unknown(get_node_text(node))
            case _:
                for child in node.named_children:
                    self._visit(child, fed=fed)

    def _loop(self, node: Node) -> None:
        """`for x in …` and `select`: their variable takes any text that stands there."""
        values, variable = node.children_by_field_name("value"), node.child_by_field_name("variable")
        if variable is not None and _RUN_LATER.match(get_node_text(variable)):
            self._unknown(get_node_text(node))
        words = [self._word(child) for child in values]
        self._late(words)
        self._texts = self._texts or not all(map(_is_plain, words))
        seen = {child.id for child in values}
        for child in node.named_children:
            if child.id not in seen:
                self._visit(child)

    def _command(self, node: Node, *, fed: bool) -> None:
        words: list[ShellWord] = []
        end = node.start_byte
        for child in node.named_children:
            between = (node.text or b"")[end - node.start_byte : child.start_byte - node.start_byte]
            end = child.end_byte
            if words and not between and not child.type.endswith("_redirect"):
                self._unknown(get_node_text(node))  # one word to bash
            elif words and b"\n" in between.replace(b"\\\n", b""):
                # After a pipe of three the grammar takes the next line for arguments; bash does not.
                self._simple(words, fed=fed)
                words = []
            if child.type == "variable_assignment" or child.type.endswith("_redirect"):
                self._visit(child)
            elif child.type == "command_name":
                words.extend(self._word(piece) for piece in child.named_children or [child])
            else:
                words.append(self._word(child))
        if words:
            self._simple(words, fed=fed)

    def _simple(self, words: Sequence[ShellWord], *, fed: bool = False) -> None:
        name = _command_name(words[0].text)
        if not words[0].is_literal or "{}" in name or _NOT_READ.fullmatch(name) or _RESERVED.fullmatch(name):
            self._unknown(words[0].text, *words[1:])
            return
        self._late(words)
        self._texts = self._texts or name in _READING
        self._names(name, words)
        if name == "printf" and _first(words).startswith("-v"):
            variable = ShellWord(_first(words)[2:]) if _first(words) != "-v" else (*words[2:], ShellWord(""))[0]
            if _is_computed(variable):
                self._unknown(variable.text)
            self._assignment(ShellWord(f"{variable.text}=", is_literal=False))
        if name == "test":
            self._count(" ".join(word.text for word in words[1:] if _may_name(word, _first(words))))
        words = (ShellWord(name), *words[1:])
        if name in WRAPPERS and not (name == "command" and _first(words) in ("-v", "-V")):
            self._wrapped(name, words, fed=fed)
        elif name in _SHELLS:
            self._shell(words, fed=fed)
        elif name == "su":
            self._su(words)
        elif name in ("eval", "trap"):
            self._evaluated(name, words)
        else:
            self.parts.append(CommandPart("unknown" if _reads_commands(name, words) else "command", tuple(words), fed))
            if name == "find":
                self._found(words)
            for number, script in find_helper_commands([word.text for word in words]):
                self._joined(words, [ShellWord(script, one.is_literal) for one in words[number : number + 1]])

    def _wrapped(self, name: str, words: Sequence[ShellWord], *, fed: bool) -> None:
        """A command that runs the rest of its words."""
        spec, before = WRAPPERS[name]
        if name == "env":  # to which a lone dash is an option
            words = [word for word in words if word.text != "-"]
        start = find_first_operand([word.text for word in words], spec)
        # A word that is not known before it runs may be none, or several, and the command another.
        if start is None or not all(word.is_literal for word in words[1 : start + before]):
            self._unknown(words[0].text, *words[1:])
            return
        if name in _SEEN_TOO or (name == "env" and start > 1):
            self.parts.append(CommandPart("command", tuple(words)))
        rest = list(words[start + before :])
        while name in ("env", "sudo", "doas") and rest and "=" in rest[0].text:
            self._assignment(rest.pop(0))
        if name == "watch":
            self._joined(words, rest)
        elif rest and name == "xargs":
            mark = _replaced(words[:start])
            self._simple(
                [
                    *(ShellWord(one.text.replace(mark, "{}"), one.is_literal) for one in rest),
                    ShellWord("$@", is_literal=False),
                ]
            )
        elif rest:
            self._simple(rest, fed=fed)
        elif name not in _SEEN_TOO:
            self.parts.append(CommandPart("command", tuple(words)))

    def _shell(self, words: Sequence[ShellWord], *, fed: bool) -> None:
        """`bash -c "…"` is what is in the quotes; a shell that reads its commands from somewhere is not to be known."""
        for number, word in enumerate(words[1:], 1):
            # Longer ones are other options: bash takes some with one dash.
            if word.is_literal and re.fullmatch(r"-[a-np-zA-NP-Z]{0,3}c[a-np-zA-NP-Z]{0,2}", word.text):
                script = words[number + 1 : number + 2]
                only_bash = words[0].text != "bash" and any("$'" in one.text for one in script)  # knows these quotes
                if only_bash or any(re.match(r"[-+]", one.text) for one in script):
                    self._unknown(words[0].text, *words[1:])
                self._joined(words, script)
                self._texts = self._texts or not all(map(_is_plain, words[number + 2 :]))  # its $0, $1 and so on
                return
            plain = r"[-+][abd-np-rt-zA-NP-Z]{1,3}|--(posix|norc|noprofile|login)"
            if not word.is_literal or not re.fullmatch(plain, word.text):
                script = word.is_literal and not re.match(r"[-+]", word.text) and not _STREAM.fullmatch(word.text)
                self.parts.append(CommandPart("command" if script else "unknown", tuple(words), fed))
                return
        self.parts.append(CommandPart("unknown", tuple(words), fed))

    def _su(self, words: Sequence[ShellWord]) -> None:
        self.parts.append(CommandPart("command", tuple(words)))
        for number, word in enumerate(words):
            if word.text in ("-c", "--command"):
                self._joined(words, words[number + 1 : number + 2])

    def _evaluated(self, name: str, words: Sequence[ShellWord]) -> None:
        if name == "trap":
            self.parts.append(CommandPart("command", tuple(words)))
        start = 2 if _first(words) == "--" else 1
        rest = words[start:] if name == "eval" else words[start : start + 1]
        if rest and not (name == "trap" and rest[0].text.startswith("-")):
            self._joined(words, rest)

    def _assignment(self, word: ShellWord) -> None:
        if _RUN_LATER.match(word.text):
            self._unknown(word.text)
        else:
            self.parts.append(CommandPart("assignment", (word,)))
            self._texts = self._texts or not _is_plain(_value(word))
        self._late((word,))

    def _late(self, words: Sequence[ShellWord]) -> None:
        """Text that is run when bash takes it for the name of an element, as many of its own commands do."""
        for word in words:
            if _SUBSCRIPT.search(word.text) and (word.is_literal or re.search(r"['\\]", word.text)):
                self._unknown(word.text)

    def _names(self, name: str, words: Sequence[ShellWord]) -> None:
        """What bash's own commands take for numbers, or for names to which they give values."""
        if name == "let" or any(re.match(r"-\w*[in]", word.text) for word in words if name in _DECLARING):
            self._count(" ".join(word.text for word in words[1:]))
        elif name in _SETTERS:
            chosen = [two for one, two in pairwise(words) if one.text == "-v"] if name == "printf" else words[1:]
            loose = [word.text for word in chosen if not word.is_literal]
            # A list in quotes is read a second time, and its values with it.
            names = [text if re.match(r'"\w+\+?=\(', text) else text.partition("=")[0] for text in loose]
            self._count(" ".join(one for one in names if re.search(r"[$`]", one)))

    def _joined(self, words: Sequence[ShellWord], script: Sequence[ShellWord]) -> None:
        """Words that a shell reads as a script of their own."""
        # What stands for `{}` is put into the script before the shell reads it, whatever it says.
        if script and all(word.is_literal and "{}" not in word.text for word in script):
            self.script(" ".join(word.text for word in script), self._depth + 1)
        else:
            self._unknown(words[0].text, *words[1:])

    def _found(self, words: Sequence[ShellWord]) -> None:
        for inner in find_exec_commands(words):
            if inner:
                self._simple(inner)
            else:
                self._unknown("find", *words[1:])

    def _redirect(self, node: Node) -> None:
        operator = next((child.type for child in node.children if child.type.strip("<>&|") == ""), ">")
        if len(node.children_by_field_name("destination")) > 1:
            self._unknown(get_node_text(node))  # but the first these are words of the command
        for target in node.children_by_field_name("destination"):
            word, reads = self._word(target), operator == "<"
            path = posixpath.normpath(word.text) if word.is_literal and word.text else word.text
            if (operator.endswith("&") and re.fullmatch(r"\d*-?", path)) or path in STANDARD_DEVICES:
                continue
            self.parts.append(
                CommandPart("redirect", (ShellWord("<" if reads else ">"), ShellWord(path, word.is_literal)))
            )

    def _heredoc(self, node: Node) -> None:
        marker = next((get_node_text(child) for child in node.children if child.type == "heredoc_start"), "")
        plain = marker.strip("'\"\\")
        for child in node.named_children:
            if child.type != "heredoc_body":
                self._visit(child, fed=child.type == "pipeline")
            # Bash may see another end than the grammar, and run what comes after it.
            elif not _MARKER.fullmatch(marker) or plain in map(str.strip, get_node_text(child).splitlines()):
                self._unknown(get_node_text(node))
            elif plain == marker:
                self._visit(child)

    def _substitution(self, node: Node) -> None:
        text = get_node_text(node)
        if text.startswith("`"):  # inside of backticks a backslash is taken off first
            self.script(re.sub(r"\\([`$\\])", r"\1", text[1:-1]), self._depth + 1)
            return
        for child in node.named_children:
            self._visit(child)

    def _assigned(self, node: Node) -> ShellWord:
        for name in node.children_by_field_name("name"):
            self._visit(name)
        value = node.child_by_field_name("value")
        word = self._word(value) if value is not None else ShellWord("")
        name = get_node_text(node)[: (value.start_byte if value is not None else node.end_byte) - node.start_byte]
        return ShellWord(f"{name}{word.text}", word.is_literal)

    def _word(self, node: Node) -> ShellWord:
        """The value of a word; what it would run on the way is collected."""
        text = get_node_text(node)
        match node.type:
            case "word" | "number" | "variable_name" | "command_name" | "special_character" if not node.named_children:
                plain = re.sub(r"\\.", "", text, flags=re.DOTALL)
                loose = re.search(r"[*?\[]|^~", plain) or _BRACES.search(plain) or "`" in plain
                return ShellWord(text, is_literal=False) if loose else ShellWord(remove_escapes(text))
            case "raw_string":
                return ShellWord(text[1:-1])
            case "ansi_c_string":
                return ShellWord(decode_ansi_quotes(text[2:-1]), is_literal=not re.search(r"\\[uUc]", text))
            case "string" if all(child.type == "string_content" for child in node.named_children):
                return ShellWord(
                    remove_escapes(text[text.index('"') + 1 : -1], in_quotes=True), is_literal="`" not in text
                )
            case "concatenation":
                words = [self._word(child) for child in node.named_children]
                whole = sum(child.end_byte - child.start_byte for child in node.named_children)
                fixed = all(word.is_literal for word in words) and whole == node.end_byte - node.start_byte
                if fixed and not _BRACES.search(text):
                    return ShellWord("".join(word.text for word in words))
                return ShellWord(text, is_literal=False)
            case "variable_assignment":  # an argument of `export` and the like
                return self._assigned(node)
            case _:
                self._visit(node)
                return ShellWord(text, is_literal=False)


def _value(word: ShellWord) -> ShellWord:
    """What an assignment assigns."""
    return ShellWord(word.text.partition("=")[2], word.is_literal)


def _is_plain(word: ShellWord) -> bool:
    """Whether a value is surely no text that would run something where a number is wanted."""
    return not re.search(r"[\[$`]", word.text) if word.is_literal else _COUNTS.fullmatch(word.text) is not None


def _may_name(word: ShellWord, option: str) -> bool:
    """Whether `test` may take a value for the name of an element, or one without quotes for the option to do so."""
    return not word.is_literal and (option == "-v" or not word.text.startswith('"'))


def _reads_commands(name: str, words: Sequence[ShellWord]) -> bool:
    """Whether a command of bash itself runs what it reads, or what it is told for later."""
    if name in (".", "source"):
        return any(not word.is_literal or _STREAM.fullmatch(word.text) for word in words[1:2])
    if name in _SETTERS:
        told = ((word, _GLUED.sub("", word.text)) for word in words[1:])
        return any(_RUN_LATER.match(text) or _names(name, word) for word, text in told)
    if name == "hash":
        return any(re.match(r"-\w*p", word.text) for word in words)
    later = rf"-\w*C|{_RUN_LATER.pattern}"
    return name in ("mapfile", "readarray") and any(not word.is_literal or re.match(later, word.text) for word in words)


def _names(setter: str, word: ShellWord) -> bool:
    """Whether a word makes one variable stand for another, or sets one whose name is known only when it runs."""
    if setter in ("declare", "local", "typeset") and re.match(r"-\w*n", word.text):
        return True
    return setter != "printf" and _is_computed(word)


def _is_computed(variable: ShellWord) -> bool:
    return not variable.is_literal and re.search(r"[$`*?{]", variable.text.partition("=")[0]) is not None


def _replaced(options: Sequence[ShellWord]) -> str:
    """What `xargs` puts its input in place of."""
    for number, word in enumerate(options):
        if found := re.match(r"-\w*I(.*)", word.text):
            return found[1] or (options[number + 1].text if number + 1 < len(options) else "") or "{}"
    return "{}"


def _writable(source: str) -> bool:
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


def _command_name(text: str) -> str:
    """`/usr/bin/git` is `git`; a program from anywhere else keeps its path."""
    folder, slash, name = text.rpartition("/")
    return name if slash and posixpath.normpath(folder or "/") in _SYSTEM else text


def _first(words: Sequence[ShellWord]) -> str:
    return words[1].text if len(words) > 1 else ""


def find_exec_commands(words: Sequence[ShellWord]) -> list[tuple[ShellWord, ...]]:
    """The commands that `find` runs on what it finds; an empty one where it is not clear which."""
    found: list[tuple[ShellWord, ...]] = []
    begun = 0
    for number, word in enumerate(words):
        if not begun and word.text in ("-exec", "-execdir", "-ok", "-okdir"):
            begun = number + 1
        elif begun and word.text in (";", "+"):
            found.append(tuple(words[begun:number]))
            begun = 0
    return [*found, ()] if begun else found
