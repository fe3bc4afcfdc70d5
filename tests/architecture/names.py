"""How things may be called: verbs for actions, one word a thing, one room a name."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.architecture.tree import Function, Tree, find_functions, find_public_functions, list_nodes, parse

VAGUE_NAMES = {"utils", "common", "core", "helpers"}
SURFACES = ("cli", "server")
SHARED_FILE_NAMES = {"base.py", "__init__.py", "__main__.py"}

# Words that end like a participle and are none.
NO_PARTICIPLES = {
    *("embed", "exceed", "feed", "heed", "need", "proceed", "seed", "shed", "speed", "succeed"),
    *("children", "even", "flatten", "happen", "harden", "lengthen", "listen", "loosen", "open", "reopen", "screen"),
    *("seven", "shorten", "straighten", "ten", "then", "tighten", "token", "when", "widen"),
    *("bring", "during", "king", "nothing", "ping", "ring", "sibling", "sing", "something", "spring", "string"),
    *("anything", "everything", "swing", "thing", "wing"),
}
# Participles, and past tenses, that no ending shows. Not those that are also the verb itself: cut, put, read, set.
IRREGULAR_PARTICIPLES = {
    *("become", "begun", "bent", "born", "borne", "bought", "bound", "brought", "built", "burnt", "caught", "dealt"),
    *("done", "drawn", "drunk", "dug", "fed", "felt", "fled", "flown", "forgot", "fought", "found", "gone", "got"),
    *("ground", "grown", "heard", "held", "hung", "kept", "knelt", "known", "laid", "learnt", "led", "left", "lent"),
    *("lost", "made", "meant", "met", "overdone", "paid", "redone", "repaid", "said", "sent", "shone", "shorn"),
    *("shot", "shown", "slept", "sold", "sought", "spelt", "spent", "spun", "stood", "struck", "stuck", "sung"),
    *("sunk", "sworn", "swum", "taught", "thought", "thrown", "told", "torn", "understood", "undone", "unknown"),
    *("withdrawn", "withheld", "won", "worn", "wound"),
    *("began", "came", "fell", "gave", "knew", "rose", "saw", "spoke", "threw", "took", "went", "wrote"),
}

# Where a person hands us a function whose parameters we cannot know.
OPEN_CALLABLES = {
    "agent.py": "a user's function becomes a tool",
    "tools/function.py": "a user's function becomes a tool",
}


def find_vague_names(tree: Tree) -> list[str]:
    """Find files and folders whose name says nothing."""
    return [
        path for path in tree if any(part.removesuffix(".py").strip("_") in VAGUE_NAMES for part in path.split("/"))
    ]


def find_undocumented_modules(tree: Tree) -> list[str]:
    """Find modules without a docstring."""
    return [path for path, source in tree.items() if not (ast.get_docstring(parse(source)) or "").strip()]


def find_shared_file_names(tree: Tree) -> list[str]:
    """Find file names in several rooms. A surface may name a file after the thing it shows, once."""
    rooms: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in tree:
        name, top = path.split("/")[-1], path.split("/")[0]
        if name not in SHARED_FILE_NAMES:
            rooms[name, top if top in SURFACES else ""].append(path)
    return [" ".join(paths) for paths in rooms.values() if len(paths) > 1]


def find_shared_class_names(tree: Tree, *, private: bool = False) -> list[str]:
    """Find class names that several modules define."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for path, source in tree.items():
        for node in parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("_") == private:
                rooms[node.name].append(path)
    return [f"{name}: {' '.join(paths)}" for name, paths in rooms.items() if len(paths) > 1]


def is_participle(word: str) -> bool:
    """Whether a word is a participle or a past tense, by its ending or by the list of irregular ones."""
    if word in NO_PARTICIPLES:
        return False
    return word in IRREGULAR_PARTICIPLES or (len(word) > 3 and word.endswith(("ed", "en", "ing")))


def find_participles(tree: Tree, *, private: bool = False) -> list[str]:
    """Find functions whose name begins with a participle: an action is a verb.

    A property is a value and may be one (`pending`), unless it answers yes or no: that is a question (`is_closed`).
    """
    return [
        name
        for name, function in _select(tree, private)
        if is_participle(function.name.strip("_").split("_")[0]) and (not _is_property(function) or _is_bool(function))
    ]


def find_names_ending_in_of(tree: Tree, *, private: bool = False) -> list[str]:
    """Find functions that are named after whose something is, not after what is done."""
    return [name for name, function in _select(tree, private) if function.name.endswith("_of")]


def _select(tree: Tree, private: bool) -> Iterator[tuple[str, Function]]:
    public = dict(find_public_functions(tree))
    return ((n, f) for n, f in find_functions(tree) if n not in public) if private else iter(public.items())


def _is_property(function: Function) -> bool:
    return any(ast.unparse(one).split(".")[-1] in ("property", "cached_property") for one in function.decorator_list)


def _is_bool(function: Function) -> bool:
    return function.returns is not None and ast.unparse(function.returns) == "bool"


def find_definitions(tree: Tree, name: str) -> list[str]:
    """Find the modules that define a class, an alias or a variable of that name."""
    return [path for path, source in tree.items() if any(name in _defines(node) for node in parse(source).body)]


def _defines(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()


def find_open_callables(tree: Tree) -> list[str]:
    """Find `Callable[..., Any]`, which checks nothing, outside the places where a user hands us a function."""
    return [
        f"{path}:{node.lineno}"
        for path, source in tree.items()
        for node in list_nodes(source)
        if path not in OPEN_CALLABLES and isinstance(node, ast.Subscript) and _is_open_callable(node)
    ]


def _is_open_callable(node: ast.Subscript) -> bool:
    match node:
        case ast.Subscript(
            value=ast.Name(id="Callable") | ast.Attribute(attr="Callable"),
            slice=ast.Tuple(elts=[ast.Constant(value=value), ast.Name(id="Any") | ast.Attribute(attr="Any")]),
        ):
            return value is ...
        case _:
            return False
