"""`current_time`: the date and time here or in another time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from treadle.tools.base import ToolError
from treadle.tools.function import tool

_OFFSET = re.compile(r"(?:UTC|GMT)?\s*([-+])(\d{1,2})(?::?([0-5]\d))?", re.IGNORECASE)


@tool(
    safety="safe",
    timeout=10,
    polling=True,
    examples=[
        ("What time is it?", {}),
        ("What is the date today?", {}),
        ("Tell me the current time", {}),
        ("Which day is it?", {}),
    ],
)
def current_time(zone: str = "") -> str:
    """Tell the date and the time. Example: {"zone": "+09:00"}.

    Args:
        zone: a time zone such as `Europe/Paris`, `UTC` or `+02:00`; empty for the one of this machine
    """
    return format_moment(datetime.now(UTC), zone)


def format_moment(moment: datetime, zone: str = "") -> str:
    """A moment in words and digits, in a zone; raises `ToolError` when there is no such zone."""
    there = moment.astimezone(_zone(zone.strip()) if zone.strip() else None)
    offset, name = there.strftime("%z"), there.tzname() or ""
    away = f"UTC{offset[:3]}:{offset[3:5]}"
    return f"{there:%A} {there:%Y-%m-%d %H:%M:%S} {f'{name} ({away})' if name.isalpha() else away}"


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, available_timezones

    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if offset := _OFFSET.fullmatch(name):
        away = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        if away < timedelta(hours=24):
            return timezone(away if offset[1] == "+" else -away)
    wanted = name.replace(" ", "_").lower()
    for known in available_timezones():
        if wanted == known.lower():
            return ZoneInfo(known)
    raise ToolError(f"There is no time zone {name!r}.{_nearest(wanted)} Give one such as Europe/Paris, UTC or +02:00.")


def _nearest(wanted: str) -> str:
    """Zones that may have been meant: those of that city, or of a name much like it."""
    import difflib
    from zoneinfo import available_timezones

    names = sorted(available_timezones())
    cities = {name.lower(): name for name in names} | {name.lower().rpartition("/")[2]: name for name in names}
    close = difflib.get_close_matches(wanted.rpartition("/")[2], cities, n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(dict.fromkeys(cities[name] for name in close))}?" if close else ""
