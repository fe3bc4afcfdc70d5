"""The settings of git that a command gets: values of an allow-list, read outside of the sandbox.

No setting that names a program, a file or a secret is among them. `git config --list` runs no program.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from treadle.git.remote_address import remove_account
from treadle.git.repository import Repository

_GIT = ("/usr/bin/git", "/usr/local/bin/git", "/bin/git")
"""Where git is looked for. Not by PATH: that may name a folder of a workspace."""

NO_REPOSITORY = Path("/dev/null")
"""Stands for no repository: only the settings of the user and the system hold there."""

_TIMEOUT = 10.0
_MAX_AGE = 60.0
_MAX_REMEMBERED = 64
_MAX_CONDITIONS = 32
_MAX_EXCLUDES = 64 * 1024
_USER_VARIABLES = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
_KNOWN_EXTENSIONS = {"objectformat", "partialclone", "worktreeconfig", "noop", "preciousobjects", "relativeworktrees"}

_KEPT = re.compile(
    r"core\.(filemode|ignorecase|symlinks|precomposeunicode|autocrlf|eol|safecrlf|quotepath|logallrefupdates|abbrev"
    r"|whitespace|commentchar|sparsecheckout)|extensions\.(objectformat|partialclone)|(user|author|committer)\.(name|email)"
    r"|init\.defaultbranch|i18n\.(commitencoding|logoutputencoding)"
    r"|remote\..+\.(url|pushurl|fetch|promisor|partialclonefilter|tagopt)"
    r"|branch\.(.+\.(remote|merge|rebase|pushremote)|autosetupmerge|autosetuprebase|sort)"
    r"|submodule\.(.+\.(url|active|path|branch|ignore)|recurse|active)"
    r"|pull\.(rebase|ff)|push\.default|merge\.(conflictstyle|ff|renames|renamelimit|directoryrenames)"
    r"|rebase\.(autosquash|autostash|updaterefs|abbreviatecommands|missingcommitscheck|stat|rebasemerges)"
    r"|diff\.(algorithm|renames|renamelimit|context|noprefix|mnemonicprefix|ignoresubmodules|submodule|colormoved)"
    r"|status\.\w+|log\.(date|decorate|follow|abbrevcommit)|tag\.sort|rerere\.(enabled|autoupdate)|commit\.cleanup"
)
_URL = re.compile(r"(remote|submodule)\..+\.(push)?url")
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t"})
_FORCED = """[gc]
\tauto = 0
[maintenance]
\tauto = false
[commit]
\tgpgSign = false
[tag]
\tgpgSign = false
[push]
\tgpgSign = false
[core]
\tsparseCheckoutCone = false
[sparse]
\texpectFilesOutsideOfPatterns = true
"""
"""Keys stay outside. Hidden files carry the mark of sparse checkouts; only patterns that are no cone leave them out."""

_FILTER = re.compile(r"filter\.(.+)\.(clean|process)")
_NO_FILTER = """\tclean = "f=$(mktemp); cat >$f; git cat-file -e $(git hash-object --no-filters $f) && cat $f || \\
{ echo 'The filter of this file does not run in the sandbox. Ask the user to stage it.' >&2; false; }"
\tsmudge = cat
\trequired = true
"""
"""What a checkout inside has written is stored already, so git may look at it. No other content may be staged."""


class Setting(Struct, frozen=True):
    """One value. `is_own` says that the repository's own file has it, otherwise the user's or the system's."""

    key: str
    value: str
    is_own: bool


class NamedPath(Struct, frozen=True):
    """A file of settings or a folder of hooks. A relative one begins at the top of the work tree."""

    path: str
    is_folder: bool


class SettingsUnreadable(Exception):
    """Git itself cannot read the settings of a repository."""


class _Remembered(Struct, frozen=True):
    settings: tuple[Setting, ...]
    named: tuple[NamedPath, ...]
    files: tuple[str, ...]
    versions: tuple[tuple[int, ...], ...]
    until: float


_memory: OrderedDict[str, _Remembered] = OrderedDict()
_memory_lock = threading.Lock()


