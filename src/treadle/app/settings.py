"""Read and write settings. Precedence: flags, environment, workspace's file, user's file.

A workspace's file comes with code that somebody else wrote. It may narrow rights and never widen them. Every command
imports this module, so the import must stay cheap. Settings name secrets (a variable, a file) and never hold them.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.app.hook_settings import HookSettings
from treadle.errors import BadInput, NotFound
from treadle.events import TURN_CEILING, Limits, Tier
from treadle.log.base import LEASE_SECONDS
from treadle.messages import Json
from treadle.permissions.paths import find_config_folder as config_folder
from treadle.permissions.paths import find_data_folder as data_folder
from treadle.permissions.paths import find_worktree_folder
from treadle.secrets.store_url import hide_password, is_postgres_url, parse_postgres_url

MAX_CEILING = 10_000
MAX_LEASE = 3600
WORKSPACE_FILE = Path(".treadle") / "config.toml"
WORKSPACE_KEYS = frozenset(
    (
        *("agent", "access", "ask", "forbid", "web"),
        *("max_turns", "max_calls", "max_tokens", "max_cost", "timeout", "retry_seconds"),
    )
)
"""The keys that a workspace's file may set. Other keys are ignored, and the user gets a note."""

_LIST_KEYS = frozenset(("approve", "ask", "forbid", "network", "model_roots"))
_LIMIT_KEYS = frozenset(("max_turns", "max_calls", "max_tokens", "max_cost", "timeout", "retry_seconds"))
_FLAG_KEYS = frozenset(("yes", "workspace", "worktree", "always"))
_TIERS: tuple[Tier, ...] = get_args(Tier)
_AGE_UNITS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
_TYPE_NAMES: dict[object, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
    tuple[str, ...]: "a list of texts",
    bool | tuple[str, ...]: "true, false or a list of patterns",
    dict[str, str]: "a table of names",
}
"""The text that describes the values of each type in error messages. Other types are a choice of fixed values."""


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[sandbox]`: folders outside the workspace that commands may read, or also change.

    `registries` are package registries of the user's own network, as `HOST` or `HOST:PORT`.
    """

    read_only: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bad := [host for host in self.registries if not re.fullmatch(r"[\w.-]+(:\d+)?", host)]:
            raise ValueError(f"registries has {bad[0]!r}; write a name such as packages.example.org or HOST:8443")


class TerminalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[terminal]`. `status_command` is a command whose first line of output replaces the status line."""

    status_command: str = ""

    def __post_init__(self) -> None:
        if "\0" in self.status_command:
            raise ValueError("status_command has a NUL character, which no command can have; remove it")


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a command. Empty text and None mean: not set.

    `always` holds the approvals of the user's file. They apply to every run, so they do not cover calls that need
    approval each time. `approve` applies to this run only and covers them. `network` names the hosts that commands may
    reach; `registries` stands for the well-known package registries. `approve_flow` names the calls that may let
    private data out after text of others, or is true for all. `keep_loaded` is how many seconds the engine of an
    embedded model stays loaded after a command.
    `lease` is for how many seconds a process may be silent before another one takes its sessions over.
    `worktree` is the folder that a session works in instead of the workspace whose settings and rules hold for it.
    """

    model: str = ""
    base_url: str = ""
    api_key_env: str = ""
    api_key_file: str = ""
    agent: str = ""
    workspace: str = ""
    worktree: str = ""
    worktree_folder: str = ""
    store: str = ""
    access: Tier = "sandbox"
    approve: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    yes: bool = False
    approve_flow: bool | tuple[str, ...] = False
    allow_root: bool = False
    turn_ceiling: int = TURN_CEILING
    max_turns: int | None = None
    max_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    timeout: float | None = None
    retry_seconds: float = Limits().retry_seconds
    lease: float = LEASE_SECONDS
    system_prompt: str = ""
    web: bool = False
    web_proxy: str = ""
    network: tuple[str, ...] = ()
    sandbox: SandboxSettings = SandboxSettings()
    terminal: TerminalSettings = TerminalSettings()
    notify: Literal["auto", "bell", "osc9", "off"] = "auto"
    notify_after: float = 20.0
    auto_name: bool = True
    skill_autogen: bool = False
    implicit_signals: bool = True
    embed_model: str = ""
    keep_loaded: float = 300.0
    model_roots: tuple[str, ...] = ()
    mcp: dict[str, dict[str, Json]] = {}
    hooks: HookSettings = HookSettings()
    model_aliases: dict[str, str] = {}
    retention: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.turn_ceiling <= MAX_CEILING:
            raise BadInput(f"turn_ceiling is {self.turn_ceiling}; it must be from 1 to {MAX_CEILING}")
        if self.max_turns is not None and not 0 <= self.max_turns <= self.turn_ceiling:
            raise BadInput(
                f"max_turns is {self.max_turns}; it must be from 0 (text only) to {self.turn_ceiling}, the turn_ceiling"
            )
        if self.max_calls is not None and self.max_calls < 0:
            raise BadInput(f"max_calls is {self.max_calls}; it must not be negative")
        if not self.retry_seconds >= 0:
            raise BadInput(f"retry_seconds is {self.retry_seconds}; it must not be negative. 0 means no retry")
        if not 1 <= self.lease <= MAX_LEASE:
            raise BadInput(f"lease is {self.lease:g}; it must be from 1 to {MAX_LEASE} seconds. The default is 10")
        if not self.keep_loaded >= 0:
            raise BadInput(f"keep_loaded is {self.keep_loaded}; write a number of seconds, or 0 to keep nothing loaded")
        for key in ("max_tokens", "max_cost", "timeout"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise BadInput(f"{key} is {value}; it must be more than 0. Leave it out for no limit")
        if self.web_proxy and not re.fullmatch(r"https?://[^\s/@?#]+/?", self.web_proxy):
            raise BadInput("web_proxy must be an address such as http://proxy.example:3128, without user and password")
        if self.retention:
            parse_age(self.retention)
        if self.api_key_env and self.api_key_file:
            raise BadInput("api_key_env and api_key_file are both set; remove one")
        if is_postgres_url(self.store):
            parse_postgres_url(self.store)

    @property
    def folder(self) -> Path:
        """The absolute path of the folder to work in: the workspace, or the worktree of the session."""
        return Path(self.worktree or self.workspace or ".").expanduser().absolute()

    @property
    def worktree_parent(self) -> Path:
        """The folder in which worktrees of sessions are created."""
        return Path(self.worktree_folder).expanduser().absolute() if self.worktree_folder else find_worktree_folder()

    @property
    def store_location(self) -> str:
        """The store: a path, a URL, or `:memory:`."""
        return self.store or str(data_folder() / "treadle.db")

    @property
    def store_name(self) -> str:
        """The store as it may be shown: without a password."""
        return hide_password(self.store_location)

    @property
    def store_file(self) -> Path | None:
        """The file of the store, or None if the store is a database server or in memory."""
        where = self.store_location
        return None if "://" in where or where == ":memory:" else Path(where).expanduser().absolute()

    def build_limits(self, turns: int = Limits().turns) -> Limits:
        """Build the limits of one run. `turns` is the number of turns where the settings have none."""
        usual = Limits()
        return Limits(
            turns=min(turns, self.turn_ceiling) if self.max_turns is None else self.max_turns,
            calls=usual.calls if self.max_calls is None else self.max_calls,
            tokens=self.max_tokens,
            seconds=self.timeout,
            cost=self.max_cost,
            implicit_signals=self.implicit_signals,
            ceiling=self.turn_ceiling,
            retry_seconds=self.retry_seconds,
        )


class _Sources(Struct, frozen=True):
    """The sources of a command's settings: the user's file, the environment, the flags, and one workspace's file."""

    user_file: Path
    user: dict[str, Json]
    environment: dict[str, Json]
    flags: dict[str, Json]
    workspace_file: Path
    workspace: dict[str, Json]


class LoadedSettings(Struct, frozen=True):
    """Settings, the source of each one that is set, and the ignored settings of a workspace's file.

    `user_file` is the path of the user's file, whether it exists or not.
    """

    settings: Settings
    sources: dict[str, str]
    user_file: Path
    ignored: tuple[str, ...]
    read: _Sources

    def apply_flags(self, **flags: Json) -> LoadedSettings:
        """Add flags to those of the command line. This reads a file only if the workspace changes."""
        merged = {**self.read.flags, **_convert_values(flags, "command line")}
        folder = _find_workspace(merged, self.read.environment)
        file = folder / WORKSPACE_FILE
        workspace = self.read.workspace if file == self.read.workspace_file else _read_toml(file)
        return _merge(replace(self.read, flags=merged, workspace_file=file, workspace=workspace), folder)


def parse_age(text: str) -> float:
    """Read an age such as `90d`, `12h` or `2w` as seconds."""
    found = re.fullmatch(r"(\d{1,6})([hdw])", text.strip())
    if found is None or not int(found[1]):
        raise BadInput(f"{text!r} is not an age; write a number of hours, days or weeks, such as 12h, 90d or 2w")
    return int(found[1]) * _AGE_UNITS[found[2]]


def config_file(chosen: str = "") -> Path:
    """The path of the user's file: `chosen`, or the default path."""
    named = chosen or os.environ.get("TREADLE_CONFIG", "")
    return Path(named).expanduser() if named else config_folder() / "config.toml"


def load_settings(flags: Mapping[str, Json] | None = None, config: str = "") -> LoadedSettings:
    """Load the settings for these flags, environment and workspace. Raises `BadInput` with the file and the key."""
    flags = {key: value for key, value in (flags or {}).items() if value is not None}
    user_file = config_file(config)
    if config and not user_file.is_file():
        raise BadInput(f"there is no configuration file {user_file}; check --config")
    user = _check_user_values(_read_toml(user_file), user_file)
    environment: dict[str, Json] = {}
    for key in Settings.__struct_fields__:
        text = os.environ.get(f"TREADLE_{key.upper()}", "").strip()
        if text and key not in ("mcp", "hooks", "model_aliases", "sandbox", "terminal", "always", "worktree"):
            words = [word.strip() for word in text.split(",") if word.strip()]
            value = words if key in _LIST_KEYS else text
            environment[key] = _convert_value(key, value, f"TREADLE_{key.upper()}", strict=False)
    _check_access(environment, "TREADLE_ACCESS")
    folder = _find_workspace(flags, environment)
    file = folder / WORKSPACE_FILE
    typed_flags = _convert_values(flags, "command line")
    return _merge(_Sources(user_file, user, environment, typed_flags, file, _read_toml(file)), folder)


def _check_user_values(values: Mapping[str, Json], file: Path) -> dict[str, Json]:
    typed = _convert_values(values, str(file))
    _check_access(typed, f"{file}: access")
    return typed


def _check_access(values: Mapping[str, Json], source: str) -> None:
    if values.get("access") == "full":
        raise BadInput(f"{source} = 'full' is only allowed on the command line, as --full-access")


def _find_workspace(flags: Mapping[str, Json], environment: Mapping[str, Json]) -> Path:
    folder = Path(str(flags.get("workspace") or environment.get("workspace") or ".")).expanduser().absolute()
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; --workspace must name an existing one")
    return folder


def _merge(read: _Sources, folder: Path) -> LoadedSettings:
    """Merge the sources. Precedence: flags, environment, workspace's file, user's file."""
    workspace, ignored = _filter_workspace(read)
    lasting = {"always" if key == "approve" else key: value for key, value in read.user.items()}
    layers = (
        (str(read.user_file), lasting),
        (str(read.workspace_file), workspace),
        ("environment", read.environment),
        ("command line", read.flags),
    )
    merged: dict[str, Json] = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        for key, value in layer.items():
            both = key in _LIST_KEYS and key in merged
            merged[key] = tuple(dict.fromkeys((*merged[key], *value))) if both else value
            named = f"TREADLE_{key.upper()}" if source == "environment" else source
            sources[key] = f"{sources[key]}, {named}" if both else named
    if workspace.get("web") is False:  # a project's no is final
        if merged["web"]:
            ignored += (f"{sources['web']}: web is ignored: {read.workspace_file} has web = false",)
        merged["web"], sources["web"] = False, str(read.workspace_file)
    merged["workspace"] = str(folder)
    return LoadedSettings(Settings(**merged), sources, read.user_file, ignored, read)


def _read_toml(file: Path) -> dict[str, Json]:
    return _parse_toml(_read_text(file), file)


def _read_text(file: Path) -> bytes:
    """Read a file of settings. It is empty if there is none."""
    try:
        # The file may be a pipe, or a link to an endless device. Opening it must not block.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise BadInput(f"{file} is not a regular file; nothing was started")
            return opened.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}; nothing was started") from None


