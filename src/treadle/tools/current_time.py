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
    """Write a moment with its weekday, in a time zone; raises `ToolError` when there is no such zone."""
    there = moment.astimezone(_find_zone(zone.strip()) if zone.strip() else None)
    offset, name = there.strftime("%z"), there.tzname() or ""
    distance = f"UTC{offset[:3]}:{offset[3:5]}"
    return f"{there:%A} {there:%Y-%m-%d %H:%M:%S} {f'{name} ({distance})' if name.isalpha() else distance}"


def _find_zone(name: str) -> tzinfo:
    import difflib
    from zoneinfo import ZoneInfo, available_timezones

    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    if offset := _OFFSET.fullmatch(name):
        distance = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        if distance < timedelta(hours=24):
            return timezone(distance if offset[1] == "+" else -distance)
    wanted = name.replace(" ", "_").lower()
    zones = sorted(available_timezones())
    for zone in zones:
        if wanted == zone.lower():
            return ZoneInfo(zone)
    cities = {zone.lower(): zone for zone in zones} | {zone.lower().rpartition("/")[2]: zone for zone in zones}
    close = difflib.get_close_matches(wanted.rpartition("/")[2], cities, n=3, cutoff=0.7)
    hint = f" Did you mean {' or '.join(dict.fromkeys(cities[name] for name in close))}?" if close else ""
    raise ToolError(f"There is no time zone {name!r}.{hint} Give one such as Europe/Paris, UTC or +02:00.")