def read_settings(git_dir: Path, common_dir: Path, environment: Mapping[str, str] = os.environ) -> tuple[Setting, ...]:
    """Read the settings that hold in a repository, in the order in which git applies them.

    `environment` has the variables that name the user's own files.
    They are remembered until one of their files changes, and for a minute at most: a file that is included may be new.
    Raises `SettingsUnreadable`. Where git is not installed, there are none.
    """
    return _read(git_dir, common_dir, environment).settings


def read_named_paths(git_dir: Path, common_dir: Path) -> tuple[NamedPath, ...]:
    """Read which files of settings may hold in a repository, missing ones too, and which folders have its hooks.

    Every condition of an include counts as met: a command can meet some, by a branch or by a new repository.
    """
    return _read(git_dir, common_dir).named


def _read(git_dir: Path, common_dir: Path, environment: Mapping[str, str] = os.environ) -> _Remembered:
    variables = {name: environment[name] for name in _USER_VARIABLES if name in environment}
    key = repr((str(git_dir), variables))
    with _memory_lock:
        known = _memory.get(key)
    if known is not None and time.monotonic() < known.until and known.versions == _read_versions(known.files):
        return known
    own_files = {str(common_dir / "config"), str(common_dir / "config.worktree"), str(git_dir / "config.worktree")}
    home = Path(variables.get("HOME", "/"))
    usual = (home / ".gitconfig", Path(variables.get("XDG_CONFIG_HOME") or home / ".config", "git/config"))
    files = {*own_files, *map(str, usual), str(git_dir / "HEAD"), "/etc/gitconfig"}
    versions = _read_versions(tuple(sorted(files)))
    settings: list[Setting] = []
    named: dict[NamedPath, None] = {}
    for scope, origin, text in _list_settings(["--includes"], {**variables, "GIT_DIR": str(git_dir)}):
        file = origin.removeprefix("file:")
        is_own = scope in ("local", "worktree")
        named |= dict.fromkeys(_list_named(file, text))
        # A file that the repository includes may be any file of the user.
        if is_own and file not in own_files:
            continue
        name, has_value, value = text.partition("\n")
        settings.append(Setting(name, value if has_value else "true", is_own))
        if file not in files:
            files.add(file)
            versions = ()
    if more := _follow_conditions(named, files, variables):
        files |= more
        versions = ()
    watched = tuple(sorted(files))
    versions = versions or _read_versions(watched)
    found = _Remembered(tuple(settings), tuple(named), watched, versions, time.monotonic() + _MAX_AGE)
    with _memory_lock:
        _memory[key] = found
        _memory.move_to_end(key)
        while len(_memory) > _MAX_REMEMBERED:
            _memory.popitem(last=False)
    return found


def _follow_conditions(named: dict[NamedPath, None], files: set[str], variables: dict[str, str]) -> set[str]:
    """Add what is named by files whose condition is not met now, and return these files."""
    found: set[str] = set()
    while len(found) < _MAX_CONDITIONS:
        waiting = [one.path for one in named if not one.is_folder and one.path not in files | found]
        path = next(filter(os.path.isfile, waiting), None)
        if path is None:
            break
        found.add(path)
        with suppress(SettingsUnreadable):  # then git does nothing where it is included
            for _, origin, text in _list_settings(["--file", path], {**variables, "GIT_DIR": str(NO_REPOSITORY)}):
                named |= dict.fromkeys(_list_named(origin.removeprefix("file:"), text))
    return found


def _list_named(file: str, text: str) -> Iterator[NamedPath]:
    """List the file that a setting is in, and what it names itself."""
    name, _, value = text.partition("\n")
    yield NamedPath(file, is_folder=False)
    if value and name == "core.hookspath":
        yield NamedPath(os.path.expanduser(value), is_folder=True)
    elif value and (name == "include.path" or (name.startswith("includeif.") and name.endswith(".path"))):
        yield NamedPath(os.path.join(os.path.dirname(file), os.path.expanduser(value)), is_folder=False)


