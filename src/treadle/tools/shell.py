"""`shell`: a command in bash, in the sandbox. It is parsed and classified before it is authorized.

The next command starts in the folder where it ends. Its standard input is closed, and no process outlives the call.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field
from msgspec.structs import replace

from treadle.events import Safety, Tier
from treadle.history.base import Contents
from treadle.history.snapshot import record_changes
from treadle.messages import Json, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.permissions.paths import is_instruction_path, is_secret_path
from treadle.permissions.policy import Assessment
from treadle.permissions.shell.classify import LASTING_REASONS, classify_command, sends_data
from treadle.permissions.shell.command_parts import render_commands
from treadle.permissions.shell.parse import parse_command
from treadle.sandbox.base import Bounds, Job, Sandbox, SandboxUnavailable
from treadle.sandbox.proxy import is_host_allowed
from treadle.sandbox.registries import are_registries, describe_hosts
from treadle.sandbox.result_notes import describe_refused, list_git_notes
from treadle.sandbox.shown_paths import SYSTEM_FOLDERS, choose_visible, is_below
from treadle.sandbox.toolchains import find_toolchains, list_languages
from treadle.tools.base import (
    FOLDER_NOTE,
    ArgumentAlias,
    Arguments,
    ParsedArguments,
    Tool,
    ToolContext,
    ToolError,
    ToolInputError,
    ToolResult,
)
from treadle.tools.git_command import read_git_command
from treadle.tools.sandbox_hints import HintFacts, find_hints
from treadle.tools.shell_requests import CommandRequests

MAX_TIMEOUT = 600.0
_MAX_CHARACTERS = 100_000
_MAX_NAMED_FILES = 5
_ENDINGS = {
    "exited": "exit code {result.code}",
    "signalled": "ended by signal {result.signal}",
    "wall": "stopped after {bounds.wall_s:g} s, with all it had started. It may have had effects",
    "memory": "stopped: it used more than {bounds.memory_mb} MB of memory",
    "processes": "stopped: it started more than {bounds.processes} processes",
    "output": "stopped: it wrote more than {bounds.output_bytes} bytes of output",
    "disk": "stopped: it wrote more than {bounds.disk_mb} MB into the workspace",
}


class _Arguments(Arguments):
    command: Annotated[str, Meta(description="what to run; several lines are fine")]
    timeout_s: Annotated[
        float, Meta(description=f"seconds until it is stopped, {MAX_TIMEOUT:g} at most (default 120)")
    ] = 120.0
    read_folders: Annotated[
        list[str], Meta(description="folders outside the workspace that the command must read; the user is asked")
    ] = field(default_factory=list[str])
    write_folders: Annotated[
        list[str], Meta(description="folders outside the workspace that the command must change; the user is asked")
    ] = field(default_factory=list[str])


def _read_command(value: Json, given: Mapping[str, Json]) -> Mapping[str, Json]:
    """Read a command that may be a list of words, as some agents write it. `["bash", "-lc", COMMAND]` is COMMAND."""
    match value:
        case ["bash" | "/bin/bash" | "/usr/bin/bash" | "sh" | "/bin/sh", "-c" | "-lc", str(command)]:
            return {"command": command}
        case [str(), *_] if all(isinstance(word, str) for word in value):
            return {"command": shlex.join(value)}
        case _:
            return {"command": value}


_OTHER_NAMES: dict[str, ArgumentAlias] = {
    **dict.fromkeys(("command", "cmd", "script", "code", "bash"), _read_command),
    **dict.fromkeys(("timeout_seconds", "timeout_sec"), "timeout_s"),
    # Some agents count in seconds, others in milliseconds. More than the most seconds are milliseconds.
    "timeout": lambda value, _: {
        "timeout_s": value / 1000 if isinstance(value, int | float) and value > MAX_TIMEOUT else value
    },
    "timeout_ms": lambda value, _: {"timeout_s": value / 1000 if isinstance(value, int | float) else value},
    **dict.fromkeys(("description", "explanation", "justification"), ""),
}
"""What other coding agents call the parameters, or add for people to read."""


def _build_description(hosts: Sequence[str] | None) -> str:
    """Say what commands can do here. It is the same for every request of a session, so that a provider can cache it.

    `hosts` can be reached; none means every public host, and None means that there is no network.
    """
    network = "there is no network: for a host"
    if hosts is not None:
        network = f"the network reaches only {describe_hosts(hosts) or 'public hosts'}: for another host"
    languages = ", ".join(list_languages())
    return (
        "Run a command in bash, in the workspace. Its output is the result; when it fails, its exit code is told. "
        "`cd` lasts until the next call; variables and processes do not. There is no input and no terminal. "
        f"In the sandbox only the workspace and /tmp can be written, and {network} that a program wants through its "
        f"proxy variables, the user is asked. {f'Languages here: {languages}. ' if languages else ''}"
        "git works, commit too; run push, fetch or clone as a command of its own, and the user is asked. "
        "Installed packages go into the workspace (.venv, node_modules) or a private cache. "
        'Example: {"command": "grep -rn TODO src | head"}.'
    )


class Shell(Tool):
    """Runs commands. `network` lets them reach public hosts, or only `allow_hosts`. `kept` lets a rewind undo them.

    For other hosts, and for folders besides `shown_folders` and `writable_folders`, rules or a person decide.
    """

    aliases = ("bash", "Bash", "run_shell_command", "run_terminal_cmd", "execute_bash", "exec_command")
    argument_aliases = _OTHER_NAMES
    timeout = MAX_TIMEOUT + 60
    on_error = "tell"  # a command that fails has run, so it is never repeated by itself
    decided_after = ("git_remote",)
    spec = ToolSpec(
        name="shell",
        description="",  # it depends on the machine: `_build_description` writes it
        parameters=_Arguments.build_schema(),
        examples=(
            ("list the files here", {"command": "ls -la"}),
            ("how many lines does app.py have", {"command": "wc -l app.py"}),
            ("run the tests", {"command": "make test", "timeout_s": 300}),
        ),
    )

    readable_folders: Sequence[Path] = ()
    """Folders besides the workspace that commands may read, such as that of the user's skills."""

    shown_folders: Sequence[Path] = ()
    """The user's folders that commands may read."""

    writable_folders: Sequence[Path] = ()
    """The user's folders that commands may change."""

    own_registries: tuple[str, ...] = ()
    """Package registries of the user's own network. They may have a private address."""

    remote: Tool | None = None
    """The tool that gets a plain `git push`, `fetch`, `pull` or `clone`: commands have no credentials."""

    def __init__(
        self,
        sandbox: Sandbox,
        kept: Contents | None = None,
        *,
        network: bool = False,
        allow_hosts: tuple[str, ...] = (),
        bounds: Bounds | None = None,
        show_env_files: bool = False,
    ) -> None:
        self._sandbox, self.kept = sandbox, kept
        self._network, self._allow_hosts = network, allow_hosts
        self._bounds, self._show_env_files = bounds or Bounds(), show_env_files
        self.spec = replace(self.spec, description=_build_description(allow_hosts if network else None))

    @property
    def reachable_hosts(self) -> tuple[str, ...]:
        """The hosts that every command may reach without a question. `*` stands for all public ones."""
        return (self._allow_hosts or ("*",)) if self._network else ()

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return classify_command(parse_command(str(arguments.get("command", ""))), "")[0]

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        parts = parse_command(parsed.arguments["command"])
        folder, in_sandbox = parsed.arguments.get("folder", ""), tier != "full"
        home, folders = os.path.expanduser("~/"), [str(one) for one in self.writable_folders]
        writable = [*folders, *(f"~/{one.removeprefix(home)}" for one in folders if one.startswith(home))]
        top = os.path.realpath(workspace)
        safety, why = classify_command(parts, top, folder, in_sandbox=in_sandbox, writable=writable)
        moves = safety != "safe" or any(part.name == "cd" for part in parts)
        sends = not in_sandbox and sends_data(parts)
        traits: set[Trait] = {"network"} if sends else set()
        if why.startswith(LASTING_REASONS):
            traits.add("lasting")
        commands = render_commands(parts)
        return Assessment(safety, why, commands, affects_later_calls=moves, traits=frozenset(traits))

    def resolve_call(self, parsed: ParsedArguments, notes: Mapping[str, Json]) -> tuple[Tool, ParsedArguments]:
        """Add the folder where the last command ended. It is shown, and an approval holds for that folder."""
        folder = str(notes.get(FOLDER_NOTE) or "")
        values = {**parsed.arguments, "folder": folder} if folder else parsed.arguments
        return self, ParsedArguments(values, values)

    async def bind_call(self, parsed: ParsedArguments, workspace: Path, tier: Tier) -> tuple[Tool, ParsedArguments]:
        """Hand a plain `git push` and the like to the tool for it. With full access it stays a command."""
        if self.remote is None or tier == "full":
            return self, parsed
        arguments = read_git_command(parsed.arguments["command"], parsed.arguments.get("folder", ""))
        if arguments is None or (arguments["action"] == "clone" and self._reaches(arguments["url"])):
            return self, parsed
        return await self.remote.bind_call(ParsedArguments(arguments, arguments), workspace, tier)

    def _reaches(self, address: str) -> bool:
        """Tell whether commands may reach an address without a question."""
        found = re.match(r"https?://(?:[^/@]*@)?([^/:]+)(?::(\d+))?(?:/|$)", address)
        port = int(found[2] or (443 if address.startswith("https") else 80)) if found else 0
        return found is not None and self._network and is_host_allowed(self._allow_hosts, found[1], port)

    def find_hidden_tool(self, name: str) -> Tool | None:
        return self.remote if self.remote is not None and self.remote.name == name else None

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        own: set[Trait] = {"workspace", "private"}
        if tier == "full" or self._network:
            own.add("way_out")
        if tier == "full":
            own.add("host")
        elif self._network and not self._allow_hosts:
            own.add("untrusted")
        elif self._network and are_registries(self._allow_hosts, self.own_registries):
            own.add("registries")
        return frozenset(own)

    def describe_sandbox(self, tier: Tier) -> str:
        return "none" if tier == "full" else self._sandbox.probe().level

    def parse(self, arguments: str) -> ParsedArguments:
        parsed = _Arguments.decode(self.name, arguments, strict=False)
        command, timeout = parsed.arguments["command"], parsed.arguments["timeout_s"]
        if not command.strip():
            raise ToolInputError("shell: the command is empty.")
        if "\0" in command or len(command) > _MAX_CHARACTERS:
            raise ToolInputError(
                f"shell: a command holds no NUL and at most {_MAX_CHARACTERS} characters. Put the rest into a file."
            )
        if not 0 < timeout <= MAX_TIMEOUT:
            raise ToolInputError(f"shell: timeout_s is more than 0 and at most {MAX_TIMEOUT:g}.")
        given = {name: value for name, value in parsed.arguments.items() if value != []}
        return ParsedArguments(given, given)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        workspace, folder = context.workspace.resolve(), parsed.arguments.get("folder", "")
        await _check_start_folder(context, workspace, folder)
        output, in_sandbox = _Output(context), context.tier != "full"
        job = await self._build_job(parsed, context, output)
        run = self._sandbox.run_in_sandbox if in_sandbox else self._sandbox.run_on_host
        contents = (context.services.contents or self.kept) if self.kept is not None else None
        recording = record_changes(contents, context) if contents and job.writable else contextlib.nullcontext()
        try:
            async with recording as snapshot:
                result = await run(job, output.feed)
                if snapshot is not None and in_sandbox:
                    snapshot.reports = result.git
        except SandboxUnavailable as error:
            raise ToolError(str(error)) from None
        notes = [
            await _save_folder(context, workspace, folder, output.finish()),
            _ENDINGS[result.reason].format(result=result, bounds=job.bounds) if result.code != 0 else "",
            describe_refused(result.refused_hosts),
            *list_git_notes(result.git),
        ]
        if in_sandbox:
            notes += find_hints(parsed.arguments["command"], output.text, result, collect_hint_facts(job))
        notes.append(_name_instruction_files(snapshot.left if snapshot is not None else ()))
        text = "\n".join([output.text.rstrip("\n"), *(f"[{note}]" for note in notes if note)]).lstrip("\n")
        return ToolResult(text or "[no output]", ok=result.code == 0, timed_out=result.reason == "wall")

    async def _build_job(self, parsed: ParsedArguments, context: ToolContext, output: _Output) -> Job:
        """Build the job of a command, and ask for the folders that it names. A command that only reads may not write.

        If the classification was wrong, the command still changes nothing.
        """
        arguments, workspace, in_sandbox = parsed.arguments, context.workspace.resolve(), context.tier != "full"
        command, folder = arguments["command"], arguments.get("folder", "")
        is_safe = classify_command(parse_command(command), str(workspace), folder)[0] == "safe"
        requests = CommandRequests(context, command)
        shown, writable = list(self.shown_folders), list(self.writable_folders)
        if in_sandbox:
            writable += await requests.find_folders(arguments.get("write_folders", ()), writable, is_writable=True)
            granted = [*shown, *writable]
            shown += await requests.find_folders(arguments.get("read_folders", ()), granted, is_writable=False)
        return Job(
            argv=("bash", "-c", output.add_report(command)),
            workspace=workspace,
            cwd=folder,
            network=self._network,
            allow_hosts=self._allow_hosts,
            bounds=replace(self._bounds, wall_s=arguments["timeout_s"]),
            read_only=tuple(folder for folder in self.readable_folders if folder.is_dir()),
            show_env_files=self._show_env_files,
            writable=not is_safe,
            shown_folders=tuple([*shown, *writable] if is_safe else shown),
            writable_folders=() if is_safe else tuple(writable),
            ask_host=requests.ask_host if in_sandbox and not is_safe else None,
            own_registries=self.own_registries,
        )


