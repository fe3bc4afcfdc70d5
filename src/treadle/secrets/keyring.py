"""Where this process keeps its secrets, and who must not see them: no child, no log, no other process of the user."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache

from treadle.secrets.redact import Redactor, take_secrets

_NAMES = re.compile(r"(?i)(^|_)(api_?keys?|keys?|tokens?|secrets?|passwords?|passwd|credentials?)(_|$)")
_LEAST = 12
"""A shorter value in the environment is more likely a word than a secret."""

_DUMPABLE = 4  # PR_SET_DUMPABLE


def build_redactor(secrets: tuple[str, ...] = ()) -> Redactor:
    """Hides these values, and those of variables whose names say that they are secret."""
    taken: dict[str, str] = getattr(sys.modules.get("treadle.models.catalog"), "taken", {})
    values = [taken.get(name) or os.environ.get(name, "") for name in filter(_NAMES.search, (*os.environ, *taken))]
    return _redactor(frozenset((*secrets, *(value for value in values if len(value) >= _LEAST))))


def hide_keys(*more: str) -> None:
    """For a program of its own, at its start: keys leave the environment, and no other process can look into this one.

    Models still find their keys. `more` names further variables to take out.
    """
    from treadle.models import catalog
    from treadle.models.providers import PROVIDERS

    names = {name for row in PROVIDERS.values() for name in row.key_variables} | set(more)
    catalog.taken.update(take_secrets(os.environ, names))
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)


@lru_cache(maxsize=8)
def _redactor(secrets: frozenset[str]) -> Redactor:
    return Redactor(secrets)
