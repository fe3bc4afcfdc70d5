"""What a path's names alone tell: which files hold secrets, which are never written, which instruct a program. Pure."""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase

from treadle.sandbox.base import PROTECTED, is_env_file

_SECRET_FILES = (
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
)
_FIRSTS = frozenset(".iI")
_SECRET_FOLDERS = (".ssh", ".aws", ".azure", ".gcloud", ".gnupg", ".kube", ".docker", ".password-store")
_INSTRUCTIONS = (
    "agents.md",
    "agents.override.md",
    "claude.md",
    "claude.local.md",
    "gemini.md",
    "skill.md",
    ".mcp.json",
    "mcp.json",
    ".cursorrules",
    ".windsurfrules",
    "copilot-instructions.md",
    ".pre-commit-config.yaml",
    ".gitlab-ci.yml",
)
_INSTRUCTION_FOLDERS = (
    ".claude",
    ".agents",
    ".cursor",
    ".vscode",
    ".idea",
    ".zed",
    ".github",
    ".husky",
    ".devcontainer",
)


def fold_name(name: str) -> str:
    """A name as a file system that ignores case would compare it."""
    return unicodedata.normalize("NFKC", name).casefold()


def split_path(path: str) -> list[str]:
    return [fold_name(part) for part in path.split("/") if part not in ("", ".")]


def is_secret_name(name: str) -> bool:
    """Whether a file of this name may hold keys, wherever it lies."""
    if name[:1] not in _FIRSTS and name.isascii():  # nearly all names, and snapshots ask about very many
        return False
    name = fold_name(name)
    return name in _SECRET_FILES or is_env_file(name)


def is_secret_folder(name: str) -> bool:
    """Whether all that lies in a folder of this name may be keys."""
    return fold_name(name) in _SECRET_FOLDERS


def is_secret_path(path: str, granted: Sequence[str] = ()) -> bool:
    """Whether a file is masked: it may hold keys, and nothing in `granted` (paths or globs) names it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not any(map(is_secret_folder, parts)) and not any(map(is_secret_name, parts[-1:])):
        return False
    return not any(fnmatchcase(path, pattern) for pattern in granted)


def is_protected_path(path: str) -> bool:
    """Whether a path lies in what no tool ever writes: what is there runs at the user's next command."""
    return any(part in PROTECTED for part in split_path(path))


def is_instruction_path(path: str) -> bool:
    """Whether a path tells an agent, an editor or a build service what to do, so that a person must see the change."""
    parts = split_path(posixpath.normpath(path))
    return bool(parts) and (parts[-1] in _INSTRUCTIONS or any(part in _INSTRUCTION_FOLDERS for part in parts[:-1]))


def explain_write_risk(path: str, roots: Sequence[str] = ()) -> str:
    """Why a person must see what is written there, or nothing; `roots` are the workspace, under all its names."""
    normal = posixpath.normpath(path)
    inside = any(f"{normal}/".startswith(f"{root.rstrip('/')}/") for root in roots)
    if normal.split("/")[0] == ".." or (roots and normal.startswith("/") and not inside):
        return f"{path} is outside of the workspace"
    return f"{path} tells agents, editors or build services what to do" if is_instruction_path(path) else ""