async def _check_start_folder(context: ToolContext, workspace: Path, folder: str) -> None:
    """Check that the folder in which the last command ended is there. Elsewhere, a command would act on other files."""
    path = workspace / folder
    if folder and (path.resolve() != path or not path.is_relative_to(workspace) or not path.is_dir()):
        await context.services.save_note(FOLDER_NOTE, "")
        raise ToolError(
            f"Not run: the folder {folder}, in which the last command ended, is gone. "
            "The next command starts in the workspace itself."
        )


def _name_instruction_files(changed: Iterable[str]) -> str:
    """Name the changed files that instruct agents or programs. A command does not say what it writes."""
    files = sorted(filter(is_instruction_path, changed))
    if not files:
        return ""
    more = f" and {len(files) - _MAX_NAMED_FILES} more" if len(files) > _MAX_NAMED_FILES else ""
    return (
        f"it changed {', '.join(files[:_MAX_NAMED_FILES])}{more}, which tells agents, editors or build services what "
        "to do: say so to the user"
    )


def collect_hint_facts(job: Job) -> HintFacts:
    """Collect what hints about a job need to know of this machine."""
    shown = (job.workspace, *job.read_only, *job.shown_folders, *job.writable_folders)
    tools = find_toolchains(job.workspace)

    def find_on_host(name: str) -> Path | None:
        found = shutil.which(name)
        return Path(found) if found and tools.find_program(name, folders=shown) is None else None

    def find_outside(word: str) -> str:
        path = Path(os.path.realpath(os.path.expanduser(word)))
        is_shown = is_below(path, (*SYSTEM_FOLDERS, *shown, *(mount.path for mount in tools.mounts)))
        folder, name = (path, word.rstrip("/")) if os.path.isdir(path) else (path.parent, os.path.dirname(word))
        is_offered = choose_visible(Path(), folder) == folder and not is_secret_path(str(path))
        return name if not is_shown and is_offered and os.path.exists(path) else ""

    return HintFacts(job, shown, find_on_host, find_outside)


