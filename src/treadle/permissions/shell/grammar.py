"""Bash's grammar, how its words are quoted, and where it falls short of bash.

What it overlooks or takes for something else is found in the text, so that a person is asked; what a command does is
read elsewhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_JOINED = re.compile(rb"[^\s\\](\\\\)*\\\n\S")
_SUBSTITUTION = re.compile(rb"\\.|(`|\$[(\[]|\$\{[^}]*@[A-Z]\})", re.DOTALL)
_STATEMENTS = frozenset(
    ("program", "list", "pipeline", "redirected_statement", "command", "subshell", "compound_statement", "do_group")
)
_COUNTING = ("initializer", "condition", "update")
_INDIRECT = re.compile(r"\$\{!(\w+)(?![\w@*\[])")
_GIVES = re.compile(r"\$\{!?\w+(\[.*\])?:?=", re.DOTALL)
_OFFSET = re.compile(r"\$\{[^:}]*:(?![-=?+])(.*)\}$", re.DOTALL)
_COMPARES = re.compile(r"\s-(eq|ne|lt|le|gt|ge|v)\s")
_NAMES = re.compile(r"\s-v\s")
_QUOTED = re.compile(r'"[^"]*"')
_ESCAPED, _ESCAPED_IN_QUOTES = re.compile(r"\\(\n|.)"), re.compile(r'\\([\\"$`\n])')
_ANSI = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_LETTERS = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"', "e": "\x1b", "E": "\x1b", "r": "\r"}


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


def parse_script(source: str) -> Node:
    """The syntax tree of a script."""
    return _parser().parse(source.encode()).root_node


def get_node_text(node: Node) -> str:
    """What a node stands for, as it is written."""
    return (node.text or b"").decode("utf-8", "replace")


def is_misread(root: Node) -> bool:
    """Whether something may run that the tree does not show.

    `${x@P}` is run, too: what is in x. And a word that goes on in the next line is two words to the grammar.
    """
    source = bytearray(root.text or b"")
    if root.has_error or _JOINED.search(source):
        return True
    seen, nodes = set[int](), [root]
    while nodes:
        node = nodes.pop()
        start, end = node.start_byte - root.start_byte, node.end_byte - root.start_byte
        if node.type in ("$(", "$((", "$[", "`"):
            seen.add(start)
        elif (
            (node.type == "comment" and not _begins_a_word(source, start))
            or (node.type == "heredoc_end" and not _is_whole_line(node, source, start, end))
            or (node.type in _STATEMENTS and _leaves_out(node))
            or (node.type in ("number", "word") and _is_descriptor(node, source, end))
        ):
            return True
        elif node.type in ("raw_string", "ansi_c_string", "comment") or _is_verbatim(node):
            source[start:end] = b" " * (end - start)
        else:
            nodes.extend(node.children)
    return any(found[1] and found.start() not in seen for found in _SUBSTITUTION.finditer(source))


def find_arithmetic(node: Node) -> list[str]:
    """What of a node bash takes for numbers, or for names of elements: it runs what it finds in their values.

    `[` may get such a name from a value without quotes.
    """
    text = get_node_text(node)
    match node.type:
        case "arithmetic_expansion":
            return [text[2:]]
        case "compound_statement" if text.startswith("(("):
            return [text]
        case "c_style_for_statement":
            return [get_node_text(one) for name in _COUNTING for one in node.children_by_field_name(name)]
        case "subscript":
            return [get_node_text(one) for one in node.children_by_field_name("index")]
        case "expansion" if found := _INDIRECT.match(text):
            return [f"${found[1]}"]
        case "expansion":
            return [found[1]] if (found := _OFFSET.match(text)) else []
        case "test_command":
            if (_COMPARES if text.startswith("[[") else _NAMES).search(text):
                return [text]
            return [] if text.startswith("[[") else [_QUOTED.sub("", text)]
        case _:
            return []


def assigns_text(node: Node) -> bool:
    """Whether a node may give a name any text, as `${x:=…}` does, and a function with what it is called with."""
    if node.type == "expansion":
        return _GIVES.match(get_node_text(node)) is not None
    return node.type == "function_definition"


def _leaves_out(node: Node) -> bool:
    """Whether there is text between the parts of a statement that belongs to none; a dash before `<<` is dropped so."""
    text, at = node.text or b"", node.start_byte
    for child in node.children:
        between = text[at - node.start_byte : child.start_byte - node.start_byte]
        if between.replace(b"\\\n", b"").strip() not in (b"", b"-"):
            return True
        at = child.end_byte
    return False


def _begins_a_word(source: bytearray, start: int) -> bool:
    """Where a `#` is a comment to bash as well."""
    return re.search(rb"(^|^[\s;&|()]|[^\\][\s;&|()])$", source[:start][-2:]) is not None


def _is_descriptor(node: Node, source: bytearray, end: int) -> bool:
    """Where the grammar takes for a word what says which descriptor is redirected: `sh 0<file`."""
    if node.parent is None or node.parent.type != "command" or bytes(source[end : end + 1]) not in (b"<", b">"):
        return False
    return re.fullmatch(r"\d+|\{\w+\}", get_node_text(node)) is not None


def _is_whole_line(end_mark: Node, source: bytearray, start: int, end: int) -> bool:
    """Where a here-document ends to bash as well: nothing else is in the line but, after `<<-`, tabs before it."""
    before = source[:start].rpartition(b"\n")[2]
    dashed = end_mark.parent is not None and any(child.type == "<<-" for child in end_mark.parent.children)
    return not before.strip(b"\t" if dashed else b"") and not source[end : end + 1].strip(b"\n")


def _is_verbatim(node: Node) -> bool:
    """Whether this is a here-document in which nothing is run."""
    if node.type != "heredoc_body" or node.parent is None:
        return False
    return any(
        child.type == "heredoc_start" and set(get_node_text(child)) & set("'\"\\") for child in node.parent.children
    )


def remove_escapes(text: str, *, in_quotes: bool = False) -> str:
    """A text as bash takes it: without its backslashes, and lines joined where one ends in a backslash."""
    escaped = _ESCAPED_IN_QUOTES if in_quotes else _ESCAPED
    return escaped.sub(lambda found: "" if found[1] == "\n" else found[1], text)


def decode_ansi_quotes(text: str) -> str:
    """What stands in `$'…'` as bash takes it."""
    return _ANSI.sub(_ansi, text)


def _ansi(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8) & 0xFF) if code.isdigit() else _ANSI_LETTERS.get(code, found[0])
