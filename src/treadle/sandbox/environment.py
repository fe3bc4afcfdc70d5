"""The variables that a command gets: a short list of names, so that none of our secrets is among them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from treadle.permissions.paths import list_own_folders
from treadle.sandbox.base import Job

_PASSED_ON = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "TZ")
_USER_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "TMPDIR", "XDG_RUNTIME_DIR")
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_SECRET_FOLDERS = {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".password-store"}


_GIT_IDENTITY = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL")
_GIT_WITHOUT_TERMINAL = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "PAGER": "cat",
    # Git takes this as "no editor": it keeps the message that it prepared, and refuses an empty one.
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": ":",
}


def build_sandbox_environment(job: Job, workspace: Path, home: str) -> dict[str, str]:
    """Build the variables of a sandboxed command.

    Its search path is the user's own, as far as the sandbox shows those folders, and then the system's.
    """
    visible = (Path("/usr"), workspace, *job.read_only, *find_interpreter_folders())
    own = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    usable = [
        entry for entry in own if entry not in _SYSTEM_PATH and any(Path(entry).is_relative_to(top) for top in visible)
    ]
    return {
        "LANG": "C.UTF-8",
        **_select_variables(_PASSED_ON + _GIT_IDENTITY),
        **_GIT_WITHOUT_TERMINAL,
        "PATH": os.pathsep.join([*dict.fromkeys(usable), *_SYSTEM_PATH]),
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",
        **job.env,
    }


def build_host_environment(job: Job) -> dict[str, str]:
    """Build the variables of a command on the host: the user's own folders, and none of their secrets."""
    return {"PATH": os.pathsep.join(_SYSTEM_PATH), **_select_variables(_PASSED_ON + _USER_VARIABLES), **job.env}


def find_interpreter_folders() -> tuple[Path, ...]:
    """Find where our own Python is, unless the system has it or secrets may be beside it."""
    folders = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve()}
    home = Path.home().resolve()
    return tuple(
        sorted(
            folder
            for folder in folders
            if not folder.is_relative_to("/usr")
            and os.access(folder, os.R_OK | os.X_OK)
            and not home.is_relative_to(folder)
            and not _SECRET_FOLDERS.intersection(folder.parts)
        )
    )


def find_program_files(program: Path) -> tuple[Path, ...]:
    """Find what a program outside of the system needs to run: where it is installed, and its interpreter.

    Of PREFIX/bin/x that is the prefix, or the file itself when the prefix could hold secrets. Links are followed.
    """
    found, steps = dict[Path, Path](), [program]
    while steps:
        path = Path(os.path.abspath(steps.pop()))
        if path in found or not path.exists() or any(path.is_relative_to(top) for top in _SYSTEM_FOLDERS):
            continue
        found[path] = choose_visible(path, path.parent.parent if path.parent.name == "bin" else path)
        steps.append(path.parent / path.readlink() if path.is_symlink() else path.resolve())
        with suppress(OSError), path.open("rb") as file:
            if file.read(2) == b"#!":  # it names its interpreter, maybe after `env`
                words = file.readline(500).decode(errors="replace").split()[:2]
                steps += [Path(interpreter) for word in words if (interpreter := shutil.which(word)) is not None]
    return tuple(dict.fromkeys(found.values()))


def choose_visible(file: Path, folder: Path) -> Path:
    """Choose the folder of a file if it can be shown: not the home, what is above or hidden in it, or secrets."""
    home, real = Path.home().resolve(), folder.resolve()
    is_hidden = real.parent == home and real.name.startswith(".")
    holds_ours = any(own.is_relative_to(real) or real.is_relative_to(own) for own in list_own_folders())
    is_secret = bool(_SECRET_FOLDERS.intersection(real.parts))
    return file if home.is_relative_to(real) or is_hidden or holds_ours or is_secret else folder


def _select_variables(names: tuple[str, ...]) -> Mapping[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}
