"""Bash's grammar: the syntax tree, how words are quoted, and where the grammar differs from bash.

Where the grammar overlooks or misreads something, the text shows it, so that a person is asked. `parse.py` reads
what a command does.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.permissions.shell.verbatim import MARK, ShortScript, shorten_script

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_JOINED_LINES = re.compile(rb"[^\s\\](\\\\)*\\\n\S")
_SUBSTITUTION = re.compile(rb"\\.|(`|\$[(\[]|\$\{[^}]*@[A-Z]\})", re.DOTALL)
_BEFORE_COMMENT = re.compile(rb"(^|^[\s;&|()]|[^\\][\s;&|()])$")
_HEREDOC_MARK = re.compile(r"<<")
_MAX_HEREDOCS = 50
_PLACES_OF_TEXTS = frozenset(("command", "variable_assignment", "heredoc_redirect"))
_STATEMENTS = frozenset(
    ("program", "list", "pipeline", "redirected_statement", "command", "subshell", "compound_statement", "do_group")
)
_WITH_ARITHMETIC = frozenset(
    (
        *("arithmetic_expansion", "array", "compound_statement", "c_style_for_statement", "expansion", "subscript"),
        "test_command",
    )
)
_LOOP_FIELDS = ("initializer", "condition", "update")
_ASSIGNED_IN_ARITHMETIC = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|(?<![\w$])([A-Za-z_]\w*)\s*(?:\+\+|--|(?:<<|>>|[-+*/%&^|])?=(?!=))"
)
_ARRAY_INDEX = re.compile(r"[\s(]\[([^\]]*)\]\+?=")
_INDIRECT_NAME = re.compile(r"\$\{!(\w+)(?![\w@*\[])")
_DEFAULT_VALUE = re.compile(r"\$\{!?\w+(\[.*\])?:?=", re.DOTALL)
_OFFSET = re.compile(r"\$\{[^:}]*:(?![-=?+])(.*)\}$", re.DOTALL)
_NUMBER_TEST = re.compile(r"\s-(eq|ne|lt|le|gt|ge|v)\s")
_NAME_TEST = re.compile(r"\s-v\s")
_QUOTED = re.compile(r'"[^"]*"')
_ESCAPED, _ESCAPED_IN_QUOTES = re.compile(r"\\(\n|.)"), re.compile(r'\\([\\"$`\n])')
_ANSI_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_LETTERS = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "e": "\x1b", "E": "\x1b", "r": "\r"}


@lru_cache(maxsize=1)
def _load_parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class Script(Struct, frozen=True):
    """The syntax tree of a script, in which marks may stand for long texts."""

    root: Node
    short: ShortScript

    def is_misread(self) -> bool:
        """Whether something may run that the tree does not show.

        `${x@P}` runs the text in x. A word that continues in the next line is two words to the grammar. A mark that is
        not a text of its own may hide anything.
        """
        source, root = bytearray(self.root.text or b""), self.root
        if root.has_error or _JOINED_LINES.search(source):
            return True
        hidden, seen = 0, set[int]()
        nodes: list[tuple[Node, Node | None]] = [(root, None)]
        while nodes:
            node, parent = nodes.pop()
            start, end = node.start_byte - root.start_byte, node.end_byte - root.start_byte
            if self.short.texts and self._is_hidden_text(node, parent):
                hidden += 1
            if node.type in ("$(", "$((", "$[", "`"):
                seen.add(start)
            elif (
                (node.type == "comment" and not _BEFORE_COMMENT.search(source[max(start - 2, 0) : start]))
                or (node.type == "heredoc_end" and not _is_whole_line(parent, source, start, end))
                or (node.type in _STATEMENTS and _has_lost_text(node))
                or (node.type in ("number", "word", "concatenation") and _is_descriptor(node, parent, source, end))
            ):
                return True
            elif node.type in ("raw_string", "ansi_c_string", "comment") or _is_verbatim_heredoc(node, parent):
                source[start:end] = b" " * (end - start)
            else:
                nodes.extend((child, node) for child in node.children)
        if hidden != len(self.short.texts):
            return True
        return any(found[1] and found.start() not in seen for found in _SUBSTITUTION.finditer(source))

    @staticmethod
    def _is_hidden_text(node: Node, parent: Node | None) -> bool:
        """Whether a node is one whole text that a mark stands for, where bash reads it once and runs nothing."""
        if parent is None or parent.type not in _PLACES_OF_TEXTS:
            return False
        if node.type == "heredoc_body":
            return MARK.fullmatch(get_node_text(node).strip()) is not None
        if node.type == "raw_string" or (node.type == "string" and node.named_child_count == 1):
            return MARK.fullmatch(get_node_text(node)[1:-1]) is not None
        return False


def parse_script(source: str) -> Script | None:
    """Parse a script into its syntax tree; None when it is too long for the parser."""
    short = shorten_script(source)
    # The grammar looks at all open here-documents for each character.
    if short is None or len(_HEREDOC_MARK.findall(short.source)) > _MAX_HEREDOCS:
        return None
    return Script(_load_parser().parse(short.source.encode()).root_node, short)


def get_node_text(node: Node) -> str:
    """Return the text of a node as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def find_arithmetic(node: Node) -> list[str]:
    """Find the texts that bash takes for numbers or names of elements: it runs commands in their values.

    `[` may get such a name from a value without quotes.
    """
    if node.type not in _WITH_ARITHMETIC:
        return []
    text = get_node_text(node)
    match node.type:
        case "arithmetic_expansion":
            return [text[2:]]
        case "compound_statement" if text.startswith("(("):
            return [text]
        case "c_style_for_statement":
            return [get_node_text(child) for field in _LOOP_FIELDS for child in node.children_by_field_name(field)]
        case "subscript":
            return [get_node_text(child) for child in node.children_by_field_name("index")]
        case "array":
            return _ARRAY_INDEX.findall(text)
        case "expansion" if found := _INDIRECT_NAME.match(text):
            return [f"${found[1]}"]
        case "expansion":
            return [found[1]] if (found := _OFFSET.match(text)) else []
        case "test_command" if text.startswith("[["):
            return [text] if _NUMBER_TEST.search(text) else []
        case "test_command":
            return [text] if _NAME_TEST.search(text) else [_QUOTED.sub("", text)]
        case _:
            return []


