"""Bash's grammar: the syntax tree, how words are quoted, and where the grammar differs from bash.

Where the grammar overlooks or misreads something, the text shows it, so that a person is asked. `parse.py` reads
what a command does.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_JOINED_LINES = re.compile(rb"[^\s\\](\\\\)*\\\n\S")
_SUBSTITUTION = re.compile(rb"\\.|(`|\$[(\[]|\$\{[^}]*@[A-Z]\})", re.DOTALL)
_BEFORE_COMMENT = re.compile(rb"(^|^[\s;&|()]|[^\\][\s;&|()])$")
_STATEMENTS = frozenset(
    ("program", "list", "pipeline", "redirected_statement", "command", "subshell", "compound_statement", "do_group")
)
_LOOP_FIELDS = ("initializer", "condition", "update")
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


def parse_script(source: str) -> Node:
    """Parse a script into its syntax tree."""
    return _load_parser().parse(source.encode()).root_node


def get_node_text(node: Node) -> str:
    """Return the text of a node as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def is_misread(root: Node) -> bool:
    """Whether something may run that the tree does not show.

    `${x@P}` runs the text in x. A word that continues in the next line is two words to the grammar.
    """
    source = bytearray(root.text or b"")
    if root.has_error or _JOINED_LINES.search(source):
        return True
    seen, nodes = set[int](), [root]
    while nodes:
        node = nodes.pop()
        start, end = node.start_byte - root.start_byte, node.end_byte - root.start_byte
        if node.type in ("$(", "$((", "$[", "`"):
            seen.add(start)
        elif (
            (node.type == "comment" and not _BEFORE_COMMENT.search(source[:start][-2:]))
            or (node.type == "heredoc_end" and not _is_whole_line(node, source, start, end))
            or (node.type in _STATEMENTS and _has_lost_text(node))
            or (node.type in ("number", "word") and _is_descriptor(node, source, end))
        ):
            return True
        elif node.type in ("raw_string", "ansi_c_string", "comment") or _is_verbatim_heredoc(node):
            source[start:end] = b" " * (end - start)
        else:
            nodes.extend(node.children)
    return any(found[1] and found.start() not in seen for found in _SUBSTITUTION.finditer(source))


def find_arithmetic(node: Node) -> list[str]:
    """Find the texts that bash takes for numbers or names of elements: it runs commands in their values.

    `[` may get such a name from a value without quotes.
    """
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


def _is_descriptor(node: Node, source: bytearray, end: int) -> bool:
    """Whether the grammar takes the number of a descriptor for a word: `sh 0<file`."""
    if node.parent is None or node.parent.type != "command" or bytes(source[end : end + 1]) not in (b"<", b">"):
        return False
    return re.fullmatch(r"\d+|\{\w+\}", get_node_text(node)) is not None


def _is_whole_line(end_mark: Node, source: bytearray, start: int, end: int) -> bool:
    """Whether a here-document ends here for bash as well: alone in its line, after `<<-` behind tabs."""
    before = source[:start].rpartition(b"\n")[2]
    has_dash = end_mark.parent is not None and any(child.type == "<<-" for child in end_mark.parent.children)
    return not before.strip(b"\t" if has_dash else b"") and not source[end : end + 1].strip(b"\n")


def _is_verbatim_heredoc(node: Node) -> bool:
    """Whether this is a here-document in which nothing runs."""
    if node.type != "heredoc_body" or node.parent is None:
        return False
    starts = [get_node_text(child) for child in node.parent.children if child.type == "heredoc_start"]
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
