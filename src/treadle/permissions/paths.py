"""Which files matter for safety: those that hold secrets, are never written, instruct programs or store our data.

Pure, but for `list_own_folders`, which reads the environment.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

PROTECTED = (".git", ".treadle")
"""Folders in a workspace that no tool and no command may write, whether they exist or not."""

OPENED_WITH_FOLDER = (
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".devcontainer.json",
    ".envrc",
    ".gemini",
    ".idea",
    ".mcp.json",
    ".opencode",
    ".vscode",
    ".zed",
)
"""What runs, or instructs an agent, when somebody opens a folder with an editor, an agent or a shell.

File tools ask for each change. A command cannot write these in its workspace, whether they exist or not.
"""

RUN_BY_GIT = (".husky",)
"""Folders of hooks. A command cannot write those that exist: git runs them only where it was told to."""

GUARDED_NAMES = (*PROTECTED, *OPENED_WITH_FOLDER)
"""What a command cannot write in its workspace, whether it exists or not."""

RUN_OUTSIDE = (*GUARDED_NAMES, *RUN_BY_GIT)
"""All names whose files programs outside the sandbox run or obey."""

LOG_FILE_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""The files of an open SQLite log. The second always exists while the log is open."""

LOG_HEAD_BYTES = 64 * 1024
"""How many bytes of a log and of its `-wal` are needed to recognise it: a new log has its mark only in the `-wal`."""

_LOG_MARK = re.compile(rb"SQLite format 3\0.{52}trdl", re.DOTALL)
_SECRET_FILES = (".netrc", ".pgpass", ".pypirc", ".git-credentials", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
_SECRET_FOLDERS = (".ssh", ".aws", ".azure", ".gcloud", ".gnupg", ".kube", ".docker", ".password-store")
_FIRST_LETTERS = frozenset(".iI")
"""How the names of secret files begin."""

_SECRET_EXAMPLES = (
    ".env",
    ".envrc",
    ".env.local",
    ".ssh",
    ".aws",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    "id_rsa",
    "id_ed25519",
)
_HARMLESS_ENV = ("example", "sample", "template", "dist", "defaults")
_SECRET_IN_COMMAND = re.compile(
    rf"(^|/)(\.env(rc)?(\.(?!{'|'.join(_HARMLESS_ENV)})[^/]*)?"
    rf"|({'|'.join(map(re.escape, _SECRET_FOLDERS))})(/.*)?|{'|'.join(map(re.escape, _SECRET_FILES))}"
    r"|etc/g?shadow|proc/[^/]+/environ)$",
    re.IGNORECASE,
)
_INSTRUCTION_FILES = (
    "agents.md",
    "agents.override.md",
    "claude.md",
    "claude.local.md",
    "gemini.md",
    "skill.md",
    "mcp.json",
    "opencode.json",
    "opencode.jsonc",
    ".cursorrules",
    ".windsurfrules",
    "copilot-instructions.md",
    ".pre-commit-config.yaml",
    ".gitlab-ci.yml",
)
_INSTRUCTION_FOLDERS = (".agents", ".continue", ".github", ".kiro", ".windsurf", *RUN_BY_GIT)


def fold_name(name: str) -> str:
    """Fold a name as a file system that ignores case does before it compares names."""
    return unicodedata.normalize("NFKC", name).casefold()


def split_path(path: str) -> list[str]:
    """Split a path into its names, folded."""
    return [fold_name(part) for part in path.split("/") if part not in ("", ".")]


def normalize_path(path: str) -> str:
    """Write a path in one form: `//dev/stdin` and `/dev/./stdin` are `/dev/stdin`."""
    normal = posixpath.normpath(path)
    return normal[1:] if normal.startswith("//") else normal


def is_env_file(name: str) -> bool:
    """Whether a file of this name holds secrets by custom: `.env`, `.envrc`, `.env.local`, but not `.env.example`."""
    name = name.casefold()
    if name.startswith(".env."):
        return name.rpartition(".")[2] not in _HARMLESS_ENV
    return name in (".env", ".envrc")


def is_secret_name(name: str) -> bool:
    """Whether a file of this name may hold keys, in whichever folder it is."""
    if name[:1] not in _FIRST_LETTERS and name.isascii():  # nearly all names, and snapshots ask about very many
        return False
    name = fold_name(name)
    return name in _SECRET_FILES or is_env_file(name)


def is_secret_folder(name: str) -> bool:
    """Whether every file in a folder of this name may hold keys."""
    return fold_name(name) in _SECRET_FOLDERS


def is_secret_path(path: str, granted: Sequence[str] = ()) -> bool:
    """Whether a file is hidden: it may hold keys, and no path or glob in `granted` names it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not any(map(is_secret_folder, parts)) and not any(map(is_secret_name, parts[-1:])):
        return False
    return not any(fnmatchcase(path, pattern) for pattern in granted)


def names_secret(text: str) -> bool:
    """Whether a word of a command is the path of a file that may hold keys or passwords."""
    return _SECRET_IN_COMMAND.search(text) is not None


def may_match_secret(name: str) -> bool:
    """Whether a name with wildcards may match a file that holds keys."""
    if not re.search(r"[*?\[]", name) or not re.search(r"[\w.]", name):
        return False
    # A shell does not let a wildcard match the first dot of a name.
    examples = (example for example in _SECRET_EXAMPLES if example[0] == name[0] or example[0] != ".")
    return any(fnmatchcase(example, name) for example in examples)


def is_protected_path(path: str) -> bool:
    """Whether no tool ever writes this path, because its files run at the user's next command."""
    return any(part in PROTECTED for part in split_path(path))


def is_instruction_path(path: str) -> bool:
    """Whether a file tells an agent, an editor or a build service what to do, so that a person must see its changes."""
    parts = split_path(posixpath.normpath(path))
    if any(part in OPENED_WITH_FOLDER for part in parts):
        return True
    return bool(parts) and (parts[-1] in _INSTRUCTION_FILES or any(part in _INSTRUCTION_FOLDERS for part in parts[:-1]))


def is_log_file(head: bytes) -> bool:
    """Whether a file that begins so is a log of sessions. Who can write it can approve calls in a person's name."""
    return _LOG_MARK.search(head) is not None


def explain_write_risk(path: str, roots: Sequence[str] = ()) -> str:
    """Say why a person must see that a path is written, or nothing. `roots` are all names of the workspace."""
    normal = posixpath.normpath(path)
    is_inside = any(f"{normal}/".startswith(f"{root.rstrip('/')}/") for root in roots)
    if normal.split("/")[0] == ".." or (roots and normal.startswith("/") and not is_inside):
        return f"{path} is outside of the workspace"
    return f"{path} tells agents, editors or build services what to do" if is_instruction_path(path) else ""


def find_data_folder() -> Path:
    """Find the folder of the user's log, rules, tokens, weights and old file contents."""
    if chosen := os.environ.get("TREADLE_DATA_DIR"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "treadle"


def find_config_folder() -> Path:
    """Find the folder of the user's config.toml, agents and skills."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "treadle"


def find_worktree_folder() -> Path:
    """Find the folder in which worktrees of sessions are created. Commands may write in these, so it is another one."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "treadle" / "worktrees"


def list_own_folders() -> tuple[Path, ...]:
    """List the folders of this user's rules, tokens, logs and settings. Who writes there can allow more."""
    chosen = os.environ.get("TREADLE_CONFIG", "")
    folders = (find_data_folder(), find_config_folder(), *([Path(chosen)] if chosen else []))
    return tuple(Path(os.path.realpath(folder.expanduser())) for folder in folders)
