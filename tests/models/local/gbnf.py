"""Random sentences of a GBNF grammar, for tests. Understands what treadle writes, not all of the language."""

import random
import re
from typing import Any

TOKEN = re.compile(r'\s*(?:("(?:\\.|[^"\\])*")|(\[(?:\\.|[^\]\\])*\])|([a-z][a-z0-9-]*)|(\{\d+,\d*\})|([()|*?]))')
KINDS = ("literal", "class", "name", "count", "sign")
DEEP = 14
MORE = 3
ALPHABET = [*map(chr, range(0x20, 0x7F)), "é", "漢", "\n", "\t", "\x00", "🙂"]
Tokens = list[tuple[str, str]]
Node = tuple[Any, ...]


def generate_sentence(grammar: str, rng: random.Random) -> str:
    """One text that the grammar admits."""
    rules: dict[str, Node] = {}
    for line in grammar.strip("\n").split("\n"):
        name, body = line.split(" ::= ", 1)
        assert not TOKEN.sub("", body).strip(), f"not GBNF: {body}"
        tokens = [(KINDS[found.lastindex - 1], found[found.lastindex]) for found in TOKEN.finditer(body)]
        rules[name] = read_alternatives(tokens)
    return write(rules["root"], rules, rng, 0)


def read_alternatives(tokens: Tokens) -> Node:
    options = [read_sequence(tokens)]
    while tokens and tokens[0][1] == "|":
        tokens.pop(0)
        options.append(read_sequence(tokens))
    return "either", options


def read_sequence(tokens: Tokens) -> Node:
    parts: list[Node] = []
    while tokens and tokens[0][1] not in ("|", ")"):
        node: Node = tokens.pop(0)
        if node[1] == "(":
            node = read_alternatives(tokens)
            assert tokens.pop(0)[1] == ")"
        if tokens and (tokens[0][0] == "count" or tokens[0][1] in ("*", "?")):
            sign = tokens.pop(0)[1]
            least, most = {"*": ("0", ""), "?": ("0", "1")}.get(sign) or sign[1:-1].split(",")
            node = ("many", node, int(least), int(most) if most else int(least) + MORE)
        parts.append(node)
    return "all", parts


def write(node: Node, rules: dict[str, Node], rng: random.Random, depth: int) -> str:
    match node:
        case "literal", text:
            return unescape(text[1:-1])
        case "class", text:
            return rng.choice(list_members(text[1:-1]))
        case "name", name:
            return write(rules[name], rules, rng, depth + 1)
        case "either", options:
            return write(options[0] if depth > DEEP else rng.choice(options), rules, rng, depth)
        case "many", part, least, most:
            times = rng.randint(least, least if depth > DEEP else min(most, least + MORE))
            return "".join(write(part, rules, rng, depth) for _ in range(times))
        case _, parts:
            return "".join(write(part, rules, rng, depth) for part in parts)


def unescape(text: str) -> str:
    def decode(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if escape[0] == "x" else {"n": "\n", "r": "\r"}.get(escape, escape)

    return re.sub(r"\\(x..|.)", decode, text)


def list_members(text: str) -> list[str]:
    """The characters of a class such as [^"\\x00-\\x1F]."""
    denied = text.startswith("^")
    found: set[str] = set()
    for first, last in re.findall(r"(\\x..|\\.|.)(?:-(\\x..|\\.|.))?", text[denied:]):
        found |= {chr(code) for code in range(ord(unescape(first)), ord(unescape(last or first)) + 1)}
    return [each for each in ALPHABET if each not in found] if denied else sorted(found)
