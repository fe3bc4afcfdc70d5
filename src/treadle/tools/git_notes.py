"""What the model is told about the repositories that a command worked in: only what was not kept, and why."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.sandbox.base import GitReport

_MAX_NOTES = 8
_MAX_CHARACTERS = 400


def list_git_notes(reports: Iterable[GitReport]) -> list[str]:
    """List sentences on what of a command's work in git was rejected, each with its repository."""
    notes = [
        f"git{f' in {_show(report.repository)}' if report.repository else ''}: {_show(sentence)}"
        for report in reports
        for sentence in report.rejected
    ]
    more = len(notes) - _MAX_NOTES
    return [*notes[:_MAX_NOTES], *([f"git: {more} more sentences of this kind were left out"] if more > 0 else [])]


def _show(text: str) -> str:
    """Make a text fit to show: a command chose the names in it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:_MAX_CHARACTERS])
