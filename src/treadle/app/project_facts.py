"""What the files of a project say about it: its commands and its layout, as the text of an AGENTS.md.

It reads names and a few manifests. It runs nothing, follows no links, and the same files always give the same text.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from treadle.errors import BadInput
from treadle.knowledge.file_knowledge import AGENTS_FILE, INSTRUCTION_FILES, list_names, read_beneath, write_whole

MAX_FOLDERS = 30
MAX_FILES = 5000
USUAL_TASKS = ("setup", "install", "build", "dev", "start", "test", "check", "lint", "format", "fmt", "typecheck")
SKIPPED_FOLDERS = frozenset(("node_modules", "target", "dist", "build", "out", "vendor", "__pycache__", "venv"))

_TARGET = re.compile(r"^([A-Za-z][\w-]*)(?:[ \t][^:=\n]*)?:(?!=)", re.MULTILINE)
_PACKAGE_RUNNERS = {"pnpm-lock.yaml": "pnpm", "yarn.lock": "yarn", "bun.lock": "bun", "bun.lockb": "bun"}
_PYTHON_RUNNERS = {"uv.lock": "uv run ", "poetry.lock": "poetry run ", "pdm.lock": "pdm run "}
_PYTHON_TOOLS = {
    "pytest": ("test", "pytest"),
    "ruff": ("lint", "ruff check ."),
    "mypy": ("typecheck", "mypy ."),
    "pyright": ("typecheck", "pyright"),
    "basedpyright": ("typecheck", "basedpyright"),
}
_FIXED_COMMANDS: dict[str, tuple[tuple[str, str], ...]] = {
    "Cargo.toml": (("build", "cargo build"), ("test", "cargo test"), ("lint", "cargo clippy"), ("format", "cargo fmt")),
    "go.mod": (("build", "go build ./..."), ("test", "go test ./..."), ("lint", "go vet ./...")),
    "pom.xml": (("build", "mvn package"), ("test", "mvn test")),
    "gradlew": (("build", "./gradlew build"), ("test", "./gradlew test")),
    "CMakeLists.txt": (("build", "cmake -B build && cmake --build build"), ("test", "ctest --test-dir build")),
}


def list_instruction_files(folder: Path) -> list[str]:
    """List the files of a folder that hold instructions for agents. A link counts, whatever it leads to."""
    names = {*list_names(folder, (), "file"), *list_names(folder, (), "link")}
    return [name for name in INSTRUCTION_FILES if name in names]


def describe_project(folder: Path) -> str:
    """Describe a project for an AGENTS.md: its name, its commands and its layout."""
    files = list_names(folder, (), "file")
    pyproject, package = _read_toml(folder, "pyproject.toml"), _read_json(folder, "package.json")
    manifests = (_read_table(pyproject, "project"), package, _read_table(_read_toml(folder, "Cargo.toml"), "package"))
    name = next((str(one["name"]) for one in manifests if isinstance(one.get("name"), str)), folder.name)
    about = next((str(one["description"]) for one in manifests if isinstance(one.get("description"), str)), "")
    commands = list(list_commands(folder, files, pyproject, package))
    lines = [f"# {_clean(name, 80)}", ""]
    if about:
        lines += [_clean(about, 300), ""]
    lines += ["## Commands", ""]
    lines += [f"- {task}: `{command}`" for task, command in dict.fromkeys(commands)]
    lines += ["- none was found: add how to build and test"] if not commands else []
    lines += ["", "## Layout", "", *list_layout(folder)]
    workflows = list_names(folder, (".github", "workflows"), "file")
    if workflows:
        lines.append(f"- `.github/workflows/`: {', '.join(f'`{_clean(one, 60)}`' for one in workflows[:10])}")
    lines += [f"- `{one}`" for one in files if one.lower().startswith(("readme", "contributing", "changelog"))]
    lines += ["", "## Conventions", "", "- add what a newcomer must know and cannot see in the code", ""]
    return "\n".join(lines)


def write_agents_file(folder: Path, text: str, *, replace: bool) -> Path:
    """Write the AGENTS.md of a folder. Without `replace` an existing one stays, and `BadInput` is raised."""
    file = folder / AGENTS_FILE
    if os.path.lexists(file) and not replace:
        raise BadInput(f"{file} exists; it was not changed")
    try:
        write_whole(file, text)
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from None
    return file


def list_commands(
    folder: Path, files: list[str], pyproject: Mapping[str, Any], package: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """List tasks and their commands: what the project defines itself comes first."""
    for file, program in (("Makefile", "make"), ("justfile", "just")):
        targets = _TARGET.findall(read_beneath(folder, (file,)) or "")
        yield from ((task, f"{program} {task}") for task in USUAL_TASKS if task in targets)
    runner = next((program for file, program in _PACKAGE_RUNNERS.items() if file in files), "npm")
    scripts = _read_table(package, "scripts")
    yield from ((task, f"{runner} run {task}") for task in USUAL_TASKS if task in scripts)
    prefix = next((words for file, words in _PYTHON_RUNNERS.items() if file in files), "")
    written = json.dumps(pyproject, default=str)
    for tool, (task, command) in _PYTHON_TOOLS.items():
        if tool in _read_table(pyproject, "tool") or re.search(rf'"{tool}\b', written):
            yield task, f"{prefix}{command}"
    for file, commands in _FIXED_COMMANDS.items():
        yield from commands if file in files else ()


def list_layout(folder: Path) -> Iterator[str]:
    """List the folders of a project, and how many files of which kind they have."""
    shown = [
        name
        for name in list_names(folder, (), "folder")
        if not name.startswith(".") and name not in SKIPPED_FOLDERS and name.isprintable()
    ]
    for name in shown[:MAX_FOLDERS]:
        kinds: Counter[str] = Counter()
        for _, folders, files in os.walk(folder / name):
            folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in SKIPPED_FOLDERS)
            kinds.update(os.path.splitext(one)[1] or one for one in files if not one.startswith("."))
            if kinds.total() > MAX_FILES:
                break
        count = kinds.total()
        most = min(kinds.items(), key=lambda kind: (-kind[1], kind[0]))[0] if kinds else ""
        number = f"more than {MAX_FILES}" if count > MAX_FILES else str(count)
        yield f"- `{_clean(name, 60)}/`: {number} file{'' if count == 1 else 's'}" + (
            f", mostly `{_clean(most, 20)}`" if most else ""
        )


def _read_toml(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_beneath(folder, (name,)) or "")
    except (ValueError, RecursionError):
        return {}


def _read_json(folder: Path, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(read_beneath(folder, (name,)) or "{}")
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _read_table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _clean(text: str, most: int) -> str:
    """Put a text that others wrote on one line, without marks that would end a code span or begin a heading."""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return words.replace("`", "'").lstrip("#-> ")[:most]
