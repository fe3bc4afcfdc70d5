"""Who is spoken to, and a failure it reports: what failures.py makes an error of."""

from __future__ import annotations

from msgspec import Struct


class ReportedFailure(Exception):
    """A provider reported a failure in the middle of a stream that began well; `error` is what it sent."""

    def __init__(self, error: object) -> None:
        super().__init__()
        self.error = error


class ErrorSource(Struct, frozen=True):
    """Whom an error message is about."""

    provider: str
    address: str
    key_variable: str = ""
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Source({self.provider!r}, {self.address!r})"

    def redact(self, text: str) -> str:
        """`text` without any secret in it."""
        for secret in self.secrets:
            if secret:
                text = text.replace(secret, "[secret]")
        return text
