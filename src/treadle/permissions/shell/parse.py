"""What a shell command would run: its simple commands, redirections and assignments, found with bash's grammar.

It runs nothing and allows nothing. A part that cannot be followed (a name known only when it runs, a syntax error)
has the kind "unknown", so that a person is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from treadle.permissions.paths import normalize_path
from treadle.permissions.shell.command_parts import (
    STANDARD_DEVICES,
    CommandPart,
    ShellWord,
    find_exec_commands,
    find_xargs_placeholder,
    is_stream,
)
from treadle.permissions.shell.command_table import Wrapper, load_command_table
from treadle.permissions.shell.grammar import (
    Script,
    assigns_text,
    decode_ansi_quotes,
    find_arithmetic,
    find_assigned_names,
    get_node_text,
    parse_script,
    remove_escapes,
)
from treadle.permissions.shell.inner_scripts import is_plain_program

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 8
"""How deep scripts and wrapped commands may lie in each other. What is deeper is not read."""

MAX_PARSED = 15_000
"""After how many characters the parser gets no more scripts that lie in the first one."""

_SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/etc/alternatives")
_UNREADABLE_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_BRACE_EXPANSION = re.compile(r"\{(?=[^{}]*(,|\.\.))[^{}]*\}")
_HEREDOC_MARKER = re.compile(r"\\?[\w.-]+|'[\w.-]+'|\"[\w.-]+\"")
# Bash reads subscripts and numbers a second time, and then runs what was only text at first.
_RUNS_WHEN_READ_AGAIN = re.compile(r"'[^']*(\$\(|`)|\\[$`]|[<>]\(|\$[\"'][^\"']*\(")
_COMMAND_IN_SUBSCRIPT = re.compile(r"(?:^|\])(?>[^\]]*?\w\[)[^\]]*(\$\(|`)")
# In arithmetic: a value that comes from a command, or from something else than a plain name.
_COMPUTED_NUMBER = re.compile(r"\$(?!\{#)[^\w?#$!]|`")
_NAMED_NUMBER = re.compile(r"[A-Za-z_]|\$\d")
_PLAIN_NUMBERS = re.compile(r"\{\d+\.\.\d+\}|\$\(\([^$`\[]*\)\)")
_ASSIGNMENT = re.compile(r"(BASH_FUNC_[^=]*|\w+)(\[.*\])?:?(\+?=)(.*)", re.DOTALL)
_SCRIPT_OPTION = re.compile(r"-[a-jl-np-zA-NP-Z]{0,3}c[a-jl-np-zA-NP-Z]{0,2}")
_HARMLESS_SHELL_OPTION = re.compile(r"[-+][abd-jl-np-rt-zA-NP-Z]{1,3}|--(posix|norc|noprofile|login)")


@lru_cache(maxsize=64)  # few, because a command may be long
def parse_command(command: str) -> tuple[CommandPart, ...]:
    """Find everything that a command line would do, as far as that can be read without running it."""
    reader = CommandReader()
    reader.read_script(command, 0)
    reader.finish()
    return tuple(dict.fromkeys(reader.parts))


class CommandReader:
    """Walks a syntax tree and collects its parts. Scripts inside of scripts are read the same way."""

    def __init__(self) -> None:
        self.parts: list[CommandPart] = []
        self._table = load_command_table()
        self._builtins = self._table.bash
        self._depth = 0
        self.parsed = 0
        self._script: Script | None = None
        self._arithmetic = ""
        self._has_any_text = False
        self._values: dict[str, str] = {}

    def read_script(self, source: str, depth: int) -> None:
        if depth > MAX_DEPTH or _UNREADABLE_CHARACTER.search(source):
            self._add_unknown(source)
            return
        script = parse_script(source) if self.parsed <= MAX_PARSED else None
        if script is None or script.is_misread():
            self._add_unknown(source)
        if script is None:
            return
        self.parsed += len(script.short.source)
        before = self._depth, self._script
        self._depth, self._script = depth, script
        try:
            self._visit(script.root)
        except RecursionError:
            self._add_unknown(source)
        self._depth, self._script = before

    def finish(self) -> None:
        """Add arithmetic on a variable that may hold any text. That is known only at the end."""
        if self._arithmetic and self._has_any_text:
            self._add_arithmetic(self._arithmetic)

    def _add_unknown(self, source: str, *more: ShellWord) -> None:
        text = self._script.short.restore(source) if self._script else source
        words = (ShellWord(" ".join(text.split()), is_literal=False), *more)
        self.parts.append(CommandPart("unknown", words))

    def _add_arithmetic(self, text: str) -> None:
        """Add arithmetic as a part of its own: it may run commands in the text that its numbers come from."""
        words = (ShellWord("$((", is_literal=False), ShellWord(" ".join(text.split()), is_literal=False))
        self.parts.append(CommandPart("command", words))

    def _check_arithmetic(self, text: str) -> None:
        if _COMPUTED_NUMBER.search(text) or any(map(self._table.find_variable, find_assigned_names(text))):
            self._add_arithmetic(text)
        elif _NAMED_NUMBER.search(text):
            self._arithmetic = text

    def _check_assigned(self, values: Sequence[ShellWord]) -> None:
        """Remember that a variable may hold text that runs something where a number is expected."""
        for word in values:
            if word.is_literal:
                names = set(re.findall(r"\w+", word.text))  # arithmetic may set the variable that a text names
                is_number = not re.search(r"[\[$`]", word.text) and not any(map(self._table.find_variable, names))
            else:
                is_number = _PLAIN_NUMBERS.fullmatch(word.text) is not None
            self._has_any_text = self._has_any_text or not is_number

    def _check_subscripts(self, words: Sequence[ShellWord]) -> None:
        """Mark text that runs when bash takes it for the name of an element, as many of its own commands do."""
        for word in words:
            if _COMMAND_IN_SUBSCRIPT.search(word.text) and (word.is_literal or re.search(r"['\\]", word.text)):
                self._add_unknown(word.text)

    # ── syntax ─────────────────────────────────────────────────────────────────────────────────────────────

    def _visit(self, node: Node, *, reads_pipe: bool = False) -> None:
        for text in find_arithmetic(node):
            self._check_arithmetic(text)
        self._has_any_text = self._has_any_text or assigns_text(node)
        match node.type:
            case "command":
                self._visit_command(node, reads_pipe=reads_pipe)
            case "pipeline":
                in_heredoc = node.parent is not None and node.parent.type == "heredoc_redirect"
                for number, child in enumerate(node.named_children):
                    self._visit(child, reads_pipe=reads_pipe or in_heredoc or number > 0)
            case "declaration_command" | "unset_command":
                self._visit_declaration(node)
            case "variable_assignment":
                self._add_assignment(self._read_assignment(node))
            case "file_redirect":
                self._visit_redirect(node)
            case "heredoc_redirect":
                self._visit_heredoc(node)
            case "herestring_redirect":
                self._check_subscripts([self._read_word(child) for child in node.named_children])
            case "for_statement":
                self._visit_loop(node)
            case "command_substitution":
                self._visit_substitution(node)
            case "arithmetic_expansion" if "'" in get_node_text(node):  # which quotes nothing there
                self._add_unknown(get_node_text(node))
            case "expansion" if self._is_unreadable_value(ShellWord(get_node_text(node)[2:-1], is_literal=False)):
                self._add_unknown(get_node_text(node))
            case "expansion" | "subscript" | "test_command" if _RUNS_WHEN_READ_AGAIN.search(get_node_text(node)):
                self._add_unknown(get_node_text(node))
            case "compound_statement" if (text := get_node_text(node)).startswith("((") and (
                _RUNS_WHEN_READ_AGAIN.search(text)
            ):
                self._add_unknown(text)
            case _:
                for child in node.named_children:
                    self._visit(child, reads_pipe=reads_pipe)

    def _visit_loop(self, node: Node) -> None:
        """Visit `for x in …` and `select`: their variable takes any of the listed texts."""
        values, variable = node.children_by_field_name("value"), node.child_by_field_name("variable")
        if variable is not None and self._table.find_variable(get_node_text(variable)):
            self._add_unknown(get_node_text(node))
        words = [self._read_word(child) for child in values]
        self._check_subscripts(words)
        self._check_assigned(words)
        seen = {child.id for child in values}
        for child in node.named_children:
            if child.id not in seen:
                self._visit(child)

    def _visit_command(self, node: Node, *, reads_pipe: bool) -> None:
        words: list[ShellWord] = []
        end = node.start_byte
        for child in node.named_children:
            between = (node.text or b"")[end - node.start_byte : child.start_byte - node.start_byte]
            end = child.end_byte
            if words and not between and not child.type.endswith("_redirect"):
                self._add_unknown(get_node_text(node))  # bash reads it as one word
            elif words and b"\n" in between.replace(b"\\\n", b""):
                # After a pipe of three the grammar takes the next line for arguments; bash does not.
                self._add_command(words, reads_pipe=reads_pipe)
                words = []
            if child.type == "variable_assignment" or child.type.endswith("_redirect"):
                self._visit(child)
            elif child.type == "command_name":
                words.extend(self._read_word(piece) for piece in child.named_children or [child])
            else:
                words.append(self._read_word(child))
        if words:
            self._add_command(words, reads_pipe=reads_pipe)

    def _visit_declaration(self, node: Node) -> None:
        words = [
            self._read_word(child) if child.is_named else ShellWord(get_node_text(child)) for child in node.children
        ]
        name = words[0].text
        self._check_subscripts(words)
        self._check_variable_names(name, words)
        self._check_assigned([word.assigned_value for word in words if "=" in word.text])
        self.parts.append(CommandPart("unknown" if self._runs_program(name, words) else "command", tuple(words)))

    def _visit_redirect(self, node: Node) -> None:
        operator = next((child.type for child in node.children if child.type.strip("<>&|") == ""), ">")
        targets = node.children_by_field_name("destination")
        if len(targets) > 1:
            self._add_unknown(get_node_text(node))  # all but the first are words of the command
        for target in targets:
            word = self._read_word(target)
            path = normalize_path(word.text) if word.is_literal and word.text else word.text
            if (operator.endswith("&") and re.fullmatch(r"\d*-?", path)) or path in STANDARD_DEVICES:
                continue
            direction = ShellWord("<" if operator == "<" else ">")
            self.parts.append(CommandPart("redirect", (direction, ShellWord(path, word.is_literal))))

    def _visit_heredoc(self, node: Node) -> None:
        marker = next((get_node_text(child) for child in node.children if child.type == "heredoc_start"), "")
        plain = marker.strip("'\"\\")
        for child in node.named_children:
            if child.type != "heredoc_body":
                self._visit(child, reads_pipe=child.type == "pipeline")
            # Bash may see another end than the grammar, and run what comes after it.
            elif not _HEREDOC_MARKER.fullmatch(marker) or plain in map(str.strip, get_node_text(child).splitlines()):
                self._add_unknown(get_node_text(node))
            elif plain == marker:
                self._visit(child)

    def _visit_substitution(self, node: Node) -> None:
        text = get_node_text(node)
        if text.startswith("`"):  # inside of backticks bash removes a backslash first
            self.read_script(re.sub(r"\\([`$\\])", r"\1", text[1:-1]), self._depth + 1)
            return
        for child in node.named_children:
            self._visit(child)

    def _read_assignment(self, node: Node) -> ShellWord:
        for name in node.children_by_field_name("name"):
            self._visit(name)
        value = node.child_by_field_name("value")
        word = self._read_word(value) if value is not None else ShellWord("")
        name = get_node_text(node)[: (value.start_byte if value is not None else node.end_byte) - node.start_byte]
        return ShellWord(f"{name}{word.text}", word.is_literal)

    def _read_word(self, node: Node) -> ShellWord:
        """Read the value of a word, and collect the commands that it runs."""
        text = self._script.short.restore(get_node_text(node)) if self._script else ""
        match node.type:
            case "word" | "number" | "variable_name" | "command_name" | "special_character" if not node.named_children:
                plain = re.sub(r"\\.", "", text, flags=re.DOTALL)
                is_expanded = re.search(r"[*?\[`]|^~", plain) or _BRACE_EXPANSION.search(plain)
                return ShellWord(text, is_literal=False) if is_expanded else ShellWord(remove_escapes(text))
            case "raw_string":
                return ShellWord(text[1:-1])
            case "ansi_c_string":
                return ShellWord(decode_ansi_quotes(text[2:-1]), is_literal=not re.search(r"\\[uUc]", text))
            case "string" if all(child.type == "string_content" for child in node.named_children):
                inside = text[text.index('"') + 1 : -1]
                return ShellWord(remove_escapes(inside, in_quotes=True), is_literal="`" not in text)
            case "concatenation":
                words = [self._read_word(child) for child in node.named_children]
                length = sum(child.end_byte - child.start_byte for child in node.named_children)
                is_whole = length == node.end_byte - node.start_byte
                if is_whole and all(word.is_literal for word in words) and not _BRACE_EXPANSION.search(text):
                    return ShellWord("".join(word.text for word in words))
                return ShellWord(text, is_literal=False)
            case "variable_assignment":  # an argument of `export` and the like
                return self._read_assignment(node)
            case _:
                self._visit(node)
                return ShellWord(text, is_literal=False)

    # ── commands ───────────────────────────────────────────────────────────────────────────────────────────

    def _add_inner_command(self, words: Sequence[ShellWord], *, reads_pipe: bool = False) -> None:
        """Add a command that another command runs."""
        if self._depth >= MAX_DEPTH:
            self._add_unknown(words[0].text, *words[1:])
            return
        self._depth += 1
        self._add_command(words, reads_pipe=reads_pipe)
        self._depth -= 1

    def _add_command(self, words: Sequence[ShellWord], *, reads_pipe: bool = False) -> None:
        folder, slash, name = words[0].text.rpartition("/")
        is_unreadable = not name or name in self._builtins.reserved_words or is_stream(words[0])
        is_unreadable |= name in self._table.programs.unreadable and (not folder or folder.startswith("/"))
        if slash and normalize_path(folder or "/") not in _SYSTEM_FOLDERS:
            name = words[0].text  # only a program of the system is known by its name alone
        if not words[0].is_literal or "{}" in name or is_unreadable:
            self._add_unknown(words[0].text, *words[1:])
            return
        self._check_subscripts(words)
        self._has_any_text = self._has_any_text or name in self._builtins.reads_text
        self._check_variable_names(name, words)
        option = words[1].text if len(words) > 1 else ""
        if name == "printf" and option.startswith("-v"):
            variable = ShellWord(option[2:]) if option != "-v" else (*words[2:], ShellWord(""))[0]
            if _is_computed_name(variable):
                self._add_unknown(variable.text)
            self._add_assignment(ShellWord(f"{variable.text}=", is_literal=False))
        if name == "test":
            # `test` may take a value for the name of an element, or one without quotes for the option to do so.
            names = [word.text for word in words[1:] if not word.is_literal]
            self._check_arithmetic(" ".join(one for one in names if option == "-v" or not one.startswith('"')))
        words = (ShellWord(name), *words[1:])
        wrapper = self._table.find_wrapper(name, option)
        if wrapper is not None and not (name == "command" and option in ("-v", "-V")):
            self._add_wrapped(wrapper, words, reads_pipe=reads_pipe)
        elif name in self._table.programs.shells:
            self._add_shell(words, reads_pipe=reads_pipe)
        elif name in ("eval", "su", "trap"):
            self._add_evaluated(name, words)
        else:
            kind = "unknown" if self._runs_program(name, words) else "command"
            self.parts.append(CommandPart(kind, words, reads_pipe))
            self._add_helpers(name, words)

    def _runs_program(self, name: str, words: Sequence[ShellWord]) -> bool:
        """Whether a command runs another program in a way that is not read here."""
        texts, helper = [word.text for word in words[1:]], self._table.find_helper(name)
        if self._runs_later(name, words):
            return True
        if name in self._table.programs.with_scripts and not is_plain_program(words, self._values):
            return True
        if name in self._table.files.changes_folder and any(map(is_stream, words[1:])) and texts != ["-"]:
            return True  # a stream can then be named without its folder
        return (helper is not None and helper.is_unreadable(texts)) or self._table.find_danger(name, texts)[1]

    def _add_helpers(self, name: str, words: Sequence[ShellWord]) -> None:
        """Add the commands that the options of a command make it run."""
        for inner in find_exec_commands(words) if name in ("find", "fd", "fdfind") else ():
            if inner:
                self._add_inner_command(inner)
            else:
                self._add_unknown(name, *words[1:])
        if helper := self._table.find_helper(name):
            for number, script in helper.find_values([word.text for word in words]):
                self._add_script(words, [ShellWord(script, one.is_literal) for one in words[number : number + 1]])
            for word in words[1:] if helper.sets_variables else ():
                if self._is_unreadable_value(word):
                    self._add_unknown(word.text)

    def _add_wrapped(self, wrapper: Wrapper, words: Sequence[ShellWord], *, reads_pipe: bool) -> None:
        """Add a command that runs the command in the rest of its words."""
        name = words[0].text
        if name == "env":  # for which a lone dash is an option
            words = [word for word in words if word.text != "-"]
        start = wrapper.find_first_operand([word.text for word in words])
        # A word that is not known before it runs may be none, or several, and the command another.
        if start is None or not all(word.is_literal for word in words[1 : start + wrapper.skip]):
            self._add_unknown(words[0].text, *words[1:])
            return
        if wrapper.is_listed or (name == "env" and start > 1):
            self.parts.append(CommandPart("command", tuple(words)))
        rest = list(words[start + wrapper.skip :])
        while name in ("env", "sudo", "doas") and rest and "=" in rest[0].text:
            self._add_assignment(rest.pop(0))
        if wrapper.is_script and rest:
            self._add_script(words, rest)
        elif rest and name == "xargs":
            placeholder = find_xargs_placeholder(words[:start])
            inner = [ShellWord(one.text.replace(placeholder, "{}"), one.is_literal) for one in rest]
            self._add_inner_command([*inner, ShellWord("$@", is_literal=False)])
        elif rest:
            self._add_inner_command(rest, reads_pipe=reads_pipe)
        elif not wrapper.is_listed:
            self.parts.append(CommandPart("command", tuple(words)))

    def _add_shell(self, words: Sequence[ShellWord], *, reads_pipe: bool) -> None:
        """Add the script of `bash -c "…"`. A shell that reads its commands from elsewhere is unreadable."""
        for number, word in enumerate(words[1:], 1):
            # Longer ones are other options: bash takes some with one dash.
            if word.is_literal and _SCRIPT_OPTION.fullmatch(word.text):
                script = words[number + 1 : number + 2]
                needs_bash = words[0].text != "bash" and any("$'" in one.text for one in script)
                if needs_bash or any(re.match(r"[-+]", one.text) for one in script):
                    self._add_unknown(words[0].text, *words[1:])
                self._add_script(words, script)
                self._check_assigned(words[number + 2 :])  # its $0, $1 and so on
                return
            if not word.is_literal or not _HARMLESS_SHELL_OPTION.fullmatch(word.text):
                is_file = not re.match(r"[-+]", word.text) and not is_stream(word)
                kind = "command" if word.is_literal and is_file else "unknown"
                self.parts.append(CommandPart(kind, tuple(words), reads_pipe))
                return
        self.parts.append(CommandPart("unknown", tuple(words), reads_pipe))

    def _add_evaluated(self, name: str, words: Sequence[ShellWord]) -> None:
        """Add the words of `eval`, `trap` and `su -c` as a script."""
        if name != "eval":
            self.parts.append(CommandPart("command", tuple(words)))
        if name == "su":
            for number, word in enumerate(words):
                if word.text in ("-c", "--command"):
                    self._add_script(words, words[number + 1 : number + 2])
            return
        start = 2 if len(words) > 1 and words[1].text == "--" else 1
        script = words[start:] if name == "eval" else words[start : start + 1]
        if script and not (name == "trap" and script[0].text.startswith("-")):
            self._add_script(words, script)

    def _add_script(self, words: Sequence[ShellWord], script: Sequence[ShellWord]) -> None:
        """Add words that a shell reads as a script of their own."""
        # The text that replaces `{}` gets into the script before the shell reads it, whatever it says.
        if script and all(word.is_literal and "{}" not in word.text for word in script):
            self.read_script(" ".join(word.text for word in script), self._depth + 1)
        else:
            self._add_unknown(words[0].text, *words[1:])

    def _add_assignment(self, word: ShellWord) -> None:
        if self._is_unreadable_value(word):
            self._add_unknown(word.text)
        else:
            self.parts.append(CommandPart("assignment", (word,)))
            self._check_assigned([word.assigned_value])
        self._check_subscripts([word])

    def _is_unreadable_value(self, assignment: ShellWord) -> bool:
        """Whether a variable gets a value that changes what runs, and not in a way that is read here.

        Where the value is a command, it is read.
        """
        found = _ASSIGNMENT.match(assignment.text)
        if found is not None and assignment.is_literal:
            self._values[found[1]] = self._values.get(found[1], "") + found[4]
        variable = self._table.find_variable(found[1]) if found else None
        if found is None or variable is None:
            return False
        value = found[4].strip("\"'")
        if variable.harmless is not None and variable.harmless.fullmatch(value):
            return False
        if not variable.is_command or not assignment.is_literal or found[3] != "=":
            return True
        self.read_script(value, self._depth + 1)
        return False

    def _names_variable(self, text: str) -> bool:
        """Whether a word names a variable that changes what runs, alone or behind an option: `PS4`, `-aPS4`."""
        names = [text[start:] for start in range(1, min(len(text), 8))] if text.startswith("-") else [text]
        return any(self._table.find_variable(name.partition("[")[0]) for name in names)

    def _check_variable_names(self, name: str, words: Sequence[ShellWord]) -> None:
        """Check what bash's own commands take for numbers, or for names of variables that they set."""
        declares = name in self._builtins.declares_variables
        if name == "let" or (declares and any(re.match(r"-\w*[in]", word.text) for word in words)):
            self._check_arithmetic(" ".join(word.text for word in words[1:]))
        elif name in self._builtins.sets_variables:
            chosen = [two for one, two in pairwise(words) if one.text == "-v"] if name == "printf" else words[1:]
            texts = [word.text for word in chosen if not word.is_literal]
            # Bash reads a list in quotes a second time, and its values with it.
            names = [text if re.match(r'"\w+\+?=\(', text) else text.partition("=")[0] for text in texts]
            self._check_arithmetic(" ".join(one for one in names if re.search(r"[$`]", one)))

    def _runs_later(self, name: str, words: Sequence[ShellWord]) -> bool:
        """Whether a command of bash itself runs what it reads, or sets what runs later."""
        if name in (".", "source"):
            return any(not word.is_literal or is_stream(word) for word in words[1:2])
        if name in self._builtins.sets_variables:
            # One variable may stand for another, or have a name that is known only when it runs.
            can_refer = name in ("declare", "local", "typeset")
            return any(
                self._is_unreadable_value(word)
                or (name not in self._builtins.declares_variables and self._names_variable(word.text))
                or (can_refer and re.match(r"-\w*n", word.text))
                or (name != "printf" and _is_computed_name(word))
                for word in words[1:]
            )
        if name == "hash":
            return any(re.match(r"-\w*p", word.text) for word in words)
        return name in ("mapfile", "readarray") and any(
            not word.is_literal or re.match(r"-\w*C", word.text) or self._names_variable(word.text) for word in words
        )


def _is_computed_name(variable: ShellWord) -> bool:
    return not variable.is_literal and re.search(r"[$`*?{]", variable.text.partition("=")[0]) is not None
