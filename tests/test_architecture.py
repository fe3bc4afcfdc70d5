"""The folders are the layers: who may import whom in src/treadle, and what is loaded when.

The table of layers is in docs/architecture.md and nowhere else. The checks are in tests/architecture; each takes a tree
(path -> source), so each is also shown a bad tree. A check that cannot fail is no check.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import treadle
from tests.architecture import budgets, names
from tests.architecture.layers import (
    find_foreign_imports,
    find_knots,
    find_layer,
    find_layer_breaches,
    find_module_table_lookups,
    find_undeclared_modules,
    find_unused_places,
    read_layers,
)
from tests.architecture.tree import (
    EXCEPTIONS,
    PROJECT,
    find_stale_exceptions,
    find_unexcused,
    read_public_names,
    read_tree,
)

KNOT_MODULES = 4
PUBLIC_NAMES = 30
WALK_FILES = {"treadle run": 53, "POST messages": 53}  # they rise only with a decision record
LATE_IMPORTS = {"aiohttp", "fastapi", "uvicorn", "rich", "prompt_toolkit", "openai", "anthropic", "mcp"}
# Folders of tests that no folder of src has: what the tests share, and tests of the whole.
TEST_FOLDERS = {"architecture", "cluster", "crash", "kit", "pins", "soak", "web", "clients", "seeds"}
LAYERS = read_layers()


def measure_walks() -> dict[str, int]:
    script = PROJECT / "benchmarks" / "walk.py"
    done = subprocess.run([sys.executable, script, "--no-list"], capture_output=True, text=True, check=True)
    return count_walks(done.stdout)


def count_walks(report: str) -> dict[str, int]:
    """Read the last lines of benchmarks/walk.py: how many files a message passes through."""
    lines = (line.removesuffix(" files").split(": ") for line in report.splitlines() if line.endswith(" files"))
    return {name: int(count) for name, count in lines}


def list_loaded_modules(statement: str, **environment: str) -> set[str]:
    """List the modules that a statement loads in a new interpreter, without those that it starts with."""
    code = f"import sys; before = set(sys.modules); {statement}; print(); print(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PATH": "", **environment}
    )
    return set(done.stdout.splitlines()[-1].split())


# --- the folder table


def test_the_source_tree_is_found() -> None:
    assert {"__init__.py", "errors.py", "messages.py", "events.py", "engine/loop.py"} <= read_tree().keys()


def test_every_module_is_in_a_declared_folder() -> None:
    assert find_undeclared_modules(read_tree(), LAYERS) == []


def test_the_check_of_folders_sees_a_module_in_none() -> None:
    tree = {"agent.py": "", "clock.py": "", "utils/text.py": "", "base.py": "", "engine/new.py": "", "log/base.py": ""}
    assert find_undeclared_modules(tree, LAYERS) == ["clock.py", "utils/text.py", "base.py"]


def test_every_place_of_the_table_exists() -> None:
    assert find_unused_places(read_tree(), LAYERS) == []


def test_the_check_of_places_sees_a_folder_and_a_module_that_are_gone() -> None:
    layers = read_layers(
        "| layer | where | may import |\n|---|---|---|\n| a | `log/` `*/base` `run` `gone` `old/` | a |"
    )
    assert find_unused_places({"log/base.py": "", "run.py": ""}, layers) == ["a: gone", "a: old/"]


def test_a_table_that_names_an_unknown_layer_is_refused() -> None:
    with pytest.raises(ValueError, match="no row: b"):
        read_layers("| layer | where | may import |\n|---|---|---|\n| a | `log/` | a, b, own folder |\n")
    with pytest.raises(ValueError, match="no table"):
        read_layers("| folder | may import |\n|---|---|\n")


def test_a_module_has_the_layer_of_its_nearest_place() -> None:
    expected = {
        "treadle": "names",
        "treadle.__main__": "cli",
        "treadle.events": "values",
        "treadle.engine": "engine",
        "treadle.engine.loop": "engine",
        "treadle.engine.state": "pure",
        "treadle.permissions.shell.parse": "pure",
        "treadle.tools.base": "ports",
        "treadle.tools.files.edit": "tools",
        "treadle.tools.function": "entries",
        "treadle.cli.serve": "cli",
        "treadle.nothing": None,
    }
    assert {module: find_layer(module, LAYERS) for module in expected} == expected


def test_the_tests_have_the_folders_of_the_source() -> None:
    source = {path.split("/")[0] for path in read_tree() if "/" in path}
    folders = {path.parent.name for path in (PROJECT / "tests").glob("*/*.py")}
    assert folders - source - TEST_FOLDERS == set()


# --- imports


def test_imports_go_only_where_the_table_allows() -> None:
    assert find_unexcused(find_layer_breaches(read_tree(), LAYERS)) == {}


def test_the_check_of_layers_allows_what_the_table_allows() -> None:
    tree = {
        "__init__.py": "from treadle.agent import Agent\n__all__ = ['Agent']\n",
        "__main__.py": "from treadle.cli import main\n",
        "agent.py": "import treadle.engine.loop\nfrom treadle.models.catalog import resolve\nfrom . import session\n",
        "session.py": "from .permissions import policy\n",
        "errors.py": "",
        "events.py": "from treadle.errors import Invalid\nimport msgspec\n",
        "engine/state.py": "from ..events import Fact\nfrom treadle.permissions.policy import Grant\n",
        "engine/loop.py": "from treadle.log.base import Log\nfrom .state import fold\nfrom .setup import Setup\n",
        "engine/setup.py": "",
        "permissions/policy.py": "from treadle.secrets import redact\n",
        "secrets/redact.py": "",
        "log/__init__.py": "",
        "log/base.py": "from ..events import Fact\n",
        "log/sqlite.py": "from . import rows\nfrom .base import Log\nfrom treadle.models.base import Model\n",
        "log/rows.py": "from treadle.log import sqlite\n",
        "models/catalog.py": "from treadle.models.chat import Chat\n",
        "models/chat.py": "",
        "tools/files/edit.py": "from treadle.tools.shell import x\nfrom treadle.workspace.folder import Folder\n",
        "dialects/wire.py": "from treadle.events import Fact\nfrom . import base\n",
        "dialects/base.py": "",
        "app/compose.py": "from treadle.log.sqlite import SqliteLog\nfrom treadle.runtime import Runtime\n",
        "testing/model.py": "from treadle import Agent\nfrom treadle.log.rows import x\n",
        "cli/__init__.py": "from treadle import Agent, __version__\nfrom .run import main\n",
        "cli/run.py": "import treadle.cli\nfrom treadle.app import compose\n",
        "cli/serve.py": "from treadle.server import app\n",
        "server/app.py": "from treadle.agent import Agent\nfrom treadle import Agent\n",
    }
    assert find_layer_breaches(tree, LAYERS) == []


BREACHES = {
    "a value that imports upwards": [
        ("events.py", "from treadle.engine.fold import fold"),
        ("events.py", "from .engine import state"),
        ("events.py", "from .log.base import Log"),
        ("events.py", "import treadle.agent"),
        ("events.py", "from treadle import Agent"),
        ("events.py", "def late():\n    from treadle.engine.loop import run"),
        ("events.py", "if TYPE_CHECKING:\n    from treadle.run import Run"),
    ],
    "pure code that knows a port or the engine": [
        ("engine/state.py", "from treadle.tools.base import Tool"),
        ("engine/steps.py", "from treadle.engine.loop import Loop"),
        ("permissions/policy.py", "from treadle.engine.loop import Loop"),
        ("permissions/shell/parse.py", "from treadle.engine.loop import Loop"),
        ("secrets/keyring.py", "from treadle.engine.loop import Loop"),
    ],
    "a port or an engine that knows an adapter or the face": [
        ("log/base.py", "from .sqlite import SqliteLog"),
        ("engine/loop.py", "from treadle.log import SqliteLog"),
        ("engine/loop.py", "from treadle.log.open_log import open_log"),
        ("engine/coordinator.py", "from treadle.agent import Agent"),
    ],
    "an adapter that knows another, the engine or the face": [
        ("log/sqlite.py", "from treadle.tools.shell import run"),
        ("memory/store.py", "from treadle.log.rows import Row"),
        ("tools/delegate.py", "from ..engine.loop import run"),
        ("export/transcript.py", "from treadle.session import Session"),
    ],
    "a dialect that knows the engine or an adapter": [
        ("dialects/wire.py", "from treadle.engine.loop import Loop"),
        ("dialects/wire.py", "from treadle.log.sqlite import SqliteLog"),
    ],
    "a face that knows a concrete adapter or the app": [
        ("runtime.py", "from treadle.log.sqlite import SqliteLog"),
        ("session.py", "from treadle.export import transcript"),
        ("agent.py", "from treadle.app.compose import open_runtime"),
    ],
    "anyone who knows a surface or the test doubles": [
        ("agent.py", "from treadle.cli import main"),
        ("app/compose.py", "from treadle.server import app"),
        ("app/compose.py", "from treadle.testing import ScriptedModel"),
        ("testing/model.py", "from treadle.server import app"),
    ],
    "a surface that can do what a library user cannot": [
        ("server/app.py", "from treadle import secret"),
        ("server/app.py", "from treadle.engine.loop import Loop"),
        ("server/app.py", "from treadle.log.sqlite import SqliteLog"),
        ("server/app.py", "from treadle.log.open_log import open_log"),
        ("server/app.py", "from treadle.cli import main"),
        ("server/app.py", "import treadle"),
    ],
    "an import of a module in no folder": [("agent.py", "from treadle.clock import now")],
}


@pytest.mark.parametrize("kind", BREACHES)
def test_the_check_of_layers_sees(kind: str) -> None:
    rest = {"__init__.py": "__all__ = ['Agent']\n", "engine/state.py": ""}
    found = {(path, line): find_layer_breaches({**rest, path: line}, LAYERS) for path, line in BREACHES[kind]}
    assert [place for place, breaches in found.items() if len(breaches) != 1] == []


def test_a_breach_names_both_modules_and_their_layers() -> None:
    tree = {"__init__.py": "", "agent.py": "from treadle.clock import now"}
    assert find_layer_breaches(tree, LAYERS) == ["treadle.agent (face) imports treadle.clock (no layer)"]


def test_low_layers_import_no_third_party_package_but_msgspec() -> None:
    assert find_foreign_imports(read_tree(), LAYERS) == []


def test_the_check_of_third_parties_sees_them_in_low_layers_only() -> None:
    tree = {
        "events.py": "import msgspec, json\nfrom treadle.errors import Invalid\n",
        "engine/state.py": "from pydantic import BaseModel\n",
        "models/base.py": "def late():\n    import aiohttp.web\n",
        "tools/base.py": "import pydantic\n",
        "permissions/policy.py": "import tree_sitter\n",
        "permissions/shell/parse.py": "import tree_sitter\n",
        "models/chat.py": "import aiohttp\n",
    }
    assert find_foreign_imports(tree, LAYERS) == [
        "treadle.engine.state imports pydantic",
        "treadle.models.base imports aiohttp",
        "treadle.permissions.policy imports tree_sitter",
    ]


def test_few_modules_import_each_other_in_a_circle() -> None:
    assert [knot for knot in find_knots(read_tree()) if len(knot) > KNOT_MODULES] == []


def test_the_check_of_knots_counts_late_imports_but_not_those_for_types() -> None:
    tree = {
        "a.py": "from treadle.b import x\n",
        "b.py": "def late():\n    from treadle import c\n",
        "c.py": "from treadle.a import y\nfrom treadle.d import z\n",
        "d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from treadle.c import x\n",
        "e.py": "import treadle.f\n",
        "f.py": "import treadle.e\n",
    }
    assert find_knots(tree) == [["treadle.a", "treadle.b", "treadle.c"], ["treadle.e", "treadle.f"]]


def test_no_state_is_looked_up_in_the_table_of_modules() -> None:
    assert find_module_table_lookups(read_tree()) == []


def test_the_check_of_lookups_sees_the_table_of_modules() -> None:
    tree = {"a.py": "import sys\nx = sys.argv\ntaken = getattr(sys.modules.get('treadle.b'), 'taken', {})\n"}
    assert find_module_table_lookups(tree) == ["a.py:3"]


# --- exceptions


def test_the_list_of_exceptions_only_shrinks() -> None:
    tree = read_tree()
    sizes = budgets.find_long_files(tree) | budgets.find_long_functions(tree) | budgets.find_wide_functions(tree)
    others = (
        *find_layer_breaches(tree, LAYERS),
        *budgets.find_forwarding_modules(tree),
        *names.find_shared_file_names(tree),
        *names.find_shared_class_names(tree),
        *names.find_participles(tree),
        *names.find_names_ending_in_of(tree),
    )
    assert find_stale_exceptions(EXCEPTIONS, sizes | dict.fromkeys(others, 1)) == {}


def test_the_check_of_exceptions_sees_those_that_are_no_longer_needed() -> None:
    exceptions = {"lines of a.py": 600, "lines of b.py": 700, "a.py::told": 1}
    assert find_stale_exceptions(exceptions, {"lines of a.py": 600, "lines of b.py": 650}) == {
        "lines of b.py": 700,
        "a.py::told": 1,
    }


# --- public names, and what is loaded


def test_there_are_few_public_names_and_all_exist() -> None:
    public = read_public_names(read_tree())
    assert 0 < len(public) <= PUBLIC_NAMES
    assert sorted(public) == sorted(treadle.__all__)
    assert all(getattr(treadle, name) is not None for name in public)
    assert set(public) <= set(dir(treadle))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = treadle.nothing  # type: ignore[attr-defined]


def test_the_reading_of_public_names_sees_them_all() -> None:
    assert read_public_names({"__init__.py": "from .a import b\n__all__ = ['b', 'c']\n"}) == ["b", "c"]
    assert read_public_names({"__init__.py": "__all__: list[str] = ['b']\n"}) == ["b"]


def test_importing_treadle_loads_nothing_heavy() -> None:
    packages = {name.split(".")[0] for name in list_loaded_modules("from treadle import *")}
    assert packages & LATE_IMPORTS == set()
    assert "asyncio" not in list_loaded_modules("import treadle")


def test_mcp_is_not_loaded_when_no_server_is_configured(tmp_path: Path) -> None:
    loaded = list_loaded_modules("from treadle.cli.main import main; main(['tools'])", HOME=str(tmp_path))
    assert "treadle.tools.builtin" in loaded
    assert {name for name in loaded if name.split(".")[0] == "mcp" or name.startswith("treadle.tools.mcp.")} == set()


def test_the_listing_of_loaded_modules_sees_what_a_statement_loads() -> None:
    assert "wave" in list_loaded_modules("import wave")
    assert "wave" not in list_loaded_modules("pass")


# --- the way of one message


def test_one_message_passes_through_few_files() -> None:
    longer = dict(WALK_FILES)
    for _ in range(3):  # on a busy machine a timer may fire during the message, which adds files to one measurement
        walks = measure_walks()
        assert walks.keys() == WALK_FILES.keys()
        longer = {name: walks[name] for name in longer if walks[name] > WALK_FILES[name]}
        if not longer:
            break
    assert longer == {}


def test_the_count_of_walks_reads_the_last_lines() -> None:
    report = "  1  session.py      Session.run\n\ntreadle run: 70 files\nPOST messages: 72 files\n"
    assert count_walks(report) == {"treadle run": 70, "POST messages": 72}
