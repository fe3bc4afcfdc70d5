"""The layout, the import rules and the size budgets of src/treadle, checked on its syntax trees.

Every check takes a tree (path -> source) and returns what is wrong with it, so each one is also
shown a bad tree: a check that cannot fail is no check.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import treadle

Tree = dict[str, str]

# What exceeds its budget and by how much, as the checks name it: "parameters of agent.py::Agent.__init__": 9.
# Entries may shrink and go; none is added without a decision record.
EXCEPTIONS: dict[str, int] = {}

FILE_LINES = 500
LOOP_LINES = 250
FUNCTION_LINES = 60
PARAMETERS = 6
PUBLIC_NAMES = 30

VALUES = {"errors", "messages", "events"}
PURE = {
    "state",
    "steps",
    "context",
    "compaction",
    "tokens",
    "policy",
    "globs",
    "ranking",
    "redact",
    "secrecy",
    "signals",
    "spans",
}
ENGINE = {"loop", "coordinator", "setup", "asking", "reply", "judge", "execute", "observation", "lease", "scope"}
ADAPTERS = {"log", "models", "tools", "sandbox", "knowledge"}
SURFACES = {"server", "cli", "__main__"}

# Layer -> layers it may import from. Everybody may import from their own package; surfaces may import what a user
# of the library may: its public names, its vocabulary, its ports and its face, never the engine or an adapter.
MAY_IMPORT = {
    "values": {"values"},
    "pure": {"values", "pure"},
    "ports": {"values", "pure", "ports"},
    "adapters": {"values", "pure", "ports"},
    "dialects": {"values"},
    "engine": {"values", "pure", "ports", "engine"},
    "face": {"values", "pure", "ports", "adapters", "dialects", "engine", "face"},
    "testing": {"values", "pure", "ports", "adapters", "dialects", "engine", "face", "testing"},
    "surfaces": {"values", "ports", "dialects", "face"},
}

THIRD_PARTY = {"values": {"msgspec"}, "pure": {"msgspec"}, "ports": {"msgspec"}}
VAGUE_NAMES = {"utils", "common", "core", "helpers"}
LATE_IMPORTS = {"aiohttp", "fastapi", "uvicorn", "typer", "rich", "prompt_toolkit", "openai", "anthropic"}


def read_tree() -> Tree:
    root = Path(treadle.__file__).parent
    paths = (path for path in root.rglob("*.py") if "node_modules" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(paths)}


# --- budgets


def long_files(tree: Tree) -> dict[str, int]:
    lengths = {path: len(source.splitlines()) for path, source in tree.items()}
    budgets = {"loop.py": LOOP_LINES}
    return {f"lines of {path}": lines for path, lines in lengths.items() if lines > budgets.get(path, FILE_LINES)}


def long_functions(tree: Tree) -> dict[str, int]:
    return {
        f"lines of {name}": lines
        for name, function in functions(tree)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
    }


def wide_functions(tree: Tree) -> dict[str, int]:
    return {
        f"parameters of {name}": count
        for name, function in functions(tree)
        if (count := count_parameters(function.args)) > PARAMETERS
    }


def count_parameters(arguments: ast.arguments) -> int:
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in {"self", "cls"}:
        positional = positional[1:]
    rest = [one for one in (arguments.vararg, arguments.kwarg) if one]
    return len(positional) + len(arguments.kwonlyargs) + len(rest)


def functions(tree: Tree) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name, child
                name += "."
            yield from inside(child, name)

    for path, source in tree.items():
        yield from inside(ast.parse(source), f"{path}::")


def unexcused(found: dict[str, int]) -> dict[str, int]:
    return {name: size for name, size in found.items() if size > EXCEPTIONS.get(name, 0)}


def stale(exceptions: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """Exceptions that are no longer needed, or could be smaller."""
    return {name: size for name, size in exceptions.items() if found.get(name, 0) < size}


# --- names and docstrings


def vague_names(tree: Tree) -> list[str]:
    return [
        path for path in tree if any(part.removesuffix(".py").strip("_") in VAGUE_NAMES for part in path.split("/"))
    ]


def undocumented_modules(tree: Tree) -> list[str]:
    return [path for path, source in tree.items() if not (ast.get_docstring(ast.parse(source)) or "").strip()]


def public_names(tree: Tree) -> list[str]:
    for node in ast.parse(tree["__init__.py"]).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                return list(ast.literal_eval(value))
            case _:
                pass
    return []


# --- imports


def module_name(path: str) -> str:
    parts = ["treadle", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package(module: str) -> str:
    """The folder under treadle that a module lives in; for a top-level module, its own name."""
    name = [*module.split("."), ""][1]
    return "cli" if name == "__main__" else name


def layer(module: str) -> str:
    match module.split(".")[1:]:
        case [name] if name in VALUES:
            return "values"
        case [name] if name in PURE:
            return "pure"
        case [name] if name in ENGINE:
            return "engine"
        case [name, "base"] if name in ADAPTERS:
            return "ports"
        case [name, *_] if name in ADAPTERS:
            return "adapters"
        case [name, *_] if name in SURFACES:
            return "surfaces"
        case [("dialects" | "testing") as name, *_]:
            return name
        case _:
            return "face"


def imports(path: str, tree: Tree) -> Iterator[tuple[str, str]]:
    """Each (module, name) imported, also late or for types only; name is "" where a module is meant."""
    modules = {module_name(other) for other in tree}
    here = module_name(path).split(".")
    folder = here if path.endswith("__init__.py") else here[:-1]
    for node in ast.walk(ast.parse(tree[path])):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield (submodule, "") if submodule in modules else (source, alias.name)


def breaches_of_layers(tree: Tree) -> list[str]:
    return [
        f"{module_name(path)} ({layer(module_name(path))}) imports {target} ({layer(target)})"
        for path in tree
        for target, name in imports(path, tree)
        if target.split(".")[0] == "treadle" and not may_import(module_name(path), target, name, tree)
    ]


def may_import(module: str, target: str, name: str, tree: Tree) -> bool:
    if layer(module) == "surfaces" and target == "treadle":
        return name in [*public_names(tree), "__version__"]
    if layer(target) in MAY_IMPORT[layer(module)]:
        return True
    if module == "treadle.cli.serve" and package(target) == "server":  # the command that starts the server
        return True
    if (package(module), package(target)) == ("cli", "server"):  # `treadle serve` starts it
        return True
    return layer(module) in ("adapters", "dialects", "surfaces") and package(target) == package(module)


def foreign_imports(tree: Tree) -> list[str]:
    """Third-party packages in layers that must stay small."""
    found: list[str] = []
    for path in tree:
        module = module_name(path)
        allowed = THIRD_PARTY.get(layer(module))
        if allowed is None:
            continue
        if module == "treadle.tools.base":
            allowed = allowed | {"pydantic"}
        for target, _ in imports(path, tree):
            top = target.split(".")[0]
            if top not in allowed | sys.stdlib_module_names | {"treadle"}:
                found.append(f"{module} imports {top}")
    return found


def loaded_by(statement: str) -> set[str]:
    # Not what an interpreter loads by itself: that is a matter of how it was installed.
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


# --- the rules, and each check shown a tree that breaks its rule


def test_the_source_tree_is_found() -> None:
    assert {"__init__.py", "errors.py", "messages.py", "events.py"} <= read_tree().keys()


def test_no_file_is_longer_than_its_budget() -> None:
    assert unexcused(long_files(read_tree())) == {}


def test_the_check_of_files_sees_one_line_too_many() -> None:
    tree = {"agent.py": "x\n" * 500, "policy.py": "x\n" * 501, "log/loop.py": "x\n" * 251}
    assert long_files(tree) == {"lines of policy.py": 501}


def test_the_loop_is_held_to_a_tighter_budget() -> None:
    assert long_files({"loop.py": "x\n" * 250}) == {}
    assert long_files({"loop.py": "x\n" * 251}) == {"lines of loop.py": 251}


def test_no_function_is_longer_than_its_budget() -> None:
    assert unexcused(long_functions(read_tree())) == {}


def test_the_check_of_functions_sees_one_line_too_many() -> None:
    just_right = "def fits():\n" + "    x\n" * 59
    nested = "class A:\n    async def grows(self):\n" + "        x\n" * 60
    assert long_functions({"a.py": just_right + nested}) == {"lines of a.py::A.grows": 61}


def test_no_function_takes_more_parameters_than_its_budget() -> None:
    assert unexcused(wide_functions(read_tree())) == {}


def test_the_check_of_parameters_counts_every_kind_but_self() -> None:
    fits = "class A:\n    def fits(self, a, b, /, c, *d, e, **f): ...\n"
    wide = "def outer():\n    async def wide(a, b, /, c, *d, e, f, **g): ...\n"
    assert wide_functions({"a.py": fits + wide}) == {"parameters of a.py::outer.wide": 7}


def test_the_list_of_exceptions_only_shrinks() -> None:
    tree = read_tree()
    assert stale(EXCEPTIONS, long_files(tree) | long_functions(tree) | wide_functions(tree)) == {}


def test_the_check_of_exceptions_sees_what_is_no_longer_needed() -> None:
    exceptions = {"lines of a.py": 600, "lines of b.py": 700, "lines of c.py": 800}
    assert stale(exceptions, {"lines of a.py": 600, "lines of b.py": 650}) == {
        "lines of b.py": 700,
        "lines of c.py": 800,
    }


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert vague_names(read_tree()) == []


def test_the_check_of_names_sees_files_and_folders() -> None:
    tree = {"core/x.py": "", "log/_utils.py": "", "helpers.py": "", "score.py": ""}
    assert vague_names(tree) == ["core/x.py", "log/_utils.py", "helpers.py"]


def test_every_module_opens_with_a_docstring() -> None:
    assert undocumented_modules(read_tree()) == []


def test_the_check_of_docstrings_sees_missing_and_blank_ones() -> None:
    tree = {"a.py": '"""Said."""\n', "b.py": "import a\n", "c.py": '""" """\n', "d.py": ""}
    assert undocumented_modules(tree) == ["b.py", "c.py", "d.py"]


def test_there_are_few_public_names_and_all_exist() -> None:
    names = public_names(read_tree())
    assert 0 < len(names) <= PUBLIC_NAMES
    assert sorted(names) == sorted(treadle.__all__)
    assert [name for name in names if not hasattr(treadle, name)] == []


def test_the_reading_of_public_names_sees_them_all() -> None:
    assert public_names({"__init__.py": "from .a import b\n__all__ = ['b', 'c']\n"}) == ["b", "c"]
    assert public_names({"__init__.py": "__all__: list[str] = ['b']\n"}) == ["b"]


def test_imports_go_only_to_the_same_layer_or_a_lower_one() -> None:
    assert breaches_of_layers(read_tree()) == []


def test_the_check_of_layers_allows_what_the_layout_allows() -> None:
    tree = {
        "__init__.py": "from treadle.agent import Agent\n__all__ = ['Agent']\n",
        "__main__.py": "from treadle.cli import main\n",
        "agent.py": "import treadle.engine.loop\nfrom treadle.log.sqlite import SqliteLog\nfrom . import session\n",
        "session.py": "from .dialects import wire\n",
        "errors.py": "",
        "events.py": "from treadle.errors import Invalid\nimport msgspec\n",
        "state.py": "from .events import Fact\n",
        "loop.py": "from treadle.log.base import Log\nfrom treadle.engine.coordinator import x\n",
        "coordinator.py": "",
        "log/__init__.py": "",
        "log/base.py": "from ..events import Fact\n",
        "log/sqlite.py": "from . import rows\nfrom .base import Log\nfrom treadle.models.base import Model\n",
        "log/rows.py": "from treadle.log import sqlite\n",
        "dialects/__init__.py": "from .wire import frames\n",
        "dialects/wire.py": "from treadle.events import Fact\n",
        "testing/__init__.py": "from treadle import Agent\nfrom treadle.log.rows import x\n",
        "cli/__init__.py": "from treadle import Agent, __version__\nfrom .run import main\n",
        "cli/run.py": "import treadle.cli\n",
    }
    assert breaches_of_layers(tree) == []


def test_the_check_of_layers_sees_a_value_that_imports_upwards() -> None:
    for line in (
        "from treadle.engine.state import fold",
        "from . import state",
        "from .log.base import Log",
        "import treadle.agent",
        "from treadle import Agent",
        "def late():\n    from treadle.engine.loop import run",
    ):
        assert len(breaches_of_layers({"events.py": line, "state.py": ""})) == 1, line


def test_the_check_of_layers_sees_pure_code_that_knows_a_port() -> None:
    assert breaches_of_layers({"signals.py": "from treadle.tools.base import Tool"}) == [
        "treadle.engine.reply_marks (pure) imports treadle.tools.base (ports)"
    ]


def test_the_check_of_layers_sees_a_port_or_an_engine_that_knows_an_adapter() -> None:
    assert len(breaches_of_layers({"log/base.py": "from .sqlite import SqliteLog"})) == 1
    assert len(breaches_of_layers({"loop.py": "from treadle.log import SqliteLog"})) == 1
    assert len(breaches_of_layers({"coordinator.py": "from treadle.agent import Agent"})) == 1


def test_the_check_of_layers_sees_an_adapter_that_knows_another_or_the_engine() -> None:
    assert len(breaches_of_layers({"log/sqlite.py": "from treadle.tools.shell import run"})) == 1
    assert len(breaches_of_layers({"tools/delegate.py": "from ..loop import run"})) == 1


def test_the_check_of_layers_sees_a_dialect_that_knows_more_than_values() -> None:
    assert len(breaches_of_layers({"dialects/wire.py": "from treadle.engine.state import State"})) == 1


def test_the_check_of_layers_sees_anyone_who_knows_a_surface_or_the_test_doubles() -> None:
    assert len(breaches_of_layers({"agent.py": "from treadle.cli import main"})) == 1
    assert len(breaches_of_layers({"agent.py": "from treadle.testing import ScriptedModel"})) == 1
    assert len(breaches_of_layers({"testing/model.py": "from treadle.server import app"})) == 1


def test_the_check_of_layers_sees_a_surface_that_uses_what_is_not_public() -> None:
    public = "from treadle.agent import Agent, secret\n__all__ = ['Agent']\n"
    for line in (
        "from treadle import secret",
        "from treadle.engine.loop import Loop",
        "from treadle.log.sqlite import SqliteLog",
        "from treadle.cli import main",
        "import treadle",
    ):
        assert len(breaches_of_layers({"__init__.py": public, "server/app.py": line})) == 1, line
    assert breaches_of_layers({"__init__.py": public, "server/app.py": "from treadle.agent import Agent"}) == []
    assert breaches_of_layers({"__init__.py": public, "cli/serve.py": "from treadle.server import app"}) == []


def test_low_layers_import_no_third_party_package_but_msgspec() -> None:
    assert foreign_imports(read_tree()) == []


def test_the_check_of_third_parties_sees_them_in_low_layers_only() -> None:
    tree = {
        "events.py": "import msgspec, json\nfrom treadle.errors import Invalid\n",
        "state.py": "from pydantic import BaseModel\n",
        "models/base.py": "def late():\n    import aiohttp.web\n",
        "tools/base.py": "import pydantic\n",
        "models/chat.py": "import aiohttp\n",
    }
    assert foreign_imports(tree) == ["treadle.engine.state imports pydantic", "treadle.models.base imports aiohttp"]


def test_importing_treadle_loads_nothing_heavy() -> None:
    assert loaded_by("from treadle import *") & LATE_IMPORTS == set()
    assert "asyncio" not in loaded_by("import treadle")


def test_every_public_name_is_there_and_nothing_else_is() -> None:
    assert all(getattr(treadle, name) is not None for name in treadle.__all__)
    assert set(treadle.__all__) <= set(dir(treadle))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = treadle.nothing  # type: ignore[attr-defined]


def test_the_listing_of_loaded_packages_sees_what_a_statement_loads() -> None:
    assert "wave" in loaded_by("import wave")
    assert "wave" not in loaded_by("pass")
