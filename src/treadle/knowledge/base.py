"""The knowledge port: text that a session gets besides its agent's instructions. It says nothing about permissions.

Text of a workspace is less trusted than the user's. It is framed as such, and it never grants a right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from treadle.engine.context import Attachments
from treadle.errors import NotFound
from treadle.memory.base import Memories

Origin = Literal["builtin", "user", "workspace"]


class Problem(Struct, frozen=True):
    """A mistake in a file that people wrote, and its line."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        path = "".join(letter if letter.isprintable() else "?" for letter in self.path)  # terminals show it
        return f"{path}:{self.line}: {self.message}"


class Skill(Struct, frozen=True):
    """A skill from its SKILL.md. The prompt always has its name and description, and `body` when it is needed."""

    name: str
    description: str
    body: str
    folder: str
    origin: Origin = "user"
    keywords: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    always: bool = False
    enabled: bool = True


class SkillProposal(Struct, frozen=True):
    """A drafted skill: its future path, its text, and the difference to the present file. `why` it was drafted."""

    name: str
    path: str
    text: str
    diff: str
    description: str = ""
    why: str = ""
    created_at: float = 0.0


class Preamble(Struct, frozen=True):
    """The text that follows an agent's instructions, and the `data_flow.SOURCES` that it is made of."""

    text: str = ""
    sources: tuple[str, ...] = ()


class Proposals(ABC):
    """The drafted skills that wait for a person.

    A decision raises `NotFound` for a name that was never proposed, and `Conflict` for one that was decided already.
    """

    @abstractmethod
    def list(self) -> list[SkillProposal]:
        """List the proposals that wait for a person."""

    @abstractmethod
    def accept(self, name: str) -> Path:
        """Make a proposed skill one of the user's own, and return its path."""

    @abstractmethod
    def decline(self, name: str) -> None:
        """Decline a proposal. The same skill is not drafted again."""


class Knowledge(ABC):
    """The knowledge of a workspace. The same files give the same text, to the byte.

    `window` is the size of the model's context in tokens, if known. Text that others wrote must not fill it.
    `proposals` is None where no skills are drafted.
    """

    proposals: Proposals | None = None

    @abstractmethod
    async def build_preamble(
        self, workspace: Path, memories: Memories, before: float, window: int | None = None
    ) -> Preamble:
        """Build the text that follows the agent's instructions, from memories older than `before`."""

    @abstractmethod
    def build_attachments(self, workspace: Path, window: int | None = None) -> Attachments:
        """Build the object that adds text to a message or a result that needs it."""

    @abstractmethod
    def load_skills(self, workspace: Path) -> Mapping[str, Skill]:
        """Load the skills of a workspace and its user, by name."""

    @abstractmethod
    def read_resource(self, skill: Skill, path: str) -> str:
        """Read a file in a skill's folder; raises `NotFound`. An empty path lists the files."""

    def allows_web(self, workspace: Path) -> bool:
        """Whether the project in a workspace leaves the web tools switched on."""
        return True

    def describe_agents(self, workspace: Path) -> Mapping[str, str]:
        """Return the descriptions of the agents of a workspace and its user, by name."""
        return {}

    def enable_skill(self, name: str, *, on: bool) -> None:
        """Enable or disable a skill for this user in every workspace; raises `NotFound` when that is not possible."""
        raise NotFound(f"the skill {name!r} cannot be switched on or off here")
