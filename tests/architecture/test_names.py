"""The rules for names: actions are verbs, a name belongs to one room, every module says what it is."""

from tests.architecture.names import (
    find_definitions,
    find_names_ending_in_of,
    find_open_callables,
    find_participles,
    find_shared_class_names,
    find_shared_file_names,
    find_undocumented_modules,
    find_vague_names,
    is_participle,
)
from tests.architecture.tree import find_unexcused, read_tree


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert find_vague_names(read_tree()) == []


def test_the_check_of_names_sees_files_and_folders() -> None:
    tree = {"core/x.py": "", "log/_utils.py": "", "helpers.py": "", "score.py": ""}
    assert find_vague_names(tree) == ["core/x.py", "log/_utils.py", "helpers.py"]


def test_every_module_opens_with_a_docstring() -> None:
    assert find_undocumented_modules(read_tree()) == []


def test_the_check_of_docstrings_sees_missing_and_blank_ones() -> None:
    tree = {"a.py": '"""Said."""\n', "b.py": "import a\n", "c.py": '""" """\n', "d.py": ""}
    assert find_undocumented_modules(tree) == ["b.py", "c.py", "d.py"]


def test_no_file_name_is_used_in_two_rooms() -> None:
    assert find_unexcused(find_shared_file_names(read_tree())) == {}


def test_the_check_of_file_names_lets_a_surface_name_what_it_shows() -> None:
    fits = ["sessions.py", "cli/sessions.py", "server/sessions.py", "log/base.py", "tools/base.py", "cli/__init__.py"]
    twice = ["log/search.py", "tools/mcp/search.py", "cli/run.py", "cli/chat/run.py"]
    assert find_shared_file_names(dict.fromkeys([*fits, *twice], "")) == [
        "log/search.py tools/mcp/search.py",
        "cli/run.py cli/chat/run.py",
    ]


def test_no_public_class_name_is_used_twice() -> None:
    assert find_unexcused(find_shared_class_names(read_tree())) == {}


def test_the_check_of_class_names_sees_two_modules_but_no_private_class() -> None:
    tree = {"a.py": "class Plan: ...\nclass _Row: ...\n", "log/b.py": "class Plan: ...\nclass _Row: ...\n"}
    assert find_shared_class_names(tree) == ["Plan: a.py log/b.py"]


def test_scope_means_one_thing() -> None:
    assert len(find_definitions(read_tree(), "Scope")) <= 1


def test_the_check_of_definitions_sees_classes_and_aliases() -> None:
    tree = {
        "a.py": "class Scope: ...\n",
        "b.py": "Scope = int\n",
        "c.py": "Scope: X = int\n",
        "d.py": "scope = Scope\n",
    }
    assert find_definitions(tree, "Scope") == ["a.py", "b.py", "c.py"]


def test_no_public_function_is_a_participle() -> None:
    assert find_unexcused(find_participles(read_tree())) == {}


def test_the_check_of_participles_tells_them_from_verbs_and_nouns() -> None:
    participles = "told made given meant opened written asking kept found held known taken seen left began unknown"
    others = "need embed feed open listen shorten string ping token read put set build is has calls children then"
    assert [word for word in participles.split() if not is_participle(word)] == []
    assert [word for word in others.split() if is_participle(word)] == []


def test_the_check_of_participles_sees_functions_methods_and_questions_without_a_verb() -> None:
    source = (
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
    assert find_participles({"a.py": source}) == [
        "a.py::told",
        "a.py::known_hosts",
        "a.py::Log.stored",
        "a.py::Log.closed",
    ]


def test_no_public_function_ends_in_of() -> None:
    assert find_unexcused(find_names_ending_in_of(read_tree())) == {}


def test_the_check_of_endings_sees_functions_and_properties() -> None:
    source = "def text_of(x): ...\ndef _of(x): ...\nclass A:\n    @property\n    def kind_of(self): ...\n"
    assert find_names_ending_in_of({"a.py": source}) == ["a.py::text_of", "a.py::A.kind_of"]


def test_no_signature_of_ours_leaves_a_callable_open() -> None:
    assert find_open_callables(read_tree()) == []


def test_the_check_of_callables_sees_parameters_fields_and_aliases() -> None:
    source = (
        "def run(function: Callable[..., Any]): ...\n"
        "class A:\n    tools: Sequence[Tool | collections.abc.Callable[..., typing.Any]]\n"
        "Function = Callable[..., Any]\n"
        "def fine(a: Callable[[int], Any], b: Callable[P, T], c: Callable[..., int]): ...\n"
    )
    assert find_open_callables({"a.py": source, "tools/function.py": source}) == ["a.py:1", "a.py:3", "a.py:4"]
