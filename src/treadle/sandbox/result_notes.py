"""What is told after a command: the hosts that it did not reach, and what of its work in git was not kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.sandbox.base import GitReport

_MAX_NOTES = 8
_MAX_NAMED_HOSTS = 3
_MAX_CHARACTERS = 400


def describe_refused(hosts: Mapping[str, str]) -> str:
    """Say which hosts a command did not reach, and why."""
    named = [f"{host} was not reached: {why}" for host, why in list(hosts.items())[:_MAX_NAMED_HOSTS]]
    more = len(hosts) - _MAX_NAMED_HOSTS
    return " ".join([*named, *([f"{more} more hosts were not reached."] if more > 0 else [])])


def list_git_notes(reports: Iterable[GitReport]) -> list[str]:
    """List sentences on what of a command's work in git was rejected, each with its repository."""
    notes = [
        f"git{f' in {_show(report.repository)}' if report.repository else ''}: {_show(sentence)}"
        for report in reports
        for sentence in report.rejected
    ]
    more = len(notes) - _MAX_NOTES
    return [*notes[:_MAX_NOTES], *([f"git: {more} more changes were not kept"] if more > 0 else [])]


def _show(text: str) -> str:
    """Make a text fit to show: a command chose the names in it."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:_MAX_CHARACTERS])
