"""The source tree that the rules read: a path in src/treadle -> its text. Knows syntax, no rule."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

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


def module_name(path: str) -> str:
    """The name a file is imported by."""
    parts = ["treadle", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def count_lines(source: str) -> int:
    """The lines of a text, as an editor numbers them."""
    return len(source.splitlines())


def find_functions(tree: Tree) -> Iterator[tuple[str, Function]]:
    """Find every function and method, also nested ones, as `path::Class.method`."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, Function | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name, child
                name += "."
            yield from visit(child, name)

    for path, source in tree.items():
        yield from visit(parse(source), f"{path}::")


def find_public_functions(tree: Tree) -> Iterator[tuple[str, Function]]:
    """Find the functions and methods whose own name and whose class's name have no leading underscore."""
    nested = {
        id(inner)
        for _, outer in find_functions(tree)
        for inner in ast.walk(outer)
        if isinstance(inner, Function) and inner is not outer
    }
    for name, function in find_functions(tree):
        parts = name.partition("::")[2].split(".")
        if id(function) not in nested and not any(part.startswith("_") for part in parts):
            yield name, function


def find_imports(path: str, tree: Tree, *, for_types: bool = True) -> Iterator[tuple[str, str]]:
    """Find each (module, name) that a file imports, also late; the name is "" where a module is imported.

    `for_types` includes imports that only a type checker follows.
    """
    modules = {module_name(other) for other in tree}
    here = module_name(path).split(".")
    folder = here if path.endswith("__init__.py") else here[:-1]
    for node in _walk(parse(tree[path]), for_types):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                yield (submodule, "") if submodule in modules else (source, alias.name)


def _walk(node: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If) and not for_types and "TYPE_CHECKING" in ast.unparse(node.test):
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _walk(child, for_types)


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


def find_unexcused(found: Iterable[str] | dict[str, int]) -> dict[str, int]:
    """Leave out what the list of exceptions allows."""
    sizes = found if isinstance(found, dict) else dict.fromkeys(found, 1)
    return {name: size for name, size in sizes.items() if size > EXCEPTIONS.get(name, 0)}


def find_stale_exceptions(exceptions: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """Find exceptions that are no longer needed, or that could be smaller."""
    return {name: size for name, size in exceptions.items() if found.get(name, 0) < size}
