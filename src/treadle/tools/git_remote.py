"""`git_remote`: push, fetch, pull and clone, outside the sandbox with the user's own credentials.

A person is asked for each, and sees host, remote, branch and commits. The agent sees no credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from treadle.events import Safety, Tier
from treadle.messages import Json, ToolSpec
from treadle.permissions.data_flow import Trait
from treadle.permissions.policy import Assessment
from treadle.sandbox.base import Sandbox
from treadle.sandbox.host_git import EXCHANGE_BOUNDS
from treadle.tools.base import Arguments, ParsedArguments, Tool, ToolContext, ToolError, ToolInputError, ToolResult
from treadle.tools.git_command import render_git_commands
from treadle.tools.git_plan import RemoteAction, RemotePlan, RemoteRequest, make_plan
from treadle.tools.git_transfer import RemoteTransfer
from treadle.workspace.worker_threads import run_in_thread

_CHANGED = (
    "Not run: the repository, its remote or the branch has changed since this was approved. If you still need it, call "
    "it again: a person is then asked again."
)


class _Arguments(Arguments):
    action: Annotated[RemoteAction, Meta(description="what to do; pull is fetch and a fast-forward")]
    remote: Annotated[
        str, Meta(description="name of a remote of the repository (default: the branch's, or origin)")
    ] = ""
    branch: Annotated[
        str, Meta(description="push: the branch or tag to send (default: the current one); fetch, clone: only this one")
    ] = ""
    url: Annotated[str, Meta(description="clone: the address, https:// or git@host:path, without a password")] = ""
    folder: Annotated[str, Meta(description="folder of the repository in the workspace; clone: the new folder")] = ""
    tags: Annotated[bool, Meta(description="push or fetch all tags, too")] = False
    prune: Annotated[bool, Meta(description="fetch: forget branches that the remote has deleted")] = False
    rebase: Annotated[bool, Meta(description="pull: rebase the branch instead of a fast-forward")] = False
    set_upstream: Annotated[bool, Meta(description="push: let the branch follow the remote's")] = False
    force_with_lease: Annotated[
        bool, Meta(description="push: replace the remote's commits, if they are the last fetched ones")
    ] = False
    depth: Annotated[int, Meta(description="clone: only so many commits (default: all)")] = 0


class GitRemote(Tool):
    """Talks to remote repositories. `sandbox` is where the files of a clone are checked out."""

    timeout = EXCHANGE_BOUNDS.wall_s + 60
    on_error = "tell"  # a push that failed may have had an effect, so it is never repeated by itself
    ends_when_cancelled = True
    decided_after = ("shell",)
    spec = ToolSpec(
        name="git_remote",
        description=(
            "Push, fetch, pull or clone a git repository with the user's own credentials. A person is asked first. "
            "Everything else of git works in the shell, and a plain `git push`, `git fetch`, `git pull` or `git clone` "
            'there comes here. Example: {"action": "push", "branch": "main"}.'
        ),
        parameters=_Arguments.build_schema(),
        examples=(
            ("push my branch", {"action": "push"}),
            ("get what is new on the server", {"action": "fetch"}),
            ("clone the repository", {"action": "clone", "url": "https://git.example.org/team/app.git"}),
        ),
    )

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def assess_safety(self, arguments: Mapping[str, Json]) -> Safety:
        return "destructive"

    def assess(self, parsed: ParsedArguments, workspace: Path, tier: Tier = "sandbox") -> Assessment:
        arguments = parsed.arguments
        is_push, plan = arguments["action"] == "push", parsed.values.get("plan")
        return Assessment(
            "destructive",
            plan.why if isinstance(plan, RemotePlan) else "it talks to another machine with the user's own credentials",
            asks_each_time=bool(arguments.get("force_with_lease")),
            affects_later_calls=True,
            traits=frozenset(("private",)) if is_push else frozenset(),
            address=arguments.get("url", "") if arguments["action"] == "clone" else "",
            same_as=render_git_commands(arguments),
        )

    def list_traits(self, tier: Tier) -> frozenset[Trait]:
        return frozenset(("untrusted", "way_out"))

    def parse(self, arguments: str) -> ParsedArguments:
        return _Arguments.decode(self.name, arguments)

    async def bind_call(self, parsed: ParsedArguments, workspace: Path, tier: Tier) -> tuple[Tool, ParsedArguments]:
        """Add the address, the branch and the commits, so that they are shown, and an approval holds for them."""
        plan = await run_in_thread(make_plan, _read_request(parsed.arguments), workspace)
        return self, ParsedArguments(plan.shown, {**plan.shown, "plan": plan})

    async def run(self, parsed: ParsedArguments, context: ToolContext) -> object:
        try:
            plan = await run_in_thread(make_plan, _read_request(parsed.arguments), context.workspace)
        except ToolInputError as error:
            raise ToolError(str(error)) from None
        if "operation" in parsed.arguments and plan.shown != parsed.arguments:
            raise ToolError(_CHANGED)
        await context.services.check_claim()
        context.progress(str(plan.shown["operation"]))
        ended = await RemoteTransfer(plan, context.workspace, self._sandbox).run()
        return ToolResult("\n".join(line for line in ended.lines if line), ok=ended.ok)


def _read_request(arguments: Mapping[str, Json]) -> RemoteRequest:
    """Read what was asked for, from the model's arguments or from those that a person saw."""
    known = {name: value for name, value in arguments.items() if name in RemoteRequest.__struct_fields__}
    try:
        return msgspec.convert(known, RemoteRequest)
    except msgspec.ValidationError as error:
        raise ToolInputError(f"The arguments of git_remote do not fit: {error}.") from None
