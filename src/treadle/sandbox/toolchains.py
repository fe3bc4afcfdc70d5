"""The user's tools outside of the system: what commands see of them, read-only, and what stays hidden beside them.

Only the search path, the environment and known folders choose. A file or link of a workspace chooses nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from treadle.sandbox.base import Mount
from treadle.sandbox.caches import list_cached_workspaces
from treadle.sandbox.shown_paths import (
    SYSTEM_FOLDERS,
    choose_prefix,
    explain_refusal,
    find_credentials,
    identify_real_path,
    is_below,
    is_changed_by_others,
    is_inside,
    read_head,
    resolve_links,
)
from treadle.sandbox.tool_roots import (
    PREFIX_VARIABLES,
    READS_VERSIONS_FILE,
    TOOL_ROOTS,
    VARIABLES,
    VERSIONS_FILE,
    ToolRoot,
    find_prefixes,
)

_MAX_MOUNTS = 48
"""Each mount takes time. What is further back on the search path is left out."""

_MAX_HIDDEN = 12
"""A folder with more files that are no programs shows its programs one by one, or not at all."""

_MAX_PROGRAMS = 5000
"""How many programs of one folder are looked at."""

_MAX_VERSIONS_BYTES = 65536
_MAX_KEPT = 32
_LANGUAGES = {
    "C": ("cc", "gcc", "clang"),
    "C#": ("dotnet",),
    "Go": ("go",),
    "Java": ("javac",),
    "Node": ("node",),
    "PHP": ("php",),
    "Python": ("python3", "python"),
    "Ruby": ("ruby",),
    "Rust": ("cargo", "rustc"),
}
_NO_WORKSPACE = Path("/nonexistent")


class Toolchains(Struct, frozen=True):
    """What commands see of the user's tools.

    `identities` tell what is mounted from anything that takes its place. `links` lead to the mounts, by location and
    text. `masked` are files in the mounts that stay hidden. `path` is the search path. `home_files` are
    copied into the home of the command. `left_out` says which folders on the user's search path are not shown, and why.
    """

    mounts: tuple[Mount, ...] = ()
    identities: tuple[tuple[int, int], ...] = ()
    links: tuple[tuple[Path, str], ...] = ()
    masked: tuple[Path, ...] = ()
    path: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    home_files: Mapping[str, bytes] = {}
    left_out: tuple[Mount, ...] = ()

    def find_program(self, name: str, path: Iterable[str] = (), folders: Iterable[Path] = ()) -> Path | None:
        """Find a program as a command finds it. `path` is searched after the user's own; `folders` are shown too."""
        shown = (*SYSTEM_FOLDERS, Path("/etc"), *(mount.path for mount in self.mounts), *folders)
        for file in (Path(entry, name) for entry in (*self.path, *path)):
            if file not in self.masked and file.is_file() and os.access(file, os.X_OK):
                if is_below(Path(os.path.realpath(file)), shown):
                    return file
        return None


_Marks = tuple[tuple[str, tuple[int, int, int] | None], ...]
_kept: dict[tuple[object, ...], tuple[Toolchains, _Marks]] = {}


def find_toolchains(workspace: Path = _NO_WORKSPACE) -> Toolchains:
    """Find the tools that commands in a workspace see. It is kept until the environment or a folder changes."""
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    others = list_cached_workspaces()
    key = (workspace, others, tuple(environment.items()))
    if (kept := _kept.get(key)) and all(_read_mark(path) == mark for path, mark in kept[1]):
        return kept[0]
    search = _Search(environment, workspace, others)
    found = search.run()
    if len(_kept) >= _MAX_KEPT:
        _kept.clear()
    _kept[key] = found, tuple((path, _read_mark(path)) for path in sorted(search.watched))
    return found


def list_languages() -> tuple[str, ...]:
    """List the languages whose compiler or interpreter commands find, in the order of the alphabet."""
    tools = find_toolchains()
    return tuple(name for name, programs in _LANGUAGES.items() if any(map(tools.find_program, programs)))


