"""Command hooks: programs of the user as middleware. Each reads JSON on stdin and prints a verdict as JSON.

A hook can make the policy's verdict stricter, never weaker. A hook that fails denies, unless its configuration says
otherwise, and never ends or stops a run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.app.hook_process import HookFailed, HookOutput, run_hook_command
from treadle.app.hook_settings import CommandHook
from treadle.app.settings import Settings
from treadle.app.workspace_hooks import Trust, check_trust, describe_trust, list_trust_folders, read_workspace_hooks
from treadle.engine.hook_points import MAX_NOTE_LENGTH, shorten_note
from treadle.engine.hook_result import HookCall, HookPoint, HookResult, HookSession
from treadle.engine.setup import MessageRefused, Middleware
from treadle.errors import BadInput
from treadle.events import CallFinished, RunFinished
from treadle.messages import Json, Part, TextPart, is_attached, render_parts
from treadle.secrets.keyring import Keyring

_MAX_NAME = 60
_MAX_ERROR = 500
MAX_REASON_LENGTH = 2000
_logger = logging.getLogger("treadle")


class _BeforeTool(Struct, forbid_unknown_fields=True):
    decision: Literal["", "ask", "deny"] = ""
    reason: str = ""


class _AfterTool(Struct, forbid_unknown_fields=True):
    note: str = ""


class _Prompt(Struct, forbid_unknown_fields=True):
    decision: Literal["", "deny"] = ""
    reason: str = ""
    note: str = ""


class _RunEnd(Struct, forbid_unknown_fields=True):
    decision: Literal["", "continue"] = ""
    reason: str = ""


_VERDICTS: dict[HookPoint, type[Struct]] = {
    "before_tool": _BeforeTool,
    "after_tool": _AfterTool,
    "prompt": _Prompt,
    "run_end": _RunEnd,
}
"""What a hook may say at each point."""


class LoadedHook(Struct, frozen=True):
    """A hook and the point at which it runs. A hook of a workspace has the trust in it and the digest of its text."""

    point: HookPoint
    hook: CommandHook
    trust: Trust = "trusted"
    digest: str = ""

    @property
    def origin(self) -> Literal["user", "workspace"]:
        """Who wrote the hook."""
        return "workspace" if self.digest else "user"

    @property
    def name(self) -> str:
        """The beginning of the command, for messages."""
        command = " ".join(self.hook.command.split())
        return f"{command[:_MAX_NAME]}…" if len(command) > _MAX_NAME else command


def load_hooks(settings: Settings) -> tuple[list[LoadedHook], str]:
    """Load the hooks of the user and of the workspace, trusted or not, and a note on those that do not run."""
    loaded = [LoadedHook(point, hook) for point, hook in settings.hooks.list_all()]
    try:
        found = read_workspace_hooks(settings.folder)
        if found is None:
            return loaded, ""
        trust = check_trust(found, list_trust_folders(settings))
        loaded += [LoadedHook(point, hook, trust, found.digest) for point, hook in found.parse().list_all()]
    except BadInput as error:
        return loaded, f"the hooks of the workspace are not run: {error}"
    return loaded, "" if trust == "trusted" else describe_trust(settings.folder, trust)


def build_command_hooks(settings: Settings, keyring: Keyring | None = None) -> tuple[list[Middleware], str]:
    """Build the middleware that runs the hooks, if there are any that may run, and a note on those that may not."""
    loaded, note = load_hooks(settings)
    may_run = [one for one in loaded if one.trust == "trusted"]
    return [CommandHooks(may_run, settings, keyring or Keyring())] if may_run else [], note


class CommandHooks(Middleware):
    """Runs the hooks of a configuration."""

    def __init__(self, hooks: Sequence[LoadedHook], settings: Settings, keyring: Keyring) -> None:
        self._hooks, self._workspace, self._keyring = tuple(hooks), settings.folder, keyring
        self._trust_folders = list_trust_folders(settings)

    async def on_user_message(self, session_id: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """Ask the hooks about a message. Their notes go with it, marked as text that its sender did not write."""
        text = render_parts(tuple(part for part in parts if not is_attached(part)))
        about = {"session_id": session_id, "workspace": str(self._workspace), "text": text}
        result = await self._run_hooks("prompt", "", about)
        if result is None:
            return parts
        if result.decision == "deny":
            raise MessageRefused(f"the message was not sent: {result.reason or 'a hook refused it'}")
        if not result.note.strip():
            return parts
        return (*parts, TextPart(f"A program of the user, which reads each message, notes:\n\n{result.note}", "hook"))

    async def before_tool(self, call: HookCall) -> HookResult | None:
        """Ask the hooks about a call."""
        return await self._run_hooks("before_tool", call.tool, _describe_call(call))

    async def after_tool(self, call: HookCall, result: CallFinished) -> HookResult | None:
        """Tell the hooks about the result of a call."""
        about = {**_describe_call(call), "status": result.status, "output": result.output}
        return await self._run_hooks("after_tool", call.tool, about)

    async def on_run_end(self, session: HookSession, end: RunFinished) -> HookResult | None:
        """Tell the hooks that a run ends."""
        about = {"run_id": end.run_id, "reason": end.reason, "answer": end.answer, "error": end.error}
        return await self._run_hooks("run_end", "", {**_describe_session(session), **about})

    async def _run_hooks(self, point: HookPoint, tool: str, about: Mapping[str, Json]) -> HookResult | None:
        """Run the hooks of a point that match, one after another, up to one that denies. None if there are none."""
        result: HookResult | None = None
        for one in self._hooks:
            if one.point != point or not any(fnmatchcase(tool, pattern) for pattern in one.hook.tools):
                continue
            said = await self._run_hook(one, about)
            result = result.merge(said) if result is not None else said
            if result.decision == "deny":
                break
        return result

    async def _run_hook(self, one: LoadedHook, about: Mapping[str, Json]) -> HookResult:
        redact, hook = self._keyring.redactor.redact_text, one.hook
        workspaces = (Path(str(about["workspace"])), self._workspace)  # they differ for a helper in a worktree
        try:
            for folder in dict.fromkeys(workspaces) if one.digest else ():
                self._check_trust(folder, one.digest)
            given = json.dumps({"event": one.point, **about}, ensure_ascii=False, separators=(",", ":"))
            # A lone surrogate is no UTF-8. Its escape with a backslash is the one that JSON has for it.
            told = f"{given}\n".encode("utf-8", "backslashreplace")
            output = await run_hook_command(hook.command, told, workspaces, hook.timeout)
            said = read_verdict(one.point, output, redact(output.out.decode("utf-8", "replace")))
            return replace(said, reason=redact(said.reason), note=redact(said.note))  # JSON can spell a secret as \\u…
        except (HookFailed, OSError) as error:
            failure = redact(f"the hook `{one.name}` failed: {error}")
        if hook.on_failure == "deny" and one.point in ("before_tool", "prompt"):
            return HookResult("deny", failure, failures=(failure,))
        if one.point == "prompt":  # the message is not stored yet, so no fact can hold it
            _logger.warning("%s", failure)
        return HookResult(failures=(failure,))

    def _check_trust(self, folder: Path, digest: str) -> None:
        """Check that the text of the hooks in a folder is the one that was loaded, and that it is trusted."""
        try:
            found = read_workspace_hooks(folder)
        except BadInput as error:
            raise HookFailed(str(error)) from None
        if found is None or found.digest != digest or check_trust(found, self._trust_folders) != "trusted":
            raise HookFailed(f"the hooks in {folder} are not those that this session started with; see `treadle hooks`")


def read_verdict(point: HookPoint, output: HookOutput, out: str) -> HookResult:
    """Read what a hook printed; raises `HookFailed`. Nothing means that it has nothing to say."""
    if output.code:
        said = output.error.decode("utf-8", "replace").strip()[-_MAX_ERROR:]
        raise HookFailed(f"exit code {output.code}{f': {said}' if said else ''}")
    if not out.strip():
        return HookResult()
    try:
        verdict = msgspec.json.decode(out, type=_VERDICTS[point])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        why = shorten_note(str(error), _MAX_ERROR)  # it quotes what the hook printed
        raise HookFailed(f"what it printed is no verdict for {point} ({why}): {out.strip()[:200]!r}") from None
    said = HookResult(**msgspec.structs.asdict(verdict))
    limit = MAX_NOTE_LENGTH if point == "run_end" else MAX_REASON_LENGTH  # this reason is a note for the model
    return replace(said, reason=shorten_note(said.reason, limit), note=shorten_note(said.note))


def _describe_call(call: HookCall) -> dict[str, Json]:
    about = {"call_id": call.call_id, "tool": call.tool, "safety": call.safety, "arguments": call.arguments}
    return {**_describe_session(call.session), **about}


def _describe_session(session: HookSession) -> dict[str, Json]:
    return {"session_id": session.id, "workspace": session.workspace, "parent": session.parent}
