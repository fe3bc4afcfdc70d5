"""The budgets: how large files, functions and the whole may be."""

from tests.architecture.budgets import (
    SOURCE_LINES,
    TOP_MODULES,
    USED_ONCE_PERCENT,
    count_source_lines,
    find_forwarding_modules,
    find_long_files,
    find_long_functions,
    find_private_functions,
    find_top_modules,
    find_wide_functions,
)
from tests.architecture.tree import find_unexcused, read_tree


def test_no_file_is_longer_than_its_budget() -> None:
    assert find_unexcused(find_long_files(read_tree())) == {}


def test_the_check_of_files_sees_one_line_too_many() -> None:
    tree = {"agent.py": "x\n" * 500, "permissions/policy.py": "x\n" * 501, "log/loop.py": "x\n" * 251}
    assert find_long_files(tree) == {"lines of permissions/policy.py": 501}


def test_the_loop_is_held_to_a_tighter_budget_and_a_protocol_to_a_wider_one() -> None:
    protocol = "models/chat_completions.py"
    assert find_long_files({"engine/loop.py": "x\n" * 250, protocol: "x\n" * 650}) == {}
    assert find_long_files({"engine/loop.py": "x\n" * 251, protocol: "x\n" * 651, "models/http.py": "x\n" * 501}) == {
        "lines of engine/loop.py": 251,
        f"lines of {protocol}": 651,
        "lines of models/http.py": 501,
    }


def test_no_function_is_longer_than_its_budget() -> None:
    assert find_unexcused(find_long_functions(read_tree())) == {}


def test_the_check_of_functions_sees_one_line_too_many() -> None:
    just_right = "def fits():\n" + "    x\n" * 59
    nested = "class A:\n    async def grows(self):\n" + "        x\n" * 60
    assert find_long_functions({"a.py": just_right + nested}) == {"lines of a.py::A.grows": 61}


def test_no_function_takes_more_parameters_than_its_budget() -> None:
    assert find_unexcused(find_wide_functions(read_tree())) == {}


def test_the_check_of_parameters_counts_every_kind_but_self() -> None:
    fits = "class A:\n    def fits(self, a, b, /, c, *d, e, **f): ...\n"
    wide = "def outer():\n    async def wide(a, b, /, c, *d, e, f, **g): ...\n"
    assert find_wide_functions({"a.py": fits + wide}) == {"parameters of a.py::outer.wide": 7}


def test_the_top_of_the_package_holds_values_and_the_face_only() -> None:
    assert len(find_top_modules(read_tree())) <= TOP_MODULES


def test_the_check_of_the_top_counts_modules_but_not_entry_points() -> None:
    tree = {"__init__.py": "", "__main__.py": "", "run.py": "", "log/base.py": "", "clock.py": ""}
    assert find_top_modules(tree) == ["run.py", "clock.py"]


def test_the_source_does_not_grow_unnoticed() -> None:
    assert count_source_lines(read_tree()) <= SOURCE_LINES


def test_the_count_of_lines_sees_every_file() -> None:
    assert count_source_lines({"a.py": "x\ny\n", "log/b.py": "z"}) == 3


def test_most_private_functions_are_used_more_than_once() -> None:
    assert find_private_functions(read_tree()).percent <= USED_ONCE_PERCENT


def test_the_check_of_private_functions_counts_uses_in_their_module() -> None:
    tree = {
        "a.py": "def _once(): ...\ndef _twice(): ...\ndef public():\n    _once(_twice)\n    x._twice()\n",
        "b.py": "if x:\n    def _late(): ...\n_late()\nclass A:\n    def _method(self): ...\n",
    }
    found = find_private_functions(tree)
    assert (found.all, found.used_once) == (3, ["a.py::_once", "b.py::_late"])
    assert round(found.percent) == 67


def test_no_module_only_forwards() -> None:
    assert find_unexcused(find_forwarding_modules(read_tree())) == {}


def test_the_check_of_forwarding_sees_second_names_and_functions_that_only_call_another() -> None:
    tree = {
        "names.py": '"""Names."""\nfrom treadle.a import b\nfrom .c import d\n__all__ = ["b", "d"]\nsecond = b\n',
        "calls.py": "async def f(a, *b):\n    '''It.'''\n    from treadle.c import g\n    return await g(a, *b)\n",
        "types.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from treadle.a import b\n",
        "works.py": "from treadle.a import b\ndef f(a):\n    return b(a, 1)\n",
        "table.py": "from treadle.a import b\nTABLE = {1: b}\n",
        "empty.py": '"""A folder."""\n',
        "foreign.py": "from json import loads\n",
        "testing/__init__.py": "from treadle.testing.model import ScriptedModel\n",
    }
    assert find_forwarding_modules(tree) == ["names.py", "calls.py", "types.py"]
