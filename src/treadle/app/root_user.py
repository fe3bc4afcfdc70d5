"""Refuse to run as root. An agent's mistake could then change the whole machine."""

from __future__ import annotations

import os
from pathlib import Path

from treadle.errors import BadInput

LOGIN_USER_FILE = Path("/proc/self/loginuid")
"""The user who logged in, also after sudo or su. Containers and services have none."""
NO_LOGIN = 2**32 - 1

CONTAINER_ADVICE = "docker run --user 1000:1000 -e HOME=/tmp/home …, or USER in its image"


def check_root(*, is_allowed: bool, serves: bool = False) -> str:
    """Refuse a person who is root. Return advice for the root of a container, which often has no other user.

    A server is refused there too: it acts for everybody who has a token.
    """
    if os.geteuid() != 0 or is_allowed:
        return ""
    is_container = _find_login_user() == NO_LOGIN and not _find_caller()
    if is_container and not serves:
        return f"running as root; safer: {CONTAINER_ADVICE}"
    advice = (
        f"in a container: {CONTAINER_ADVICE}" if is_container else f"run it as {_find_caller() or 'an ordinary user'}"
    )
    raise BadInput(
        "treadle does not run as root: a mistake of an agent could change the whole machine. Nothing was started. "
        f"To use another user, {advice}. --allow-root runs it all the same"
    )


def _find_login_user() -> int:
    try:
        return int(LOGIN_USER_FILE.read_text("ascii"))
    except (OSError, ValueError):
        return NO_LOGIN


def _find_caller() -> str:
    """Find the user who called sudo, doas or pkexec."""
    return next(filter(None, map(os.environ.get, ("SUDO_USER", "DOAS_USER", "PKEXEC_UID"))), "")
