"""Every rule for sizes and names holds in src/treadle, and every check sees what breaks its rule."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pytest

from tests.architecture import budgets, names
from tests.architecture.tree import Tree, find_unexcused, read_tree


class Rule(NamedTuple):
    """A check, a tree that breaks its rule here and keeps it there, and what the check finds in it."""

    name: str
    find: Callable[[Tree], Iterable[str] | Mapping[str, int]]
    tree: Tree
    found: list[str] | dict[str, int]


PROTOCOL = "models/chat_completions.py"
RULES = [
    Rule(
        "no file is longer than its budget",
        budgets.find_long_files,
        {
            "agent.py": "x\n" * 500,
            "permissions/policy.py": "x\n" * 501,
            "log/loop.py": "x\n" * 251,
            "engine/loop.py": "x\n" * 251,
            "events.py": "x\n" * 591,
            PROTOCOL: "x\n" * 651,
            "models/ollama_chat.py": "x\n" * 650,
        },
        {
            "lines of permissions/policy.py": 501,
            "lines of engine/loop.py": 251,
            "lines of events.py": 591,
            f"lines of {PROTOCOL}": 651,
        },
    ),
    Rule(
        "no function is longer than its budget",
        budgets.find_long_functions,
        {
            "a.py": "def fits():\n" + "    x\n" * 59,
            "b.py": "class A:\n    async def grows(self):\n" + "        x\n" * 60,
        },
        {"lines of b.py::A.grows": 61},
    ),
    Rule(
        "no function takes more parameters than its budget",
        budgets.find_wide_functions,
        {
            "a.py": "class A:\n    def fits(self, a, b, /, c, *d, e, **f): ...\n",
            "b.py": "def outer():\n    async def wide(a, b, /, c, *d, e, f, **g): ...\n",
        },
        {"parameters of b.py::outer.wide": 7},
    ),
    Rule(
        "no module only forwards",
        budgets.find_forwarding_modules,
        {
            "names.py": '"""Names."""\nfrom treadle.a import b\nfrom .c import d\n__all__ = ["b", "d"]\nsecond = b\n',
            "calls.py": "async def f(a, *b):\n    '''It.'''\n    from treadle.c import g\n    return await g(a, *b)\n",
            "types.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from treadle.a import b\n",
            "works.py": "from treadle.a import b\ndef f(a):\n    return b(a, 1)\n",
            "table.py": "from treadle.a import b\nTABLE = {1: b}\n",
            "empty.py": '"""A folder."""\n',
            "foreign.py": "from json import loads\n",
            "testing/__init__.py": "from treadle.testing.model import ScriptedModel\n",
        },
        ["names.py", "calls.py", "types.py"],
    ),
    Rule(
        "no module has a name that says nothing",
        names.find_vague_names,
        {"core/x.py": "", "log/_utils.py": "", "helpers.py": "", "score.py": ""},
        ["core/x.py", "log/_utils.py", "helpers.py"],
    ),
    Rule(
        "every module opens with a docstring",
        names.find_undocumented_modules,
        {"a.py": '"""Said."""\n', "b.py": "import a\n", "c.py": '""" """\n', "d.py": ""},
        ["b.py", "c.py", "d.py"],
    ),
    Rule(
        "no file name is used in two rooms, but a surface may name what it shows",
        names.find_shared_file_names,
        {
            **dict.fromkeys(["sessions.py", "cli/sessions.py", "server/sessions.py", "log/base.py"], ""),
            **dict.fromkeys(["tools/base.py", "cli/__init__.py", "log/search.py", "tools/mcp/search.py"], ""),
            **dict.fromkeys(["cli/run.py", "cli/chat/run.py"], ""),
        },
        ["log/search.py tools/mcp/search.py", "cli/run.py cli/chat/run.py"],
    ),
    Rule(
        "no public class name is used twice",
        names.find_shared_class_names,
        {"a.py": "class Plan: ...\nclass _Row: ...\n", "log/b.py": "class Plan: ...\nclass _Row: ...\n"},
        ["Plan: a.py log/b.py"],
    ),
    Rule(
        "no public function is a participle",
        names.find_participles,
        {
            "a.py": (
                "def told(error): ...\n"
                "def known_hosts(): ...\n"
                "def _opened(): ...\n"
                "def open_file():\n    def asked(): ...\n"
                "class Log:\n"
                "    async def stored(self): ...\n"
                "    def is_closed(self): ...\n"
                "    @property\n    def pending(self) -> int: ...\n"
                "    @property\n    def closed(self) -> bool: ...\n"
                "class _Row:\n    def written(self): ...\n"
            )
        },
        ["a.py::told", "a.py::known_hosts", "a.py::Log.stored", "a.py::Log.closed"],
    ),
    Rule(
        "no public function ends in _of",
        names.find_names_ending_in_of,
        {"a.py": "def text_of(x): ...\ndef _of(x): ...\nclass A:\n    @property\n    def kind_of(self): ...\n"},
        ["a.py::text_of", "a.py::A.kind_of"],
    ),
    Rule(
        "no signature leaves a callable open",
        names.find_open_callables,
        {
            "a.py": "def run(function: Callable[..., Any]): ...\n",
            "b.py": "class A:\n    tools: Sequence[Tool | collections.abc.Callable[..., typing.Any]]\n",
            "c.py": "Function = Callable[..., Any]\n",
            "d.py": "def fine(a: Callable[[int], Any], b: Callable[P, T], c: Callable[..., int]): ...\n",
            "tools/function.py": "Function = Callable[..., Any]\n",
        },
        ["a.py:1", "b.py:2", "c.py:1"],
    ),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@each_rule
def test_the_source_keeps_the_rule(rule: Rule) -> None:
    assert find_unexcused(rule.find(read_tree())) == {}


@each_rule
def test_the_check_sees_what_breaks_the_rule(rule: Rule) -> None:
    assert rule.find(rule.tree) == rule.found


def test_the_top_of_the_package_holds_values_and_the_face_only() -> None:
    assert len(budgets.find_top_modules(read_tree())) <= budgets.TOP_MODULES
    tree = {"__init__.py": "", "__main__.py": "", "run.py": "", "log/base.py": "", "clock.py": ""}
    assert budgets.find_top_modules(tree) == ["run.py", "clock.py"]


def test_the_source_does_not_grow_unnoticed() -> None:
    assert budgets.count_source_lines(read_tree()) <= budgets.SOURCE_LINES
    assert budgets.count_source_lines({"a.py": "x\ny\n", "log/b.py": "z"}) == 3


def test_most_private_functions_are_used_more_than_once() -> None:
    assert budgets.find_private_functions(read_tree()).percent <= budgets.USED_ONCE_PERCENT
    tree = {
        "a.py": "def _once(): ...\ndef _twice(): ...\ndef public():\n    _once(_twice)\n    x._twice()\n",
        "b.py": "if x:\n    def _late(): ...\n_late()\nclass A:\n    def _method(self): ...\n",
    }
    found = budgets.find_private_functions(tree)
    assert (found.all, found.used_once, round(found.percent)) == (3, ["a.py::_once", "b.py::_late"], 67)


def test_scope_means_one_thing() -> None:
    assert len(names.find_definitions(read_tree(), "Scope")) <= 1
    tree = {
        "a.py": "class Scope: ...\n",
        "b.py": "Scope = int\n",
        "c.py": "Scope: X = int\n",
        "d.py": "scope = Scope\n",
    }
    assert names.find_definitions(tree, "Scope") == ["a.py", "b.py", "c.py"]


def test_participles_are_told_from_verbs_and_nouns() -> None:
    participles = "told made given meant opened written asking kept found held known taken seen left began unknown"
    others = "need embed feed open listen shorten string ping token read put set build is has calls children then"
    assert [word for word in participles.split() if not names.is_participle(word)] == []
    assert [word for word in others.split() if names.is_participle(word)] == []
