"""The rows of the terminal's pickers: models, agents and sessions.

It gathers what can be picked, and says of the rest why not. It draws nothing.
"""

from msgspec import Struct


class PickerRow(Struct, frozen=True):
    """One thing that a person can pick."""

    value: str
    """What the pick returns."""
    label: str
    facts: tuple[str, ...] = ()
    """From the most to the least important. A narrow terminal drops them from the end."""
    passage: str = ""
    """Shown below the list for the picked row."""
    problem: str = ""
    """Why it is not reachable, and what to do. Such rows come last."""
