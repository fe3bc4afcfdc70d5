"""Who may import whom. The table of layers in docs/architecture.md is the only place that says it."""

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tests.architecture.tree import PROJECT, Tree, find_imports, list_nodes, module_name, read_public_names

PAGE = PROJECT / "docs" / "architecture.md"
HEADER = re.compile(r"^\| *layer *\| *where *\| *may import *\|.*$", re.MULTILINE)
OWN_FOLDER = "own folder"

# Packages that low layers may import beside the standard library. The longest prefix counts.
LOW_LAYERS = ("values", "pure", "ports")
THIRD_PARTY: dict[str, set[str]] = {
    "": {"msgspec"},
    "tools/base.py": {"msgspec", "pydantic"},
    "permissions/shell/": {"msgspec", "tree_sitter", "tree_sitter_bash"},
}


@dataclass(frozen=True)
class Layer:
    """A row of the table. A place is a module (`engine/state`), a folder (`log/`) or any folder's port (`*/base`)."""

    name: str
    places: tuple[str, ...]
    may_import: frozenset[str]


Layers = Mapping[str, Layer]


def read_layers(page: str | None = None) -> Layers:
    """Read the table of layers from the page that describes the architecture."""
    text = page if page is not None else PAGE.read_text("utf-8")
    header = HEADER.search(text)
    if header is None:
        raise ValueError(f"{PAGE} has no table with the columns layer, where, may import")
    layers: dict[str, Layer] = {}
    for line in text[header.end() :].strip().splitlines()[1:]:
        if not line.startswith("|"):
            break
        name, where, allowed = (cell.strip() for cell in line.strip("|").split("|"))
        names = frozenset(part.strip() for part in allowed.split(",") if part.strip())
        layers[name] = Layer(name, tuple(re.findall(r"`([^`]+)`", where)), names)
    if unknown := {name for layer in layers.values() for name in layer.may_import} - {*layers, OWN_FOLDER}:
        raise ValueError(f"the table of layers names layers that have no row: {', '.join(sorted(unknown))}")
    return layers


def find_layer(module: str, layers: Layers) -> str | None:
    """The layer of a module: the row that names it, else the port that it is, else the row of its nearest folder."""
    path = "/".join(module.split(".")[1:]) or "__init__"
    folders = [f"{path[:end]}/" for end in range(len(path), 0, -1) if path[end : end + 1] in ("", "/")]
    port = ["*/base"] if path.endswith("/base") else []
    for place in (path, *port, *folders):
        for layer in layers.values():
            if place in layer.places:
                return layer.name
    return None


def find_undeclared_modules(tree: Tree, layers: Layers) -> list[str]:
    """Find modules in no declared folder."""
    return [path for path in tree if find_layer(module_name(path), layers) is None]


def find_unused_places(tree: Tree, layers: Layers) -> list[str]:
    """Find places of the table that the tree does not have."""
    return [
        f"{layer.name}: {place}"
        for layer in layers.values()
        for place in layer.places
        if not any(_is_in(path, place) for path in tree)
    ]


def _is_in(path: str, place: str) -> bool:
    if place.endswith("/"):
        return path.startswith(place)
    return path == f"{place}.py" or (place == "*/base" and path.endswith("/base.py"))


def find_layer_breaches(tree: Tree, layers: Layers) -> list[str]:
    """Find imports, also late ones and those for types, that the table does not allow."""
    public = {*read_public_names(tree), "__version__"}
    found: dict[str, None] = {}
    for path in tree:
        module = module_name(path)
        for target, name in find_imports(path, tree):
            if target.split(".")[0] != "treadle":
                continue
            is_hidden = target == "treadle" and name not in public
            if is_hidden or not _may_import(module, target, layers):
                found[f"{_show(module, layers)} imports {_show(target, layers)}"] = None
    return list(found)


def _show(module: str, layers: Layers) -> str:
    return f"{module} ({find_layer(module, layers) or 'no layer'})"


def _may_import(module: str, target: str, layers: Layers) -> bool:
    layer, lower = find_layer(module, layers), find_layer(target, layers)
    if layer is None or lower is None:
        return False
    allowed = layers[layer].may_import
    return lower in allowed or (OWN_FOLDER in allowed and _folder(module) == _folder(target))


def _folder(module: str) -> str:
    """The folder under treadle that a module is in; `python -m treadle` is the command line."""
    name = [*module.split("."), ""][1]
    return "cli" if name == "__main__" else name


def find_foreign_imports(tree: Tree, layers: Layers) -> list[str]:
    """Find third-party packages in layers that must stay small."""
    found: list[str] = []
    for path in tree:
        if find_layer(module_name(path), layers) not in LOW_LAYERS:
            continue
        allowed = THIRD_PARTY[max((prefix for prefix in THIRD_PARTY if path.startswith(prefix)), key=len)]
        for target, _ in find_imports(path, tree):
            top = target.split(".")[0]
            if top not in allowed | sys.stdlib_module_names | {"treadle"}:
                found.append(f"{module_name(path)} imports {top}")
    return found


def find_knots(tree: Tree) -> list[list[str]]:
    """Find the groups of modules that import each other in a circle, late imports counted; the largest first."""
    paths = {module_name(path): path for path in tree}
    graph = {
        module: {target for target, _ in find_imports(path, tree, for_types=False) if target in paths}
        for module, path in paths.items()
    }
    reachable = {module: _reach(module, graph) for module in graph}
    knots = {
        tuple(sorted(other for other in reachable[module] if module in reachable[other]))
        for module in graph
        if module in reachable[module]
    }
    return sorted(map(list, knots), key=lambda knot: (-len(knot), knot))


def _reach(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def find_module_table_lookups(tree: Tree) -> list[str]:
    """Find uses of `sys.modules`: state is passed to who needs it, not looked up in another module."""
    return [
        f"{path}:{node.lineno}"
        for path, source in tree.items()
        for node in list_nodes(source)
        if isinstance(node, ast.Attribute) and node.attr == "modules" and ast.unparse(node) == "sys.modules"
    ]
