"""Random sentences of a GBNF grammar, for tests. Understands what treadle writes, not all of the language."""

import random
import re
from dataclasses import dataclass

TOKEN = re.compile(r'\s*(?:("(?:\\.|[^"\\])*")|(\[(?:\\.|[^\]\\])*\])|([a-z][a-z0-9-]*)|(\{\d+,\d*\})|([()|*?]))')
DEEP = 14
MORE = 3
ALPHABET = [*map(chr, range(0x20, 0x7F)), "é", "漢", "\n", "\t", "\x00", "🙂"]


@dataclass
class Node:
    kind: str
    text: str = ""
    parts: "tuple[Node, ...]" = ()
    least: int = 0
    most: int = 0


def generate_sentence(grammar: str, rng: random.Random) -> str:
    """One text that the grammar admits."""
    rules: dict[str, Node] = {}
    for line in grammar.strip("\n").split("\n"):
        name, body = line.split(" ::= ", 1)
        rules[name] = Reader(body).read_alternatives()
    return Writer(rules, rng).write(rules["root"], 0)


class Reader:
    """Reads the body of one rule."""

    def __init__(self, body: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        body = body.rstrip()
        while at < len(body):
            match = TOKEN.match(body, at)
            assert match, f"not GBNF: {body[at:]}"
            kinds = ("literal", "class", "name", "count", "sign")
            self.tokens += [(kind, text) for kind, text in zip(kinds, match.groups(), strict=True) if text]
            at = match.end()

    def read_alternatives(self) -> Node:
        options = [self.read_sequence()]
        while self.tokens and self.tokens[0][1] == "|":
            self.tokens.pop(0)
            options.append(self.read_sequence())
        return Node("either", parts=tuple(options))

    def read_sequence(self) -> Node:
        parts: list[Node] = []
        while self.tokens and self.tokens[0][1] not in ("|", ")"):
            kind, text = self.tokens.pop(0)
            node = Node(kind, text)
            if text == "(":
                node = self.read_alternatives()
                assert self.tokens.pop(0)[1] == ")"
            parts.append(self.read_repetition(node))
        return Node("all", parts=tuple(parts))

    def read_repetition(self, node: Node) -> Node:
        if not self.tokens or (self.tokens[0][0] != "count" and self.tokens[0][1] not in ("*", "?")):
            return node
        sign = self.tokens.pop(0)[1]
        least, most = {"*": ("0", ""), "?": ("0", "1")}.get(sign) or sign[1:-1].split(",")
        return Node("many", parts=(node,), least=int(least), most=int(most) if most else int(least) + MORE)


class Writer:
    def __init__(self, rules: dict[str, Node], rng: random.Random) -> None:
        self.rules = rules
        self.rng = rng

    def write(self, node: Node, depth: int) -> str:
        match node.kind:
            case "literal":
                return unescape(node.text[1:-1])
            case "class":
                return self.rng.choice(list_members(node.text[1:-1]))
            case "name":
                return self.write(self.rules[node.text], depth + 1)
            case "either":
                option = node.parts[0] if depth > DEEP else self.rng.choice(node.parts)
                return self.write(option, depth)
            case "many":
                most = node.least if depth > DEEP else min(node.most, node.least + MORE)
                times = self.rng.randint(node.least, most)
                return "".join(self.write(node.parts[0], depth) for _ in range(times))
            case _:
                return "".join(self.write(part, depth) for part in node.parts)


def unescape(text: str) -> str:
    return re.sub(r"\\(x..|.)", lambda m: {"n": "\n", "r": "\r"}.get(m[1]) or decode_escape(m[1]), text)


def decode_escape(escape: str) -> str:
    return chr(int(escape[1:], 16)) if escape.startswith("x") else escape


def list_members(text: str) -> list[str]:
    """The characters of a class such as [^"\\x00-\\x1F]."""
    denied = text.startswith("^")
    found: set[str] = set()
    for match in re.finditer(r"(\\x..|\\.|.)(?:-(\\x..|\\.|.))?", text[denied:]):
        first, last = (unescape(each) if each else None for each in match.groups())
        assert first is not None
        found |= {chr(code) for code in range(ord(first), ord(last or first) + 1)}
    return [each for each in ALPHABET if each not in found] if denied else sorted(found)