async def _save_folder(context: ToolContext, workspace: Path, before: str, end_folder: str) -> str:
    """Save the folder in which a command ended. Say so when it changed."""
    if not end_folder:
        return ""
    path, shown = Path(end_folder), os.fsencode(end_folder).decode("utf-8", "replace")
    is_inside = path.is_relative_to(workspace)
    folder = str(path.relative_to(workspace)) if is_inside and path != workspace and shown == end_folder else ""
    if folder != before:
        await context.services.save_note(FOLDER_NOTE, folder)
    if not is_inside or shown != end_folder:
        why = "has a name that is not UTF-8" if is_inside else "is outside the workspace"
        return f"{shown} {why}: the next command starts in the workspace again"
    return f"now in {folder or 'the workspace'}" if folder != before else ""


class _Output:
    """The text that a command writes, as it comes. At its end bash reports its folder; that report is removed."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._mark = b"\0" + os.urandom(16).hex().encode() + b"\0"
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = b""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add_report(self, command: str) -> str:
        """Add the report to the command in one line, so that bash counts the lines as the author does."""
        mark = self._mark.strip(b"\0").decode()
        report = f'printf "\\0%s\\0%s\\0" {mark} "$(pwd -P)" >&"$treadle_out"'
        return f"exec {{treadle_out}}>&1; trap {shlex.quote(report)} EXIT; eval {shlex.quote(command)}"

    def feed(self, data: bytes) -> None:
        """Show new output, up to a mark or to the possible beginning of one."""
        self._pending += data
        end = self._pending.find(self._mark)
        if end < 0:
            sizes = range(min(len(self._mark) - 1, len(self._pending)), 0, -1)
            begun = next((size for size in sizes if self._pending.endswith(self._mark[:size])), 0)
            end = len(self._pending) - begun
        data, self._pending = self._pending[:end], self._pending[end:]
        self._show(self._decode(data))

    def finish(self) -> str:
        """Show the rest without the report. Return the reported folder, or nothing."""
        folder, rest = b"", self._pending
        if rest.startswith(self._mark):
            folder, _, rest = rest[len(self._mark) :].partition(b"\0")
        self._show(self._decode(rest, final=True))
        return os.fsdecode(folder)

    def _show(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._context.output(text)