def _parse_toml(text: bytes, file: Path) -> dict[str, Json]:
    import tomllib

    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not valid TOML: {error}; nothing was started") from None


def _convert_values(values: Mapping[str, Json], source: str) -> dict[str, Json]:
    from_file = source != "command line"
    typed: dict[str, Json] = {}
    for key, value in values.items():
        known = [name for name in Settings.__struct_fields__ if not (from_file and name in _FLAG_KEYS)]
        if key in ("api_key", "token", "password"):
            advice = "name a variable or a file with api_key_env or api_key_file"
            raise BadInput(f"{source}: {key}: secrets are not allowed here; {advice}")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are: {', '.join(known)}"
            raise BadInput(f"{source}: unknown setting {key!r}; {hint}")
        where = f"{source}: {key}" if from_file else f"--{key.replace('_', '-')}"
        typed[key] = _convert_value(key, value, where, strict=from_file)
    return typed


def _convert_value(key: str, value: Json, where: str, *, strict: bool) -> Json:
    field = next(field for field in msgspec.structs.fields(Settings) if field.name == key)
    if key == "network" and isinstance(value, str):  # `network = "registries"`
        value = [value]
    try:
        return msgspec.convert(value, field.type, strict=strict)
    except msgspec.ValidationError as error:
        wanted = _TYPE_NAMES.get(field.type) or " or ".join(map(repr, get_args(field.type)))
        is_table = key in ("mcp", "hooks", "sandbox", "terminal")
        raise BadInput(f"{where}: {error}" if is_table else f"{where} is {value!r}; it must be {wanted}") from None


