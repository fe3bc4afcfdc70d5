"""The knowledge port: what a session is told besides its agent's instructions. It says nothing about what may run.

Text of a workspace is of lower trust than the user's: it is framed as such, and no right ever comes from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.engine.context import Attachments
from treadle.memory.base import Memories

Origin = Literal["builtin", "user", "workspace"]


class Problem(Struct, frozen=True):
    """What is wrong with a file that people wrote, and where."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        path = "".join(letter if letter.isprintable() else "?" for letter in self.path)  # it goes to terminals
        return f"{path}:{self.line}: {self.message}"


class Skill(Struct, frozen=True):
    """A skill as its SKILL.md has it. Only name and description are always shown, `body` when it is called for."""

    name: str
    description: str
    body: str
    folder: str
    origin: Origin = "user"
    keywords: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    always: bool = False
    enabled: bool = True


class Knowledge(ABC):
    """What is known in a workspace. The same files give the same text, to the byte.

    `window` is the model's, in tokens, where it is known: what others wrote must not fill it.
    """

    @abstractmethod
    async def build_preamble(
        self, workspace: Path, memories: Memories, before: float, window: int | None = None
    ) -> str:
        """What goes with the agent's instructions, of what was there `before` the session began."""

    @abstractmethod
    def build_attachments(self, workspace: Path, window: int | None = None) -> Attachments:
        """What is shown with a message or a result once it is called for."""

    @abstractmethod
    def load_skills(self, workspace: Path) -> Mapping[str, Skill]:
        """The skills that can be used, by name."""

    @abstractmethod
    def read_resource(self, skill: Skill, path: str) -> str:
        """A file in a skill's folder; raises `NotFound`. An empty path lists what is there."""
