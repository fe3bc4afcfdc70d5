"""The calls of a run on the screen: those under way, the chain that may be folded, and what Ctrl-O unfolds."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import cast

from treadle import events
from treadle.cli.console import Console, escape_controls
from treadle.cli.draw.calls import (
    CHAIN_CALLS,
    NOT_FOLDED,
    OUTPUT_LINES,
    OWN_LINES,
    RunningCall,
    describe_call,
    is_denied,
    list_plan_steps,
    render_call,
    render_chain,
    render_running,
    summarize_arguments,
)
from treadle.cli.draw.glyphs import Theme
from treadle.messages import Call, Json

MAX_OUTPUT = 8_000
"""Characters at the end of the output of a running call that are kept."""

MAX_FOLDED = 20
"""Folded texts that Ctrl-O can still show."""

MAX_STARTED = 6
"""Running calls that are drawn."""


class CallList:
    """Shows the calls of a run. Finished calls that only read wait in the open block, until the chain of them ends."""

    def __init__(self, theme: Theme, prefix: str = "") -> None:
        self.running: dict[str, RunningCall] = {}
        self.plan: list[tuple[str, str]] = []
        self.folded: deque[str] = deque(maxlen=MAX_FOLDED)
        """What was folded or cut and not shown since, in full."""
        self.is_own_command = False
        """Whether the user runs the command: then they want to read more of its output."""
        self.denied_here: set[str] = set()
        """The calls that the user denied here. The line of their answer says it."""
        self._theme, self._prefix = theme, prefix
        self._arguments: dict[str, dict[str, Json]] = {}
        self._safe: set[str] = set()
        self._chain: list[tuple[events.CallFinished, Mapping[str, Json]]] = []
        self._after_diff = False

    def note_requests(self, calls: tuple[Call, ...]) -> None:
        """Remember the arguments of calls that the model asks for: those that are denied never start."""
        for call in calls:
            try:
                arguments: object = json.loads(call.arguments)
            except ValueError:
                arguments = None
            self._arguments[call.id] = cast("dict[str, Json]", arguments) if isinstance(arguments, dict) else {}

    def start(self, fact: events.CallStarted) -> str:
        """Add a call that starts. Return the words for it."""
        since = time.monotonic() - max(0.0, time.time() - fact.at) if fact.at else time.monotonic()
        self._arguments[fact.call_id] = fact.arguments
        self.running[fact.call_id] = RunningCall(fact, since)
        if fact.safety == "safe":
            self._safe.add(fact.call_id)
        return escape_controls(f"{fact.tool} {summarize_arguments(fact.tool, fact.arguments)}".strip())

    def add_output(self, call_id: str, text: str, *, is_step: bool = False) -> None:
        """Add output of a running call, or a step of its helper."""
        call = self.running.get(call_id)
        if call is None:
            return
        if is_step:
            call.add_step(text)
        else:
            call.output = (call.output + text)[-MAX_OUTPUT:]

    def finish(self, fact: events.CallFinished, console: Console) -> None:
        """Show a call that has finished. One that only read and went well may become part of a chain."""
        self.running.pop(fact.call_id, None)
        arguments = self._arguments.pop(fact.call_id, {})
        is_safe = fact.call_id in self._safe
        self._safe.discard(fact.call_id)
        if fact.status == "ok" and (steps := list_plan_steps(fact.tool, arguments)):
            self.plan = steps
        if self._theme.has_style and is_safe and fact.status == "ok" and fact.tool not in NOT_FOLDED:
            self._chain.append((fact, arguments))
            return
        self.end_chain(console)
        if not (fact.call_id in self.denied_here and is_denied(fact)):
            self._write(fact, arguments, console)

    def end_chain(self, console: Console) -> None:
        """Write the chain to the scrollback: as one line from three calls on."""
        chain, self._chain = self._chain, []
        if not chain:
            return
        console.set_open_block(())
        width = console.width
        if len(chain) < CHAIN_CALLS:
            for fact, arguments in chain:
                self._write(fact, arguments, console)
            return
        line = render_chain([fact for fact, _ in chain], width, self._theme)
        console.write_block(line, "call", gap=True if self._after_diff else None)
        self._after_diff = False
        whole = [render_call(fact, arguments, width, self._theme) for fact, arguments in chain]
        self.folded.append("\n".join(line for lines in whole for line in lines))

    def draw_open(self, width: int) -> list[str]:
        """Return the lines of the open chain and of the running calls."""
        if not self._theme.has_style:
            return []
        lines = [line for fact, arguments in self._chain for line in render_call(fact, arguments, width, self._theme)]
        now = time.monotonic()
        for call in list(self.running.values())[:MAX_STARTED]:
            lines += render_running(call, now, width, self._theme)
        return lines

    def clear(self) -> None:
        """Forget the calls of a run that has ended."""
        self.running.clear()
        self._safe.clear()
        self.denied_here.clear()
        self.plan = []

    def drop_chain(self) -> None:
        """Forget finished calls that are not written yet: somebody else has shown them."""
        self._chain = []

    def _write(self, fact: events.CallFinished, arguments: Mapping[str, Json], console: Console) -> None:
        if not self._theme.has_style:
            console.write_block(f"{self._prefix}{describe_call(fact, arguments)}", "call")
            return
        count = OWN_LINES if self.is_own_command else OUTPUT_LINES
        lines = render_call(fact, arguments, console.width, self._theme, count=count)
        whole = render_call(fact, arguments, console.width, self._theme, whole=True)
        if whole != lines:
            self.folded.append("\n".join(whole))
        console.write_block("\n".join(lines), "call", gap=True if self._after_diff else None)
        self._after_diff = fact.status == "ok" and len(lines) > 1 and fact.tool not in ("shell", "bash")