def _read_versions(files: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    versions: list[tuple[int, ...]] = []
    for file in files:
        try:
            found = os.stat(file)
            versions.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except OSError:
            versions.append(())
    return tuple(versions)


def _list_settings(options: Sequence[str], variables: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return scope, file and text of each setting."""
    program = next((path for path in _GIT if os.access(path, os.X_OK)), None)
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "--no-pager", "config", "--list", "-z", "--show-scope", "--show-origin", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**variables, "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd="/",
            timeout=_TIMEOUT,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsUnreadable(f"git cannot read its settings ({error}).") from error
    if done.returncode != 0:
        raise SettingsUnreadable("git cannot read its settings, or does not know its format.")
    words = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    return list(zip(words[0::3], words[1::3], words[2::3], strict=False))


def find_setting(settings: Iterable[Setting], key: str, *, is_own: bool = False) -> str | None:
    """Return the last value of a key, or None. With `is_own` only the repository's own file counts."""
    found = [one.value for one in settings if one.key == key and (one.is_own or not is_own)]
    return found[-1] if found else None


def list_unknown_extensions(settings: Iterable[Setting]) -> list[str]:
    """List the extensions of a repository's format that we cannot copy."""
    keys = [one.key for one in settings if one.is_own and one.key.startswith("extensions.")]
    return [key for key in keys if key.removeprefix("extensions.") not in _KNOWN_EXTENSIONS]


def build_user_config() -> str:
    """Build the text of the settings that hold in every repository of the sandbox, new ones too."""
    try:
        settings = read_settings(NO_REPOSITORY, NO_REPOSITORY)
    except SettingsUnreadable:
        settings = ()
    kept = [(one.key, one.value) for one in settings if _KEPT.fullmatch(one.key) and not _URL.fullmatch(one.key)]
    # A workspace may belong to another user. Nothing that git runs inside gets out.
    return _render([*kept, ("safe.directory", "*")]) + _FORCED + _refuse_filters(settings)


def build_private_config(
    settings: Sequence[Setting], repository: Repository, workspace: Path, *, names_work_tree: bool
) -> str:
    """Build the text of a private `.git/config`. `names_work_tree` is for a git dir that is elsewhere."""
    kept = [
        (one.key, remove_account(one.value) if _URL.fullmatch(one.key) else one.value)
        for one in settings
        if _KEPT.fullmatch(one.key)
    ]
    has_extensions = any(key.startswith("extensions.") for key, _ in kept)
    core = [("core.repositoryformatversion", "1" if has_extensions else "0"), ("core.bare", "false")]
    if names_work_tree:
        core.append(("core.worktree", str(repository.work_tree)))
    hooks = find_setting(settings, "core.hookspath")
    if hooks and Path(os.path.normpath(repository.work_tree / hooks)).is_relative_to(workspace):
        core.append(("core.hookspath", hooks))
    if os.getuid() == 0:
        # Files of root have another owner inside, so git would read each file again to see that it is the same.
        core.append(("core.checkstat", "minimal"))
    return _render([*core, *kept]) + _FORCED + _refuse_filters(settings)


def list_filters(settings: Iterable[Setting]) -> list[str]:
    """List the filters that the settings have, which change the content of a file when it is staged."""
    return list(dict.fromkeys(match[1] for one in settings if (match := _FILTER.fullmatch(one.key))))


def _refuse_filters(settings: Iterable[Setting]) -> str:
    """Have git refuse to stage files for which the user has a filter, rather than store their content as it is."""
    names = (name for name in list_filters(settings) if "\n" not in name)
    return "".join(f'[filter "{name.translate(_ESCAPED)}"]\n{_NO_FILTER}' for name in names)


def _render(values: Iterable[tuple[str, str]]) -> str:
    lines: list[str] = []
    section = ""
    for key, value in values:
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", key + value):
            continue
        head, name = key.rpartition(".")[::2]
        if head != section:
            section = head
            place, _, part = head.partition(".")
            lines.append(f'[{place} "{part.translate(_ESCAPED)}"]\n' if part else f"[{place}]\n")
        lines.append(f'\t{name} = "{value.translate(_ESCAPED)}"\n')
    return "".join(lines)


def read_excludes(settings: Sequence[Setting]) -> str:
    """Read the user's own list of ignored files, so that `git status` shows the same inside."""
    chosen = find_setting([one for one in settings if not one.is_own], "core.excludesfile")
    home = Path(os.environ.get("HOME", "/"))
    usual = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "git/ignore")
    path = Path(chosen).expanduser() if chosen else usual
    try:
        descriptor = os.open(home / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        return file.read(_MAX_EXCLUDES).decode(errors="surrogateescape")
