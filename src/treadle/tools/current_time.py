"""`current_time`: the date and time here or in another time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

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
    import difflib
    from zoneinfo import ZoneInfo, available_timezones

    wanted, place = zone.strip(), None
    if wanted.upper() in ("UTC", "GMT", "Z"):
        place = UTC
    elif (offset := _OFFSET.fullmatch(wanted)) and int(offset[2]) < 24:
        distance = timedelta(hours=int(offset[2]), minutes=int(offset[3] or 0))
        place = timezone(distance if offset[1] == "+" else -distance)
    elif wanted:
        names = {name.lower(): name for name in sorted(available_timezones())}
        name = wanted.replace(" ", "_").lower()
        if name not in names:
            cities = names | {name.rpartition("/")[2]: names[name] for name in names}
            close = difflib.get_close_matches(name.rpartition("/")[2], cities, n=3, cutoff=0.7)
            hint = f" Did you mean {' or '.join(dict.fromkeys(cities[name] for name in close))}?" if close else ""
            raise ToolError(f"There is no time zone {wanted!r}.{hint} Give one such as Europe/Paris, UTC or +02:00.")
        place = ZoneInfo(names[name])
    there = moment.astimezone(place)
    sign, name = there.strftime("%z"), there.tzname() or ""
    offset_text = f"UTC{sign[:3]}:{sign[3:5]}"
    return f"{there:%A} {there:%Y-%m-%d %H:%M:%S} {f'{name} ({offset_text})' if name.isalpha() else offset_text}"
