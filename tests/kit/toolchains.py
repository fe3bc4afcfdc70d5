"""A home with the layouts of version managers, made of small scripts, and a workspace in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Struct

from treadle.sandbox.base import Job

SECRET = "the-secret-of-somebody-else"


class Layout(Struct, frozen=True):
    """What a version manager leaves in a home. A name with a colon is `link: target`; other files are scripts.

    `command` prints `expected` when the tool is found and works. `hidden` must not be readable.
    """

    name: str
    files: Mapping[str, str]
    path: tuple[str, ...]
    command: str
    expected: str
    env: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()


class ToolHome:
    """A home in a temporary folder. The environment of this process names it, and a search path of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder / "home", monkeypatch
        self.workspace = self.folder / "code/project"
        self.workspace.mkdir(parents=True)
        for name in list(os.environ):
            if name.endswith(("_ROOT", "_HOME", "_DIR")) or name in ("VIRTUAL_ENV", "GOROOT", "GOPATH", "CONDA_PREFIX"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(self.folder))
        self.set_path()

    def set_path(self, *entries: str) -> None:
        """Put folders of the home in front of the system's."""
        folders = [str(self.folder / entry) for entry in entries]
        self.set_variable("PATH", os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", "/bin"]))

    def set_variable(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def write(self, name: str, text: str = "", *, mode: int = 0o755) -> Path:
        """Write a file, or make a link if the name is `link: target`."""
        link, _, target = name.partition(": ")
        path = self.folder / link
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target.replace("~", str(self.folder)))
        else:
            path.write_text(text.replace("~", str(self.folder)))
            path.chmod(mode)
        return path

    def install(self, layout: Layout) -> None:
        for name, text in layout.files.items():
            self.write(name, text)
        for name in layout.hidden:
            self.write(name, SECRET, mode=0o644)
        self.set_path(*layout.path)
        for name, value in layout.env.items():
            self.set_variable(name, value.replace("~", str(self.folder)))

    def shell(self, code: str) -> Job:
        return Job(("/bin/bash", "-c", code), self.workspace)


SHIM = '#!/usr/bin/env bash\nexport PYENV_ROOT="~/.pyenv"\nexec "~/.pyenv/libexec/pyenv" exec "${0##*/}" "$@"\n'
PYENV = """#!/usr/bin/env bash
shift; program=$1; shift
version=$(cat .python-version 2>/dev/null || cat "$PYENV_ROOT/version")
exec "$PYENV_ROOT/versions/$version/bin/$program" "$@"
"""
RUSTUP = """#!/bin/sh
read -r line < "${RUSTUP_HOME:-$HOME/.rustup}/settings.toml"
exec "${RUSTUP_HOME:-$HOME/.rustup}/toolchains/$line/bin/${0##*/}" "$@"
"""


def echo(text: str) -> str:
    return f"#!/bin/sh\necho {text}\n"


LAYOUTS = (
    Layout(
        "pyenv",
        {
            ".pyenv/shims/python3": SHIM,
            ".pyenv/bin/pyenv: ../libexec/pyenv": "",
            ".pyenv/libexec/pyenv": PYENV,
            ".pyenv/version": "3.98",
            ".pyenv/versions/3.98/bin/python3": echo("python 3.98"),
            ".pyenv/versions/3.99/bin/python3": echo("python 3.99"),
        },
        (".pyenv/shims", ".pyenv/bin"),
        "python3; echo 3.99 > .python-version; python3",
        "python 3.98\npython 3.99\n",
        hidden=(".pyenv/versions/3.98/pip.conf", ".pyenv/versions/3.99/etc/pip.conf", ".pyenv/.git/config"),
    ),
    Layout(
        "nvm",
        {
            ".nvm/versions/node/v99/bin/node": echo("node 99"),
            ".nvm/versions/node/v99/bin/npm: ../lib/node_modules/npm/bin/npm-cli.js": "",
            ".nvm/versions/node/v99/lib/node_modules/npm/bin/npm-cli.js": "#!/usr/bin/env node\n",
        },
        (".nvm/versions/node/v99/bin",),
        "node; npm",
        "node 99\nnode 99\n",
        hidden=(".npmrc", ".nvm/versions/node/v99/etc/npmrc", ".nvm/versions/node/v99/lib/node_modules/npm/npmrc"),
    ),
    Layout(
        "volta",
        {
            ".volta/bin/volta-shim": '#!/bin/sh\nexec "$VOLTA_HOME/tools/image/node/99/bin/${0##*/}"\n',
            ".volta/bin/node: volta-shim": "",
            ".volta/tools/image/node/99/bin/node": echo("node 99"),
        },
        (".volta/bin",),
        "node",
        "node 99\n",
        hidden=(".volta/hooks.json",),
    ),
    Layout(
        "asdf",
        {
            ".asdf/shims/node": '#!/bin/sh\nexec asdf exec "$(basename "$0")"\n',
            ".asdf/bin/asdf": "#!/bin/sh\nread -r name version < $HOME/.tool-versions\n"
            'exec "$ASDF_DATA_DIR/installs/$name/$version/bin/$2"\n',
            ".tool-versions": "nodejs 99\n",
            ".asdf/installs/nodejs/99/bin/node": echo("node 99"),
        },
        (".asdf/shims", ".asdf/bin"),
        "node",
        "node 99\n",
        hidden=(".asdf/installs/nodejs/99/.npmrc", ".asdfrc"),
    ),
    Layout(
        "mise",
        {
            ".local/share/mise/installs/node/99.1/bin/node": echo("node 99"),
            ".local/share/mise/installs/node/latest: 99.1": "",
        },
        (".local/share/mise/installs/node/latest/bin",),
        "node",
        "node 99\n",
        hidden=(".config/mise/config.toml", ".local/share/mise/tracked-configs/x"),
    ),
    Layout(
        "rustup",
        {
            ".cargo/bin/rustup": RUSTUP,
            ".cargo/bin/cargo: rustup": "",
            ".rustup/settings.toml": "stable\n",
            ".rustup/toolchains/stable/bin/cargo": echo("cargo 99"),
        },
        (".cargo/bin",),
        "cargo",
        "cargo 99\n",
        hidden=(".cargo/credentials.toml", ".cargo/credentials", ".cargo/config.toml", ".cargo/registry/index"),
    ),
    Layout(
        "go",
        {
            "sdk/go1.99/bin/go": '#!/bin/sh\nread -r version < "$GOROOT/VERSION"; echo go $version\n',
            "sdk/go1.99/VERSION": "1.99",
            "sdk/go1.99/src/runtime/x.go": "",
            "go/bin/gopls": echo("gopls"),
        },
        ("sdk/go1.99/bin", "go/bin"),
        "go; gopls",
        "go 1.99\ngopls\n",
        {"GOROOT": "~/sdk/go1.99"},
        ("go/pkg/mod/private.go", "sdk/other"),
    ),
    Layout(
        "SDKMAN",
        {
            ".sdkman/candidates/java/21/bin/java": echo("java 21"),
            ".sdkman/candidates/java/21/bin/javac": echo("javac"),
            ".sdkman/candidates/java/current: 21": "",
            ".sdkman/candidates/maven/4/bin/mvn": '#!/bin/sh\ncat "${0%/bin/mvn}/conf/settings.xml"\n',
        },
        (".sdkman/candidates/java/current/bin", ".sdkman/candidates/maven/4/bin"),
        'java; mvn; test -x "$JAVA_HOME/bin/java" && echo home',
        "java 21\n<settings/>\nhome\n",
        {"JAVA_HOME": "~/.sdkman/candidates/java/current"},
        (".m2/settings.xml", ".sdkman/candidates/maven/4/conf/settings.xml", ".sdkman/etc/config"),
    ),
    Layout(
        "Homebrew",
        {
            ".linuxbrew/bin/tool: ../Cellar/tool/1/bin/tool": "",
            ".linuxbrew/Cellar/tool/1/bin/tool": '#!/bin/sh\ncat "~/.linuxbrew/opt/tool/share/word"\n',
            ".linuxbrew/Cellar/tool/1/share/word": "brewed\n",
            ".linuxbrew/opt/tool: ../Cellar/tool/1": "",
            ".linuxbrew/lib/libtool.so": "",
            ".linuxbrew/etc/openssl/cert.pem": "",
        },
        (".linuxbrew/bin",),
        "tool",
        "brewed\n",
        hidden=(".linuxbrew/var/postgres/data", ".linuxbrew/etc/npmrc"),
    ),
    Layout(
        "pipx",
        {
            ".local/bin/black: ~/.local/share/pipx/venvs/black/bin/black": "",
            ".local/share/pipx/venvs/black/bin/black": "#!~/.local/share/pipx/venvs/black/bin/python\necho black\n",
            ".local/share/pipx/venvs/black/bin/python: /bin/sh": "",
            ".local/share/pipx/venvs/black/pyvenv.cfg": "",
        },
        (".local/bin",),
        "black",
        "black\n",
        hidden=(".local/share/keyrings/login", ".local/share/pipx/venvs/black/pipx_metadata.json", ".local/state/x"),
    ),
    Layout(
        "uv",
        {
            ".local/bin/python3.99: ~/.local/share/uv/python/cpython-3.99/bin/python3.99": "",
            ".local/share/uv/python/cpython-3.99: cpython-3.99.1": "",
            ".local/share/uv/python/cpython-3.99.1/bin/python3.99": echo("uv python"),
            ".local/bin/ruff: ~/.local/share/uv/tools/ruff/bin/ruff": "",
            ".local/share/uv/tools/ruff/bin/ruff": echo("ruff"),
        },
        (".local/bin",),
        "python3.99; ruff",
        "uv python\nruff\n",
        hidden=(".local/share/uv/credentials/x", ".local/share/uv/tools/ruff/uv-receipt.toml", ".local/bin/notes"),
    ),
    Layout(
        "fnm",
        {
            ".local/share/fnm/node-versions/v99/installation/bin/node": echo("node 99"),
            "run/multishell: ~/.local/share/fnm/node-versions/v99/installation": "",
        },
        ("run/multishell/bin",),
        "node",
        "node 99\n",
        hidden=("run/other", ".local/share/fnm/aliases/x"),
    ),
    Layout(
        "conda",
        {
            "miniconda3/bin/python": echo("conda python"),
            "miniconda3/lib/x": "",
            "miniconda3/conda-meta/history": "",
            "miniconda3/condabin/conda": "#!~/miniconda3/bin/python\n",
        },
        ("miniconda3/condabin", "miniconda3/bin"),
        "python; conda",
        "conda python\nconda python\n",
        hidden=("miniconda3/.condarc", "miniconda3/envs/x/pip.conf"),
    ),
    Layout(
        "scripts of one's own",
        {
            "bin/hello": echo("hello"),
            "bin/linked: ~/apps/current/bin/app": "",
            "apps/current: v1": "",
            "apps/v1/bin/app": '#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/../share/word"\n',
            "apps/v1/share/word": "app\n",
        },
        ("bin", "no/such/folder"),
        "hello; linked",
        "hello\napp\n",
        hidden=("bin/token", "bin/.env", "apps/other", "notes"),
    ),
    Layout(
        "programs of npm",
        {
            ".npm-global/bin/tsc: ../lib/node_modules/ts/cli.js": "",
            ".npm-global/lib/node_modules/ts/cli.js": "#!/bin/sh\ncat ~/.npm-global/lib/node_modules/ts/word\n",
            ".npm-global/lib/node_modules/ts/word": "tsc\n",
        },
        (".npm-global/bin",),
        "tsc",
        "tsc\n",
        hidden=(".npm-global/etc/npmrc", ".npm-global/lib/node_modules/other/x"),
    ),
)
