"""The variables that a command is given: a short list by name, so that no secret of ours is ever among them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from treadle.sandbox.base import Job

_PASSED_ON = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "TZ")
_OF_THE_USER = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "TMPDIR", "XDG_RUNTIME_DIR")
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SECRET_FOLDERS = {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".password-store"}


def build_sandbox_environment(job: Job, home: str, seen: tuple[Path, ...]) -> dict[str, str]:
    """What a sandboxed command gets; `seen` are the folders whose programs it can see."""
    mine = _named(_PASSED_ON)
    return {
        "LANG": "C.UTF-8",
        **mine,
        "PATH": os.pathsep.join(_search_path(seen)),
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",
        **job.env,
    }


def build_host_environment(job: Job) -> dict[str, str]:
    """What a command on the host gets: the user's own places, and none of their secrets."""
    return {"PATH": os.pathsep.join(_SYSTEM_PATH), **_named(_PASSED_ON + _OF_THE_USER), **job.env}


def find_interpreter_folders() -> tuple[Path, ...]:
    """Where the Python that runs us lives, unless the system has it or secrets may lie beside it."""
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


def _search_path(seen: tuple[Path, ...]) -> list[str]:
    """The user's own search path as far as it can be seen inside, then the system's."""
    own = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    visible = [
        entry for entry in own if entry not in _SYSTEM_PATH and any(Path(entry).is_relative_to(top) for top in seen)
    ]
    return [*dict.fromkeys(visible), *_SYSTEM_PATH]


def _named(names: tuple[str, ...]) -> Mapping[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}
