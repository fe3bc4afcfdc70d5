"""Runs the user's git outside the sandbox, with the user's own credentials, to talk to a remote and for nothing else.

It runs in a folder of ours, never in a repository of the workspace. Neither its program nor its settings may come from
the workspace. It has no terminal and no input, and no process outlives it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from treadle.errors import BadInput
from treadle.sandbox.base import Bounds, CommandResult, Job, OnOutput
from treadle.sandbox.environment import build_outside_path
from treadle.sandbox.git_settings import SettingsUnreadable, read_settings
from treadle.sandbox.host import SupervisorConfig, run_supervised

EXCHANGE_BOUNDS = Bounds(wall_s=600.0, memory_mb=4096, file_mb=8192, disk_mb=8192, output_bytes=1024 * 1024)

# What git, ssh and credential helpers need to act as the user. Programs that ask on a screen are not among them.
_PASSED_ON = (
    "HOME",
    "USER",
    "LOGNAME",
    "SSH_AUTH_SOCK",
    "GIT_SSH_COMMAND",
    "GIT_SSH",
    "GIT_SSH_VARIANT",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
_PATHS = (
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GNUPGHOME",
    "PASSWORD_STORE_DIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
)
_FIXED = {
    "LC_ALL": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    "GCM_INTERACTIVE": "never",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
}
_SETTINGS_FILES = (".gitconfig", ".config/git/config", ".ssh", ".ssh/config", ".netrc", ".git-credentials")
_PROGRAM_SETTINGS = re.compile(
    r"credential\.(.+\.)?helper|core\.(sshcommand|gitproxy|askpass)|include(if\..+)?\.path", re.DOTALL
)


_REFUSAL = (
    "{what} is in the workspace, so commands can change what git does with your credentials. Nothing was run. Use git "
    "in a terminal, or a workspace without it."
)


class RemoteCommand(Struct, frozen=True):
    """A git command in an exchange folder.

    `near` is the work tree it is about: settings that the user has for this place (`includeIf`) hold. `scheme` is that
    of the remote's address.
    """

    arguments: tuple[str, ...]
    git_dir: Path
    near: Path
    workspace: Path
    scheme: str


async def run_host_git(command: RemoteCommand, on_output: OnOutput, bounds: Bounds = EXCHANGE_BOUNDS) -> CommandResult:
    """Run git to its end; raises `BadInput` when it cannot be run safely. Cancelling kills all its processes."""
    if sys.platform != "linux":
        raise BadInput("Remotes can be used on Linux only. Nothing was run.")
    workspace = command.workspace.resolve()
    environment = build_git_environment(workspace, command.scheme)
    programs = [shutil.which(name, path=environment["PATH"]) for name in ("git", "ssh")]
    program = programs[0]
    if program is None or any(found is not None and _is_inside(Path(found), workspace) for found in programs):
        raise BadInput("git is not installed, or git or ssh is a link into the workspace. Nothing was run.")
    # The path leads through the work tree, because git compares it with the user's `includeIf`.
    near, git_dir = command.near.resolve(), str(command.git_dir.resolve()).lstrip("/")
    place = f"{near}/{'../' * (len(near.parts) - 1)}{git_dir}"
    try:
        settings = await asyncio.to_thread(read_settings, Path(place), command.git_dir, environment)
    except SettingsUnreadable as error:
        raise BadInput(f"{error} Nothing was run.") from None
    users = [(one.key, one.value) for one in settings if not one.is_own and _PROGRAM_SETTINGS.fullmatch(one.key)]
    check_user_programs(
        [*users, *((name, environment.get(name, "")) for name in ("GIT_SSH_COMMAND", "GIT_SSH"))], workspace
    )
    argv = (program, "--no-pager", f"--git-dir={place}", *command.arguments)
    config = SupervisorConfig(argv=argv, cwd="/", env=environment)
    job = Job(argv, workspace, bounds=bounds)
    return await run_supervised(config, job, (command.git_dir,), on_output)


def build_git_environment(workspace: Path, scheme: str) -> dict[str, str]:
    """Build the variables of git: who the user is, and where their programs and settings are, outside the workspace."""
    home = Path(os.path.expanduser("~"))
    folders = [home, *(home / name for name in _SETTINGS_FILES)]
    inside = next((place for place in folders if _is_inside(place, workspace)), None)
    if inside is not None:
        raise BadInput(_REFUSAL.format(what=inside))
    chosen = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    places = {name: os.environ[name] for name in _PATHS if name in os.environ}
    chosen |= {name: value for name, value in places.items() if not _is_inside(Path(value), workspace)}
    return {"HOME": str(home), **chosen, **_FIXED, "PATH": build_outside_path(workspace), "GIT_ALLOW_PROTOCOL": scheme}


def check_user_programs(named: Iterable[tuple[str, str]], workspace: Path) -> None:
    """Check that no program or file that the user's own settings name is in the workspace; raises `BadInput`."""
    for name, text in named:
        for word in re.split(r"[\s'\"=;!]+", os.path.expandvars(text)):
            place = Path.home() / os.path.expanduser(word)
            if "/" in word and _is_inside(place, workspace):
                raise BadInput(_REFUSAL.format(what=f"{place}, which {name} of your own settings names,"))


def _is_inside(place: Path, workspace: Path) -> bool:
    return not place.is_absolute() or Path(os.path.realpath(place)).is_relative_to(workspace)
