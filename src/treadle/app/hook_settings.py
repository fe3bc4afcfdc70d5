"""The hooks that a configuration names: programs that treadle starts around calls, on messages and at a run's end.

Values only. `command_hooks.py` runs them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.engine.hook_result import HookPoint

MAX_TIMEOUT = 600.0


class CommandHook(Struct, frozen=True, forbid_unknown_fields=True):
    """One hook: a command for `/bin/sh`, the names of the tools that it is for, and its time limit in seconds.

    `on_failure` says what a failure before a tool, or on a message, means.
    """

    command: str
    tools: tuple[str, ...] = ("*",)
    timeout: float = 30.0
    on_failure: Literal["deny", "ignore"] = "deny"

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise ValueError("command is empty; name the program to start")
        if "\0" in self.command:
            raise ValueError("command has a NUL character, which no command can have; remove it")
        if not 0 < self.timeout <= MAX_TIMEOUT:
            raise ValueError(f"timeout is {self.timeout:g}; it must be more than 0 and at most {MAX_TIMEOUT:g} seconds")
        if bad := [name for name in self.tools if "(" in name]:
            raise ValueError(f"tools has {bad[0]!r}; write names such as shell or edit_*: the hook reads the arguments")


class HookSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[hooks]`: the hooks of each point, in the order in which they run."""

    before_tool: tuple[CommandHook, ...] = ()
    after_tool: tuple[CommandHook, ...] = ()
    prompt: tuple[CommandHook, ...] = ()
    run_end: tuple[CommandHook, ...] = ()

    def __post_init__(self) -> None:
        if any(hook.tools != ("*",) for hook in (*self.prompt, *self.run_end)):
            raise ValueError("tools is only for before_tool and after_tool")

    def list_all(self) -> list[tuple[HookPoint, CommandHook]]:
        """List the hooks with their points."""
        points: dict[HookPoint, tuple[CommandHook, ...]] = {
            "before_tool": self.before_tool,
            "after_tool": self.after_tool,
            "prompt": self.prompt,
            "run_end": self.run_end,
        }
        return [(point, hook) for point, hooks in points.items() for hook in hooks]
