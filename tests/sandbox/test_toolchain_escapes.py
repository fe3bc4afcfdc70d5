"""Attempts to reach secrets beside toolchains, to change toolchains, and to leave the cache of one's workspace.

Each must fail in the sandbox and succeed without it. An attempt says ESCAPED when it got what it wanted.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct

from tests.kit.sandbox import inside, needs_bubblewrap, on_host
from tests.kit.toolchains import LAYOUTS, SECRET, ToolHome, echo
from treadle.sandbox.caches import hold_cache

pytestmark = needs_bubblewrap

Prepare = Callable[[ToolHome], None]


class Attempt(Struct, frozen=True):
    """A way to a file below the home. It is read or, with `writes`, written."""

    name: str
    file: str
    prepare: Prepare
    writes: bool = False

    def build_code(self, home: ToolHome) -> str:
        path = home.folder / self.file
        if self.writes:
            return f"mkdir -p '{path.parent}'; echo spoiled > '{path}'"
        return f"grep -q {SECRET} '{path}' && echo ESCAPED"


def install(name: str) -> Prepare:
    return lambda home: home.install(next(layout for layout in LAYOUTS if layout.name == name))


def install_all(home: ToolHome) -> None:
    paths = list[str]()
    for layout in LAYOUTS:
        home.install(layout)
        paths += layout.path
    home.set_path(*paths)


def name_home(variable: str) -> Prepare:
    def prepare(home: ToolHome) -> None:
        home.write("pyvenv.cfg", "home = ~/bin\n")
        home.write("bin/java", echo("x"))
        home.write("src/runtime/x", "x")
        home.set_variable(variable, str(home.folder))

    return prepare


def search_home(home: ToolHome) -> None:
    home.set_path("", "../home", "code/..")


def link_from_workspace(home: ToolHome) -> None:
    home.write("secret-place/bin/python", echo("x"))
    home.write("code/project/.venv/bin/python: ~/secret-place/bin/python")
    home.set_path("code/project/.venv/bin")
    home.set_variable("VIRTUAL_ENV", str(home.workspace / ".venv"))


def link_to_workspace(home: ToolHome) -> None:
    link_from_workspace(home)
    home.write("bin/run: ~/code/project/.venv/bin/python")
    home.set_path("bin")


def name_home_in_settings(home: ToolHome) -> None:
    home.write("secret-place/bin/python3", echo("x"))
    home.write("code/project/.venv/bin/python", echo("x"))
    home.write("code/project/.venv/pyvenv.cfg", "home = ~/secret-place/bin\n")
    home.set_variable("VIRTUAL_ENV", str(home.workspace / ".venv"))
    home.set_path("code/project/.venv/bin")


def name_version(home: ToolHome) -> None:
    install("pyenv")(home)
    home.write("secret-place/bin/python3", echo("x"))
    for name, text in (
        (".python-version", "../../secret-place"),
        (".tool-versions", "python path:../../secret-place"),
        (".nvmrc", "../../secret-place"),
        ("rust-toolchain.toml", '[toolchain]\npath = "~/secret-place"\n'),
    ):
        home.write(f"code/project/{name}", text)


def link_search_path(home: ToolHome) -> None:
    home.write("secret-place/bin/x", echo("x"))
    home.write("code/project/tools: ~/secret-place/bin")
    home.set_path("code/project/tools")


def use_settings(home: ToolHome) -> None:
    install("pyenv")(home)
    (home.folder / ".pyenv/versions/3.98/pip.conf").unlink()
    home.write(".pyenv/versions/3.98/pip.conf: settings/real.conf")
    home.write(".pyenv/versions/3.98/settings/real.conf", SECRET)


def use_environment(home: ToolHome) -> None:
    home.write("envs/a/bin/python", echo("x"))
    home.write("envs/a/pyvenv.cfg", "home = /usr/bin\n")
    home.set_variable("VIRTUAL_ENV", str(home.folder / "envs/a"))


def keep_caches(home: ToolHome) -> None:
    install_all(home)
    for name in (".cache/pip/x", ".npm/x", ".cargo/registry/x", "go/pkg/mod/x"):
        home.write(name, "whole")


BESIDE = {
    "cargo's token": ".cargo/credentials.toml",
    "cargo's old token": ".cargo/credentials",
    "npm's token": ".npmrc",
    "npm's token in a prefix": ".nvm/versions/node/v99/etc/npmrc",
    "npm's token in its own folder": ".nvm/versions/node/v99/lib/node_modules/npm/npmrc",
    "npm's token in a prefix of one's own": ".npm-global/etc/npmrc",
    "twine's password": ".pypirc",
    "the passwords of curl": ".netrc",
    "pip's index": ".config/pip/pip.conf",
    "pip's index of a version": ".pyenv/versions/3.98/pip.conf",
    "uv's credentials": ".local/share/uv/credentials/x",
    "the index of a tool of uv": ".local/share/uv/tools/ruff/uv-receipt.toml",
    "gem's key": ".gem/credentials",
    "maven's passwords": ".m2/settings.xml",
    "maven's passwords in its own folder": ".sdkman/candidates/maven/4/conf/settings.xml",
    "conda's token": "miniconda3/.condarc",
    "a database of Homebrew": ".linuxbrew/var/postgres/data",
    "modules of Go": "go/pkg/mod/private.go",
    "a file beside programs": "bin/token",
}


def keep_key(prepare: Prepare, name: str = "key") -> Prepare:
    def prepare_both(home: ToolHome) -> None:
        prepare(home)
        path = home.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)

    return prepare_both


KEY, OTHER_KEY = "key", "secret-place/key"
ATTEMPTS = [
    *(Attempt(name, file, keep_key(install_all, file)) for name, file in BESIDE.items()),
    Attempt("pip's index of a virtual environment", "envs/a/pip.conf", keep_key(use_environment, "envs/a/pip.conf")),
    Attempt("pip's index by a link in its prefix", ".pyenv/versions/3.98/settings/real.conf", use_settings),
    *(
        Attempt(f"the home named by {variable}", KEY, keep_key(name_home(variable)))
        for variable in (
            "VIRTUAL_ENV",
            "CARGO_HOME",
            "PYENV_ROOT",
            "GOROOT",
            "JAVA_HOME",
            "UV_TOOL_DIR",
            "XDG_CACHE_HOME",
        )
    ),
    Attempt("the home on the search path", KEY, keep_key(search_home)),
    Attempt("a place that a virtual environment links to", OTHER_KEY, keep_key(link_from_workspace, OTHER_KEY)),
    Attempt("a place that a link to the workspace leads to", OTHER_KEY, keep_key(link_to_workspace, OTHER_KEY)),
    Attempt("a place that a virtual environment names", OTHER_KEY, keep_key(name_home_in_settings, OTHER_KEY)),
    Attempt("a place that a version file names", OTHER_KEY, keep_key(name_version, OTHER_KEY)),
    Attempt("a place that the search path reaches by a link", OTHER_KEY, keep_key(link_search_path, OTHER_KEY)),
    Attempt("the user's Python", ".pyenv/versions/3.98/bin/python3", install("pyenv"), writes=True),
    Attempt(
        "a module that Python loads by itself", ".pyenv/versions/3.98/lib/sitecustomize.py", install_all, writes=True
    ),
    Attempt("a shim", ".pyenv/shims/python3", install("pyenv"), writes=True),
    Attempt("a new program for the user", ".cargo/bin/git", install("rustup"), writes=True),
    Attempt("a program that a script runs", "bin/hello", install("scripts of one's own"), writes=True),
    Attempt("a package of Node", ".nvm/versions/node/v99/lib/node_modules/npm/x.js", install("nvm"), writes=True),
    Attempt("a hidden file of a prefix", ".pyenv/versions/3.98/pip.conf", install("pyenv"), writes=True),
    Attempt("the chosen toolchain", ".rustup/settings.toml", install("rustup"), writes=True),
    Attempt("the user's cache of pip", ".cache/pip/x", keep_caches, writes=True),
    Attempt("the user's cache of npm", ".npm/x", keep_caches, writes=True),
    Attempt("the user's modules of Go", "go/pkg/mod/x", keep_caches, writes=True),
    Attempt("the user's registry of cargo", ".cargo/registry/x", keep_caches, writes=True),
]


@pytest.mark.parametrize("attempt", [pytest.param(one, id=one.name.replace(" ", "_")) for one in ATTEMPTS])
async def test_no_way_out_through_a_toolchain(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ToolHome(tmp_path, monkeypatch)
    attempt.prepare(home)
    path = home.folder / attempt.file
    before = path.read_bytes() if path.exists() else None
    held = await inside(home.shell(attempt.build_code(home)))
    assert "ESCAPED" not in held.output, f"{attempt.name}: {held}"
    assert (path.read_bytes() if path.exists() else None) == before, f"{attempt.name}: spoiled what is outside"
    free = await on_host(home.shell(attempt.build_code(home)))
    has_escaped = path.read_text() == "spoiled\n" if attempt.writes else "ESCAPED" in free.output
    assert has_escaped, f"{attempt.name} proves nothing, it fails without a sandbox too: {free}"


async def test_no_way_to_the_cache_of_another_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = ToolHome(tmp_path, monkeypatch)
    with hold_cache(home.folder / "code/other") as cache:
        (cache / "wheel").write_text(SECRET)
        code = f"grep -rqs {SECRET} ~/.cache '{cache.parent}' && echo ESCAPED; echo x > '{cache}/y' && echo ESCAPED"
        held = await inside(home.shell(code))
        assert "ESCAPED" not in held.output and not (cache / "y").exists()
        assert (await on_host(home.shell(code))).output.count("ESCAPED") == 2


def test_there_are_enough_attempts_and_each_has_a_name() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 40