def _filter_workspace(read: _Sources) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Return the settings that a workspace's file may set, and a note for each ignored one."""
    file, user = read.workspace_file, read.user
    advice = f"a workspace may not set it; set it in {read.user_file}"
    ignored = [f"{file}: {key} is ignored: {advice}" for key in read.workspace if key not in WORKSPACE_KEYS]
    allowed = {key: value for key, value in read.workspace.items() if key in WORKSPACE_KEYS}
    kept = _convert_values(allowed, str(file))
    if "access" in kept and _TIERS.index(kept["access"]) > _TIERS.index(user.get("access", Settings().access)):
        ignored.append(f"{file}: access = {kept.pop('access')!r} is ignored: a workspace may only narrow it")
    if kept.get("web") and not user.get("web", Settings().web):
        ignored.append(f"{file}: web = {str(kept.pop('web')).lower()} is ignored: a workspace may only switch it off")
    if "agent" in kept:
        why = "the user has chosen an agent" if "agent" in user else ""
        if not why:
            from treadle.app.workspace_knowledge import WorkspaceKnowledge

            agent = WorkspaceKnowledge(file.parent.parent, config_folder()).agents.get(kept["agent"])
            is_trusting = agent is not None and agent.posture == "trusting"
            why = "only the user may choose an agent with a trusting posture" if is_trusting else ""
        if why:
            ignored.append(f"{file}: agent = {kept.pop('agent')!r} is ignored: {why}; choose it with --agent")
    for key in sorted(_LIMIT_KEYS & kept.keys()):
        usual = Limits()
        defaults = {"max_turns": usual.turns, "max_calls": usual.calls, "retry_seconds": usual.retry_seconds}
        most = cast("float | None", user.get(key, defaults.get(key)))
        if most is not None and kept[key] > most:
            ignored.append(f"{file}: {key} = {kept.pop(key)} is ignored: a workspace may only lower it from {most:g}")
    return kept, tuple(ignored)