def _read_mark(path: str) -> tuple[int, int, int] | None:
    """Read what changes when a folder is exchanged, gains or loses a name, or gets other rights."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


class _Search:
    """One search for tools. `watched` are the paths whose change would give another result."""

    def __init__(self, environment: Mapping[str, str], workspace: Path, others: tuple[Path, ...]) -> None:
        self._environment, self._workspace = environment, workspace
        # What an agent could have changed: links there are not followed.
        self._untrusted = frozenset((workspace, *others))
        self._mounts: dict[Path, Mount] = {}
        self._links: dict[Path, str] = {}
        self._masked: dict[Path, None] = {}
        self._path: dict[str, None] = {}
        self._variables: dict[str, str] = {}
        self._home_files: dict[str, bytes] = {}
        self._left_out: dict[Path, Mount] = {}
        self._seen: set[Path] = set()
        self.watched: set[str] = set()

    def run(self) -> Toolchains:
        """Search all known places."""
        for root in TOOL_ROOTS:
            with suppress(OSError):  # somebody else's, which we may not read
                self._add_root(root)
        for variable, marker in PREFIX_VARIABLES.items():
            with suppress(OSError):
                self._add_installation(variable, marker)
        for entry in dict.fromkeys(self._environment.get("PATH", "").split(os.pathsep)):
            try:
                self._add_path_entry(entry)
            except OSError as error:
                self._leave_out(Path(entry), f"it cannot be read: {error.strerror}")
        return self.build()

    def build(self) -> Toolchains:
        """Put together what was found so far."""
        outer = sorted(path for path in self._mounts if not self._is_shown(path.parent))
        for path in outer[_MAX_MOUNTS:]:
            self._leave_out(path, "too many others are shown")
        identities = {path: found for path in outer[:_MAX_MOUNTS] if (found := identify_real_path(path)) is not None}
        shown = tuple(identities)
        there = (*shown, *SYSTEM_FOLDERS, Path("/etc"))
        # Nothing can be mounted on a link, and its target may be shown too.
        masked = {Path(os.path.realpath(path)) if path.is_symlink() else path for path in self._masked}
        return Toolchains(
            mounts=tuple(self._mounts[path] for path in shown),
            identities=tuple(identities.values()),
            links=tuple(sorted(link for link in self._links.items() if not is_below(link[0], there))),
            masked=tuple(sorted(path for path in masked if is_below(path.parent, shown))),
            path=tuple(self._path),
            variables=self._variables,
            home_files=self._home_files,
            left_out=tuple(self._left_out.values()),
        )

    def _add_root(self, root: ToolRoot) -> None:
        home = Path(self._environment.get("HOME") or Path.home())
        folder = root.find_folder(self._environment, home)
        if folder is None or not self._may_show(folder, is_known=True):
            return
        self.watched.add(str(folder))
        if not root.parts:
            self._show(folder, root.name)
        parts = [part for name in root.parts if os.path.exists(part := folder / name)]
        if root.is_whole:
            self._show(folder, root.name)
            names = set(os.listdir(folder)) - set(root.parts)
            self._masked.update(dict.fromkeys(folder / name for name in names))
        else:
            for part in parts:
                if part.name == "bin":
                    self._show_programs(part, root.name)
                else:
                    self._show(part, root.name)
        for prefix in find_prefixes(folder, root.prefixes):
            self._hide_credentials(prefix)
        if root.is_exported and (parts or not root.parts):
            self._variables[root.variable] = str(folder)
        versions = resolve_links(home / VERSIONS_FILE, self._untrusted) if root.name in READS_VERSIONS_FILE else None
        if versions is not None:
            self.watched.add(str(versions.real))
            self._home_files[VERSIONS_FILE] = read_head(versions.real, _MAX_VERSIONS_BYTES)

    def _add_installation(self, variable: str, marker: str) -> None:
        """Show the installation that a variable names. Its `marker` tells it from any other folder."""
        value = self._environment.get(variable, "")
        if not os.path.isabs(value) or not os.path.exists(os.path.join(value, marker)):
            return
        folder = Path(value)
        if folder.is_relative_to(self._workspace):
            self._variables[variable] = value
        elif self._may_show(folder, is_known=True):
            self._variables[variable] = value
            self._show_prefix(folder, variable)
            self.add_program(folder / "bin/python", variable)
            settings = folder / "pyvenv.cfg"
            # A virtual environment of copies has no link to the Python that it belongs to.
            if settings.is_file() and not is_inside(Path(os.path.realpath(settings)), self._untrusted):
                lines = (line.partition("=") for line in settings.read_text(errors="replace").splitlines())
                for home in (value.strip() for name, _, value in lines if name.strip() == "home"):
                    self.add_program(Path(home, "python3"), variable)

    def _add_path_entry(self, entry: str) -> None:
        path = Path(entry)
        if not path.is_absolute():
            return
        if path.is_relative_to(self._workspace):  # the command sees it, and nothing in it chooses a mount
            self._path[entry] = None
            return
        self.watched.add(entry)
        found = resolve_links(path, self._untrusted)
        if found is None or not found.real.is_dir():
            if os.path.lexists(path):
                self._leave_out(path, "it is no folder, or a link in a workspace leads to it")
            return
        real, is_system = found.real, is_below(found.real, SYSTEM_FOLDERS)
        if not is_system and not real.is_relative_to(self._workspace):
            if is_changed_by_others(real):
                if real.stat().st_mode & 0o002:
                    self._leave_out(path, "everybody can change it")
                    return
                prefix = real / "x"
            else:
                prefix = choose_prefix(real / "x")
            if self._is_shown(real):
                pass
            elif prefix != real / "x":
                self._show_prefix(prefix, "PATH")
            elif not self._may_show(real) or not self._show_programs(real, "PATH"):
                return
        self._links.update(found.links)
        self._path[entry] = None
        if not is_changed_by_others(real) and not is_inside(real, self._untrusted):
            self._follow_programs(real, is_system=is_system)

    def _follow_programs(self, folder: Path, *, is_system: bool) -> None:
        """Show what the links in a folder lead to, and the interpreters of its scripts."""
        if folder in self._seen:
            return
        self._seen.add(folder)
        with os.scandir(folder) as entries:
            for entry, _ in zip(entries, range(_MAX_PROGRAMS), strict=False):
                if entry.is_symlink():
                    if not os.path.realpath(entry.path).startswith("/usr/"):
                        self.add_program(Path(entry.path), f"{entry.name} on PATH")
                elif not is_system and (interpreter := _read_interpreter(entry.path)):
                    self.add_program(Path(interpreter), f"the interpreter of {entry.name}")

    def add_program(self, program: Path, why: str) -> None:
        """Show a program, where its links lead, and its interpreter."""
        found = resolve_links(program, self._untrusted) if program not in self._seen else None
        self._seen.add(program)
        if found is None or is_below(found.real, (*SYSTEM_FOLDERS, self._workspace)):
            return
        real = found.real
        if not real.is_file() or not os.access(real, os.X_OK):
            return
        if not self._is_shown(real):
            prefix = choose_prefix(real)
            if not self._may_show(real.parent if prefix == real else prefix):
                return
            if prefix == real:
                self._mounts[real] = Mount(real, why)
            else:
                self._show_prefix(prefix, why)
        self._links.update(found.links)
        if interpreter := _read_interpreter(str(real)):
            self.add_program(Path(interpreter), f"the interpreter of {real.name}")

    def _show(self, path: Path, why: str) -> None:
        found = resolve_links(path, self._untrusted)
        if found is not None and self._may_show(found.real, is_known=True):
            self._links.update(found.links)
            self.watched.add(str(found.real))
            if not is_below(found.real, SYSTEM_FOLDERS):
                self._mounts.setdefault(found.real, Mount(found.real, why))

    def _show_prefix(self, prefix: Path, why: str) -> None:
        self._show(prefix, why)
        for one in (prefix, *find_prefixes(prefix, ("envs/*",))):
            self._hide_credentials(one)

    def _show_programs(self, folder: Path, why: str) -> bool:
        """Show the programs of a folder, and nothing else in it, with as few mounts as possible."""
        programs, links, others = list[Path](), list[Path](), list[Path]()
        with os.scandir(folder) as entries:
            for entry in entries:
                is_program = entry.is_file(follow_symlinks=False) and os.access(entry.path, os.X_OK)
                kind = links if entry.is_symlink() else programs if is_program else others
                kind.append(Path(entry.path))
        self.watched.add(str(folder))
        if len(others) <= min(len(programs) + len(links), _MAX_HIDDEN):
            self._show(folder, why)
            self._masked.update(dict.fromkeys(others))
        elif len(programs) <= _MAX_HIDDEN:
            self._mounts.update({path: Mount(path, why) for path in programs})
            self._links.update({link: os.readlink(link) for link in links})
        else:
            self._leave_out(folder, f"it has {len(others)} files that are no programs")
            return False
        return True

    def _hide_credentials(self, prefix: Path) -> None:
        self.watched.update(str(prefix / place) for place in ("", "etc", "conf"))
        self._masked.update(dict.fromkeys(find_credentials(prefix)))

    def _may_show(self, folder: Path, *, is_known: bool = False) -> bool:
        if folder.is_relative_to(self._workspace) or Path(os.path.realpath(folder)).is_relative_to(self._workspace):
            return False
        if why := explain_refusal(folder, is_known=is_known):
            self._leave_out(folder, why)
        return not why

    def _leave_out(self, path: Path, why: str) -> None:
        self._left_out.setdefault(path, Mount(path, why))

    def _is_shown(self, path: Path) -> bool:
        return path in self._mounts or any(parent in self._mounts for parent in path.parents)


def _read_interpreter(script: str) -> str:
    """Read the interpreter that a script names, unless the system has it."""
    first = read_head(script, 500).partition(b"\n")[0]
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    return words[0] if words and words[0].startswith("/") and not words[0].startswith(("/usr/", "/bin/")) else ""


def find_program_files(program: Path) -> tuple[Path, ...]:
    """Find what a program outside of the system needs to run: where it is installed, and its interpreter.

    Of PREFIX/bin/x that is the prefix, or the file itself when the prefix could hold secrets. Links are followed.
    """
    search = _Search({}, _NO_WORKSPACE, list_cached_workspaces())
    search.add_program(Path(os.path.abspath(program)), "")
    found = search.build()
    return (*(mount.path for mount in found.mounts), *(location for location, _ in found.links))


def find_interpreter_folders() -> tuple[Path, ...]:
    """Find where our own Python is, unless the system has it or secrets may be beside it."""
    folders = sorted({Path(os.path.realpath(prefix)) for prefix in (sys.base_prefix, sys.prefix)})
    return tuple(
        folder
        for folder in folders
        if not is_below(folder, SYSTEM_FOLDERS) and os.access(folder, os.R_OK | os.X_OK) and not explain_refusal(folder)
    )
