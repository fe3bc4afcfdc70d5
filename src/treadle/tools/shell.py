"""`shell`: a command in bash, behind the sandbox's walls. What it would do is read and classed before it is judged.

The folder it ends in is where the next one starts. Standard input is closed, and nothing outlives the call.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from treadle.events import Safety, Tier
from treadle.history.kept_files import KeptFiles
from treadle.history.snapshot import record_changes
from treadle.messages import Json, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.permissions.paths import is_instruction_path
from treadle.permissions.policy import Assessment
from treadle.permissions.shell.classify import classify_command
from treadle.permissions.shell.command_parts import render_commands
from treadle.permissions.shell.parse import parse_command
from treadle.sandbox.base import Bounds, CommandResult, Job, Sandbox, SandboxUnavailable
from treadle.tools.base import (
    ParsedArguments,
    Tool,
    ToolContext,
    ToolError,
    ToolInputError,
    ToolResult,
    decode_arguments,
)

FOLDER_NOTE = "treadle.folder"
"""The note that says in which folder of the workspace the last command ended."""

MAX_TIMEOUT = 600.0
_MOST_CHARACTERS = 100_000
_NAMED = 5
_OVER = {
    "memory": "it used more than {bounds.memory_mb} MB of memory",
    "processes": "it started more than {bounds.processes} processes",
    "output": "it wrote more than {bounds.output_bytes} bytes of output",
    "disk": "it wrote more than {bounds.disk_mb} MB into the workspace",
}


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    command: str
    timeout_s: float = 120.0


class Shell(Tool):
    """Run commands. `network` lets them reach public hosts, or only `allow_hosts`; `kept` makes changes rewindable."""

    aliases = ("bash",)
    timeout = MAX_TIMEOUT + 60
    on_error = "tell"  # a command that fails has been run: it is never repeated unasked
    spec = ToolSpec(
        name="shell",
        description=(
            "Run a command in bash, in the workspace. Its output is the result; when it fails, its exit code is told. "
            "`cd` lasts until the next call, variables do not. There is no input and no terminal. "
            "In the sandbox only the workspace and /tmp can be written, .git cannot, and there is no network. "
            'Example: {"command": "grep -rn TODO src | head"}.'
        ),
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "what to run; several lines are fine"},
                "timeout_s": {
                    "type": "number",
                    "description": f"seconds until it is stopped, {MAX_TIMEOUT:g} at most (default 120)",
                },
            },
            "required": ["command"],
        },
        examples=(
            ("list the files here", {"command": "ls -la"}),
            ("how many lines does app.py have", {"command": "wc -l app.py"}),
            ("run the tests", {"command": "make test", "timeout_s": 300}),
        ),
    )

    readable_folders: Sequence[Path] = ()
    """Folders besides the workspace that commands may read, such as that of the user's skills."""

    def __init__(
        self,
        sandbox: Sandbox,
        kept: KeptFiles | None = None,
        *,
        network: bool = False,
        allow_hosts: tuple[str, ...] = (),
        bounds: Bounds | None = None,
        env_files: bool = False,
    ) -> None:
        self._sandbox, self.kept = sandbox, kept
        self._network, self._allow_hosts = network, allow_hosts
        self._bounds, self._env_files = bounds or Bounds(), env_files
        if network:
            hosts = ", ".join(allow_hosts) or "public hosts"
            said = self.spec.description.replace("there is no network", f"the network reaches only {hosts}")
            self.spec = replace(self.spec, description=said)

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return classify_command(parse_command(str(arguments.get("command", ""))), "")[0]

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        parts = parse_command(parsed.arguments["command"])
        folder, in_sandbox = parsed.arguments.get("folder", ""), tier != "full"
        safety, why = classify_command(parts, os.path.realpath(workspace), folder, in_sandbox=in_sandbox)
        moves = safety != "safe" or any(part.name == "cd" for part in parts)
        return Assessment(safety, why, render_commands(parts), affects_later_calls=moves)

    def resolve_call(self, parsed: ParsedArguments, notes: Mapping[str, Json]) -> tuple[Tool, ParsedArguments]:
        """The command in the folder where the last one ended: that is shown with it, and a yes holds for it there."""
        folder = str(notes.get(FOLDER_NOTE) or "")
        values = {**parsed.arguments, "folder": folder} if folder else parsed.arguments
        return self, ParsedArguments(values, values)

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        if tier == "full" or self._network:
            strangers = self._network and not self._allow_hosts
            return frozenset(("private", "way_out", "untrusted") if strangers else ("private", "way_out"))
        return frozenset(("private",))

    def describe_sandbox(self, tier: Tier) -> str:
        return "none" if tier == "full" else self._sandbox.probe().level

    def parse(self, arguments: str) -> ParsedArguments:
        asked = decode_arguments(self.name, arguments, _Asked, strict=False)
        if not asked.command.strip():
            raise ToolInputError("shell: the command is empty.")
        if "\0" in asked.command or len(asked.command) > _MOST_CHARACTERS:
            raise ToolInputError(
                f"shell: a command holds no NUL and at most {_MOST_CHARACTERS} characters. Put the rest into a file."
            )
        if not 0 < asked.timeout_s <= MAX_TIMEOUT:
            raise ToolInputError(f"shell: timeout_s is more than 0 and at most {MAX_TIMEOUT:g}.")
        values: dict[str, Json] = {"command": asked.command, "timeout_s": asked.timeout_s}
        return ParsedArguments(values, values)

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        command, bounds = parsed.arguments["command"], replace(self._bounds, wall_s=parsed.arguments["timeout_s"])
        workspace = _real(context.workspace)
        folder = await _starting_folder(parsed.arguments.get("folder", ""), context, workspace)
        output = _Output(context)
        reads = classify_command(parse_command(command), str(workspace), folder)[0] == "safe"
        job = Job(
            argv=("bash", "-c", output.reporting(command)),
            workspace=workspace,
            cwd=folder,
            network=self._network,
            allow_hosts=self._allow_hosts,
            bounds=bounds,
            read_only=tuple(folder for folder in self.readable_folders if folder.is_dir()),
            show_env_files=self._env_files,
            writable=not reads,  # should it do more than it was judged by, it cannot
        )
        try:
            async with (
                record_changes(self.kept, context) if self.kept and not reads else contextlib.nullcontext() as taken
            ):
                if context.tier == "full":
                    ended = await self._sandbox.run_on_host(job, output.feed)
                else:
                    ended = await self._sandbox.run_in_sandbox(job, output.feed)
        except SandboxUnavailable as error:
            raise ToolError(str(error)) from None
        said = [await _moved(context, workspace, folder, output.finish()), _ending(ended, bounds)]
        said.append(_instructed(taken.left if taken is not None else ()))
        text = "\n".join([output.text.rstrip("\n"), *(f"[{one}]" for one in said if one)]).lstrip("\n")
        return ToolResult(text or "[no output]", ok=ended.code == 0, timed_out=ended.reason == "wall")


