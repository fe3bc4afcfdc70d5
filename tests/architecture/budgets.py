"""How large things may be: files, functions, the top of the package, the whole."""

import ast
from collections import Counter
from typing import NamedTuple

from tests.architecture.tree import Function, Tree, count_lines, find_functions, list_nodes, parse

FILE_LINES = 500
PROTOCOL_LINES = 650
LOOP_LINES = 250
EVENTS_LINES = 590
"""The closed union of all events stands on one page (decisions 0013 and 0019)."""
FUNCTION_LINES = 60
PARAMETERS = 6
TOP_MODULES = 8
USED_ONCE_PERCENT = 40
"""It may only fall."""
SOURCE_LINES = 78_000
"""All of src/treadle. It rises only with a decision record."""

# A provider's protocol: its reader and its writer in one file.
PROTOCOLS = {
    f"models/{name}.py" for name in ("anthropic_messages", "chat_completions", "ollama_chat", "openai_responses")
}
LOOP = "engine/loop.py"
EVENTS = "events.py"

# The package's own face, the entry points and the public test doubles are there to pass names on.
FORWARDING_ALLOWED = {"__init__.py", "__main__.py", "server/__main__.py", "testing/__init__.py"}


def find_long_files(tree: Tree) -> dict[str, int]:
    """Find files that are longer than their budget."""
    budgets = {LOOP: LOOP_LINES, EVENTS: EVENTS_LINES, **dict.fromkeys(PROTOCOLS, PROTOCOL_LINES)}
    lengths = {path: count_lines(source) for path, source in tree.items()}
    return {f"lines of {path}": lines for path, lines in lengths.items() if lines > budgets.get(path, FILE_LINES)}


def find_long_functions(tree: Tree) -> dict[str, int]:
    """Find functions that are longer than their budget."""
    return {
        f"lines of {name}": lines
        for name, function in find_functions(tree)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
    }


def find_wide_functions(tree: Tree) -> dict[str, int]:
    """Find functions that take more parameters than their budget."""
    return {
        f"parameters of {name}": count
        for name, function in find_functions(tree)
        if (count := count_parameters(function.args)) > PARAMETERS
    }


def count_parameters(arguments: ast.arguments) -> int:
    """Count every kind of parameter but `self` and `cls`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in {"self", "cls"}:
        positional = positional[1:]
    rest = [one for one in (arguments.vararg, arguments.kwarg) if one]
    return len(positional) + len(arguments.kwonlyargs) + len(rest)


def find_top_modules(tree: Tree) -> list[str]:
    """Find the modules at the top of the package."""
    return [path for path in tree if "/" not in path and path not in ("__init__.py", "__main__.py")]


def count_source_lines(tree: Tree) -> int:
    """Count the lines of the whole tree."""
    return sum(map(count_lines, tree.values()))


class PrivateFunctions(NamedTuple):
    """The private functions of all modules, and those of them that their module names only once."""

    all: int
    used_once: list[str]

    @property
    def percent(self) -> float:
        return 100 * len(self.used_once) / self.all if self.all else 0.0


def find_private_functions(tree: Tree) -> PrivateFunctions:
    """Find module-level functions with a leading underscore, and how many of them are named once beside `def`."""
    total, once = 0, list[str]()
    for path, source in tree.items():
        names = (node.id for node in list_nodes(source) if isinstance(node, ast.Name))
        attributes = (node.attr for node in list_nodes(source) if isinstance(node, ast.Attribute))
        uses = Counter([*names, *attributes])
        for function in _find_module_functions(parse(source)):
            if function.name.startswith("_") and not function.name.startswith("__"):
                total += 1
                if uses[function.name] == 1:
                    once.append(f"{path}::{function.name}")
    return PrivateFunctions(total, once)


def _find_module_functions(node: ast.AST) -> list[Function]:
    """Find functions of a module, also those below an `if` or a `try`, but no methods."""
    found: list[Function] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            found.append(child)
        elif not isinstance(child, ast.ClassDef):
            found.extend(_find_module_functions(child))
    return found


def find_forwarding_modules(tree: Tree) -> list[str]:
    """Find modules that only pass on what others define: by a second name, or by a function that calls the first."""
    return [path for path, source in tree.items() if path not in FORWARDING_ALLOWED and _only_forwards(parse(source))]


def _only_forwards(module: ast.Module) -> bool:
    statements = _without_docstring(module.body)
    passes_on = any(isinstance(node, ast.ImportFrom) and _is_ours(node) for node in ast.walk(module))
    return passes_on and all(map(_forwards, statements))


def _is_ours(node: ast.ImportFrom) -> bool:
    return node.level > 0 or (node.module or "").split(".")[0] == "treadle"


def _forwards(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.Assign(value=ast.Name() | ast.Attribute()):
            return True
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _calls_another(node)
        case _:
            return False


def _calls_another(function: Function) -> bool:
    """Whether a function only calls another one with its own parameters."""
    body = [node for node in _without_docstring(function.body) if not isinstance(node, ast.Import | ast.ImportFrom)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value
    call = value.value if isinstance(value, ast.Await) else value
    if not isinstance(call, ast.Call):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    plain = [one.value if isinstance(one, ast.Starred) else one for one in given]
    return all(isinstance(one, ast.Name) and one.id in names for one in plain)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_docstring else body
