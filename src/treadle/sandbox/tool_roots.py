"""Where version managers keep what they install, and which parts of it commands see. A table, and how to read it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct


class ToolRoot(Struct, frozen=True):
    """A folder of a version manager.

    It is named by `variable` or by its shims on PATH, or else it is the first of `places` that exists. `parts` are
    shown, all of it without them. `prefixes` are patterns of the installations in it. With `is_exported`, commands get
    the variable. With `is_whole` it is one mount with the rest hidden: that takes fewer mounts if there are many parts.
    """

    name: str
    variable: str
    places: tuple[str, ...]
    parts: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("*",)
    is_exported: bool = False
    is_whole: bool = False

    def find_folder(self, environment: Mapping[str, str], home: Path) -> Path | None:
        """Find the folder on this machine."""
        data = environment.get("XDG_DATA_HOME") or str(home / ".local/share")
        named = environment.get(self.variable) or self._find_on_path(environment)
        places = [named] if named else [place.replace("~", str(home)).replace("DATA", data) for place in self.places]
        return next((Path(place) for place in places if os.path.isabs(place) and os.path.isdir(place)), None)

    def _find_on_path(self, environment: Mapping[str, str]) -> str:
        entries = map(Path, environment.get("PATH", "").split(os.pathsep) if "shims" in self.parts else ())
        found = (
            one.parent for one in entries if one.name == "shims" and one.parent.name.removeprefix(".") == self.name
        )
        return str(next(found, ""))


_SHIM_PARTS = ("shims", "libexec", "version", "versions")
_SHIM_PREFIXES = ("versions/*", "versions/*/envs/*")
_WITH_SHIMS = (("pyenv", "PYENV_ROOT"), ("rbenv", "RBENV_ROOT"), ("nodenv", "NODENV_ROOT"), ("goenv", "GOENV_ROOT"))
"""Managers that are made alike: their shims are scripts that call them."""

TOOL_ROOTS = (
    *(ToolRoot(name, variable, (f"~/.{name}",), _SHIM_PARTS, _SHIM_PREFIXES, True) for name, variable in _WITH_SHIMS),
    ToolRoot("uv", "UV_PYTHON_INSTALL_DIR", ("DATA/uv/python",), is_exported=True),
    ToolRoot("uv", "UV_TOOL_DIR", ("DATA/uv/tools",)),
    ToolRoot("pipx", "PIPX_HOME", ("DATA/pipx", "~/.local/pipx"), ("venvs", "shared"), ("venvs/*", "shared")),
    ToolRoot("nvm", "NVM_DIR", ("~/.nvm", "~/.config/nvm"), ("versions",), ("versions/*/*",)),
    ToolRoot("fnm", "FNM_DIR", ("DATA/fnm", "~/.fnm"), ("node-versions",), ("node-versions/*/installation",)),
    ToolRoot(
        "volta",
        "VOLTA_HOME",
        ("~/.volta",),
        ("bin", "tools", "layout.v2", "layout.v3", "layout.v4"),
        ("tools/image/*/*",),
        is_exported=True,
    ),
    ToolRoot("asdf", "ASDF_DIR", ("~/.asdf",), ("bin", "lib", "libexec"), (), is_exported=True),
    ToolRoot(
        "asdf", "ASDF_DATA_DIR", ("~/.asdf",), ("shims", "installs", "plugins"), ("installs/*/*",), is_exported=True
    ),
    ToolRoot("mise", "MISE_DATA_DIR", ("DATA/mise",), ("shims", "installs"), ("installs/*/*",), is_exported=True),
    ToolRoot("cargo", "CARGO_HOME", ("~/.cargo",), ("bin",), ()),
    ToolRoot(
        "rustup",
        "RUSTUP_HOME",
        ("~/.rustup",),
        ("toolchains", "settings.toml", "update-hashes"),
        ("toolchains/*",),
        is_exported=True,
    ),
    ToolRoot("go", "GOPATH", ("~/go",), ("bin",), ()),
    ToolRoot("SDKMAN", "SDKMAN_DIR", ("~/.sdkman",), ("candidates",), ("candidates/*/*",)),
    ToolRoot(
        "Homebrew",
        "HOMEBREW_PREFIX",
        ("/home/linuxbrew/.linuxbrew", "~/.linuxbrew"),
        ("bin", "sbin", "lib", "opt", "Cellar", "share", "include", "etc"),
        ("",),
        is_whole=True,
    ),
    ToolRoot("nix", "NIX_STORE_DIR", ("/nix/store",), (), ()),
)
"""In the order in which they are looked for. What stands beside these parts is never shown for being beside them."""

VERSIONS_FILE = ".tool-versions"
READS_VERSIONS_FILE = ("asdf", "mise")
"""Managers that look for the user's choice of versions in the home. It holds names and numbers only."""

TOOL_NAMES = frozenset(root.name for root in TOOL_ROOTS)

PREFIX_VARIABLES = {
    "VIRTUAL_ENV": "pyvenv.cfg",
    "CONDA_PREFIX": "conda-meta",
    "GOROOT": "src/runtime",
    "JAVA_HOME": "bin/java",
}
"""Variables that name one installation, and what is in it. Commands get them when it is shown."""

VARIABLES = ("PATH", "HOME", "XDG_DATA_HOME", *PREFIX_VARIABLES, *(root.variable for root in TOOL_ROOTS))
"""All that choose what is shown."""


def find_prefixes(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Find the installations in a folder. Links are left out: they lead to others of them."""
    for pattern in patterns:
        found = [folder]
        for name in pattern.split("/") if pattern else ():
            folders = [path for one in found for path in ([one / name] if name != "*" else one.glob("*"))]
            found = sorted(path for path in folders if path.is_dir() and not path.is_symlink())
        yield from found