def _real(path: Path) -> Path:
    return path.resolve()


async def _starting_folder(folder: str, context: ToolContext, workspace: Path) -> str:
    """The folder that was judged, and no other: what was meant for one that is gone would hit something else."""
    place = workspace / folder
    if folder and (place.resolve() != place or not place.is_relative_to(workspace) or not place.is_dir()):
        await context.services.save_note(FOLDER_NOTE, "")
        raise ToolError(
            f"Not run: the folder {folder}, in which the last command ended, is gone. "
            "The next command starts in the workspace itself."
        )
    return folder


async def _moved(context: ToolContext, workspace: Path, before: str, ended_in: str) -> str:
    """Keep the folder that a command ended in; a word when it changed."""
    if not ended_in:
        return ""
    place, shown = Path(ended_in), os.fsencode(ended_in).decode("utf-8", "replace")
    inside = place.is_relative_to(workspace)
    folder = str(place.relative_to(workspace)) if inside and place != workspace and shown == ended_in else ""
    if folder != before:
        await context.services.save_note(FOLDER_NOTE, folder)
    if not inside or shown != ended_in:
        why = "has a name that is not UTF-8" if inside else "is outside the workspace"
        return f"{shown} {why}: the next command starts in the workspace again"
    return f"now in {folder or 'the workspace'}" if folder != before else ""


def _instructed(changed: Iterable[str]) -> str:
    """A word about changed files that speak to agents or programs of later days: no command says all that it writes."""
    files = sorted(filter(is_instruction_path, changed))
    if not files:
        return ""
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return (
        f"it changed {', '.join(files[:_NAMED])}{more}, which tells agents, editors or build services what to do: "
        "say so to the user"
    )


def _ending(ended: CommandResult, bounds: Bounds) -> str:
    match ended.reason:
        case "exited":
            return f"exit code {ended.code}" if ended.code else ""
        case "signalled":
            return f"ended by signal {ended.signal}"
        case "wall":
            return f"stopped after {bounds.wall_s:g} s, with all it had started. It may have had effects"
        case reason:
            return f"stopped: {_OVER[reason].format(bounds=bounds)}"


class _Output:
    """What a command writes, as text, as it comes. At its end bash tells the folder it is in; that is taken out."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._mark = b"\0" + os.urandom(16).hex().encode() + b"\0"
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = b""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def reporting(self, command: str) -> str:
        """The command, in one line with what reports the folder, so that bash counts lines as its author does."""
        mark = self._mark.strip(b"\0").decode()
        report = f'printf "\\0%s\\0%s\\0" {mark} "$(pwd -P)" >&"$treadle_out"'
        return f"exec {{treadle_out}}>&1; trap {shlex.quote(report)} EXIT; eval {shlex.quote(command)}"

    def feed(self, data: bytes) -> None:
        self._held += data
        at = self._held.find(self._mark)
        if at < 0:
            at = self._begun()
        data, self._held = self._held[:at], self._held[at:]
        self._tell(self._decode(data))

    def finish(self) -> str:
        """Pass on what is left, without the report; the folder that was reported, or nothing."""
        folder, rest = b"", self._held
        if rest.startswith(self._mark):
            folder, _, rest = rest[len(self._mark) :].partition(b"\0")
        self._tell(self._decode(rest, final=True))
        return os.fsdecode(folder)

    def _begun(self) -> int:
        """Where a mark may have begun whose end has not come yet."""
        for size in range(min(len(self._mark) - 1, len(self._held)), 0, -1):
            if self._held.endswith(self._mark[:size]):
                return len(self._held) - size
        return len(self._held)

    def _tell(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._context.output(text)