def find_assigned_names(arithmetic: str) -> list[str]:
    """Find the variables to which arithmetic gives a number: `PATH=1`, `PATH++`."""
    return [before or after for before, after in _ASSIGNED_IN_ARITHMETIC.findall(arithmetic)]


def assigns_text(node: Node) -> bool:
    """Whether a node may give a variable any text: `${x:=…}`, and a function with its arguments."""
    if node.type == "expansion":
        return _DEFAULT_VALUE.match(get_node_text(node)) is not None
    return node.type == "function_definition"


def _has_lost_text(node: Node) -> bool:
    """Whether there is text between the children of a statement. The grammar drops a dash before `<<` so."""
    text, position = node.text or b"", node.start_byte
    for child in node.children:
        between = text[position - node.start_byte : child.start_byte - node.start_byte]
        if between.replace(b"\\\n", b"").strip() not in (b"", b"-"):
            return True
        position = child.end_byte
    return False


def _is_descriptor(node: Node, parent: Node | None, source: bytearray, end: int) -> bool:
    """Whether the grammar takes the number of a descriptor, or of its variable, for a word: `sh 0<file`."""
    if parent is None or parent.type != "command" or bytes(source[end : end + 1]) not in (b"<", b">"):
        return False
    return re.fullmatch(r"\d+|\{\w+\}", get_node_text(node)) is not None


def _is_whole_line(heredoc: Node | None, source: bytearray, start: int, end: int) -> bool:
    """Whether a here-document ends here for bash as well: alone in its line, after `<<-` behind tabs."""
    before = source[source.rfind(b"\n", 0, start) + 1 : start]
    has_dash = heredoc is not None and any(child.type == "<<-" for child in heredoc.children)
    return not before.strip(b"\t" if has_dash else b"") and not source[end : end + 1].strip(b"\n")


def _is_verbatim_heredoc(node: Node, parent: Node | None) -> bool:
    """Whether this is a here-document in which nothing runs."""
    if node.type != "heredoc_body" or parent is None:
        return False
    starts = [get_node_text(child) for child in parent.children if child.type == "heredoc_start"]
    return any(set(start) & set("'\"\\") for start in starts)


def remove_escapes(text: str, *, in_quotes: bool = False) -> str:
    """Remove the backslashes of a text as bash does, and join lines where one ends in a backslash."""
    escaped = _ESCAPED_IN_QUOTES if in_quotes else _ESCAPED
    return escaped.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def decode_ansi_quotes(text: str) -> str:
    """Decode the text in `$'…'` as bash does."""

    def decode(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8) & 0xFF) if code.isdigit() else _ANSI_LETTERS.get(code, found[0])

    return _ANSI_ESCAPE.sub(decode, text)