def read_config(file: Path) -> str:
    """Read the user's file as text. It is empty if there is no file."""
    return _read_text(file).decode("utf-8", "replace")


def check_config(text: str, file: Path) -> None:
    """Raise `BadInput` with the key if a text cannot be the user's file."""
    values = _check_user_values(_parse_toml(text.encode("utf-8", "surrogatepass"), file), file)
    try:
        Settings(**{"always" if key == "approve" else key: value for key, value in values.items()})
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None


def write_private_file(file: Path, text: str) -> None:
    """Write a file that only the user can read, whole or not at all. A link stays a link."""
    file = file.resolve()
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
            opened.write(text.encode())
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(partial, file)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise BadInput(f"{file} cannot be written: {error.strerror}; nothing was changed") from None


def parse_setting(key: str, words: Sequence[str]) -> Json:
    """Read the words of a command line as the value of a key, such as `max_cost` or `sandbox.read_only`."""
    kind: object = Settings
    for name in key.split("."):
        fields = msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, Struct) else ()
        kind = next((field.type for field in fields if field.name == name), None)
    is_list = "tuple[" in str(kind) and (kind != bool | tuple[str, ...] or words[0] not in ("true", "false"))
    if is_list:
        return list(words)
    if len(words) > 1:
        raise BadInput(f"{key} is not a list, so it takes one value; nothing was changed")
    if kind is str or words[0] == "":
        return words[0]
    import tomllib

    try:  # a number, true, or a table; everything else is text
        return tomllib.loads(f"value = {words[0]}")["value"]
    except tomllib.TOMLDecodeError:
        return words[0]


def save_setting(key: str, value: Json, config: str = "") -> Path:
    """Set one key in the user's file, or remove it if the value is None. The rest of the file stays as it is.

    Raises `BadInput`, and changes nothing, if the file would not be valid. Returns the file.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    file = config_file(config)
    text = read_config(file)
    check_config(text, file)  # an error in the file is not an error in the value
    document = tomlkit.parse(text)
    *outer, last = key.split(".")
    table = cast("dict[str, Any]", document)
    for name in outer:
        if not isinstance(table.setdefault(name, tomlkit.table()), dict):
            raise BadInput(f"{key}: {name} is not a table; nothing was changed")
        table = table[name]
    try:
        if value is not None:
            table[last] = value
        elif table.pop(last, None) is None:
            raise NotFound(f"{key} is not set in {file}; nothing was changed")
        changed = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise BadInput(f"{key}: {error}; nothing was changed") from None
    try:
        check_config(changed, file)
    except BadInput as error:
        raise BadInput(f"{error}. Nothing was changed") from None
    write_private_file(file, changed)
    return file
