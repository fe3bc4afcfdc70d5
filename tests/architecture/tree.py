"""The source tree that the rules read: a path in src/treadle -> its text. Knows syntax, no rule."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

Tree = dict[str, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef

PROJECT = Path(__file__).parents[2]

# What breaks a rule and by how much, as the check names it: "parameters of agent.py::Agent.__init__": 9.
# Entries may shrink and go; none is added without a decision record.
EXCEPTIONS: dict[str, int] = {}


def read_tree(root: Path = PROJECT / "src" / "treadle") -> Tree:
    """Read every Python file below a folder."""
    paths = (path for path in root.rglob("*.py") if "node_modules" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(paths)}


@lru_cache(1024)
def parse(source: str) -> ast.Module:
    """Parse a file, once for all rules."""
    return ast.parse(source)


@lru_cache(1024)
def list_nodes(source: str) -> tuple[ast.AST, ...]:
    """List every node of a file in the order of its text."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [parse(source)]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(reversed(list(ast.iter_child_nodes(node))))
    return tuple(found)


def module_name(path: str) -> str:
    """The name a file is imported by."""
    parts = ["treadle", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_lines(source: str) -> int:
    """The lines of a text, as an editor numbers them."""
    return len(source.splitlines())


def find_functions(tree: Tree) -> Iterator[tuple[str, Function]]:
    """Find every function and method, also nested ones, as `path::Class.method`."""
    for path, source in tree.items():
        for place in _list_functions(source):
            yield f"{path}::{place.name}", place.function


def find_public_functions(tree: Tree) -> Iterator[tuple[str, Function]]:
    """Find the functions and methods whose own name and whose class's name have no leading underscore."""
    for path, source in tree.items():
        for place in _list_functions(source):
            if not place.is_nested and not any(part.startswith("_") for part in place.name.split(".")):
                yield f"{path}::{place.name}", place.function


class _Place(NamedTuple):
    name: str
    function: Function
    is_nested: bool


@lru_cache(1024)
def _list_functions(source: str) -> tuple[_Place, ...]:
    found: list[_Place] = []

    def visit(node: ast.AST, prefix: str, is_nested: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                found.append(_Place(prefix + child.name, child, is_nested))
                visit(child, f"{prefix}{child.name}.", True)
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.", is_nested)
            else:
                visit(child, prefix, is_nested)

    visit(parse(source), "", False)
    return tuple(found)


def find_imports(path: str, tree: Tree, *, for_types: bool = True) -> Iterator[tuple[str, str]]:
    """Find each (module, name) that a file imports, also late; the name is "" where a module is imported.

    `for_types` includes imports that only a type checker follows.
    """
    here = module_name(path).split(".")
    folder = here if path.endswith("__init__.py") else here[:-1]
    skipped = set[ast.AST]() if for_types else set(_list_nodes_for_types(tree[path]))
    for node in list_nodes(tree[path]):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield (submodule, "") if _is_module(submodule, tree) else (source, alias.name)


def _is_module(name: str, tree: Tree) -> bool:
    path = "/".join(name.split(".")[1:])
    return name.startswith("treadle.") and (f"{path}.py" in tree or f"{path}/__init__.py" in tree)


def _list_nodes_for_types(source: str) -> Iterator[ast.AST]:
    """List what stands below `if TYPE_CHECKING`, which never runs."""
    for node in list_nodes(source):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                yield from ast.walk(statement)


def read_public_names(tree: Tree) -> list[str]:
    """Read `__all__` of the package."""
    for node in parse(tree["__init__.py"]).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ):
                return list(ast.literal_eval(value))
            case _:
                pass
    return []


def find_unexcused(found: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Leave out what the list of exceptions allows."""
    sizes = found if isinstance(found, Mapping) else dict.fromkeys(found, 1)
    return {name: size for name, size in sizes.items() if size > EXCEPTIONS.get(name, 0)}


def find_stale_exceptions(exceptions: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """Find exceptions that are no longer needed, or that could be smaller."""
    return {name: size for name, size in exceptions.items() if found.get(name, 0) < size}
