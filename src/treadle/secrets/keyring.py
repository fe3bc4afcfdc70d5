"""The keys and other secrets of one program: where they come from, and which values are hidden in output.

A keyring is an object that callers pass on. Without one, keys are read from the environment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, MutableMapping

from treadle.secrets.redact import Redactor

_SECRET_NAME = re.compile(r"(?i)(^|_)(api_?keys?|keys?|tokens?|secrets?|passwords?|passwd|credentials?)(_|$)")
_MIN_VALUE_LENGTH = 12
"""A shorter value in the environment is more likely a word than a secret."""

_PR_SET_DUMPABLE = 4


class Keyring:
    """Finds keys by the names of their variables, in the environment or among the variables taken out of it.

    `redactor` hides `secrets`, and the values of all variables whose names say that they are secret.
    """

    def __init__(self, secrets: Iterable[str] = (), environ: MutableMapping[str, str] | None = None) -> None:
        self.secrets = tuple(secrets)
        self._environ = os.environ if environ is None else environ
        self._taken: dict[str, str] = {}
        self.redactor = self._build_redactor()

    def get(self, variable: str) -> str:
        """Return the value of a variable, or an empty string."""
        return self._environ.get(variable, "") or self._taken.get(variable, "")

    def add(self, variable: str, value: str) -> None:
        """Keep a value under a name that is not in the environment."""
        self._taken[variable] = value
        self.redactor = self._build_redactor()

    def take(self, variables: Iterable[str]) -> None:
        """Move variables from the environment into the keyring, so that no child process inherits them."""
        self._taken |= {name: value for name in variables if (value := self._environ.pop(name, ""))}
        self.redactor = self._build_redactor()

    def _build_redactor(self) -> Redactor:
        names = filter(_SECRET_NAME.search, {*self._environ, *self._taken})
        values = (value for name in names for value in (self._environ.get(name, ""), self._taken.get(name, "")))
        return Redactor({*self.secrets, *(value for value in values if len(value) >= _MIN_VALUE_LENGTH)})


def forbid_memory_inspection() -> None:
    """Keep other processes of the user from reading the memory and environment of this one."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
