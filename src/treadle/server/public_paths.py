"""The paths that a browser may request before a person has logged in: the page, its files, and the login."""

from __future__ import annotations

import re
from collections.abc import Mapping

READING_METHODS = ("GET", "HEAD", "OPTIONS")
ICONS = ("/favicon.ico", "/favicon.svg", "/icon.svg", "/icon-192.png", "/icon-512.png", "/apple-touch-icon.png")
MANIFEST = "/manifest.webmanifest"
ROOT_FILES = frozenset((*ICONS, MANIFEST))
PAGE_PATHS = frozenset(("/", "/inbox", "/new", "/settings"))
PAGE_FOLDERS = ("/s/", "/inbox/", "/settings/", "/compare/")
ASSETS = "/assets/"
_READABLE = frozenset(("/health", "/login", "/api/hello"))  # Claude Code probes the last
_WRITABLE = frozenset(("/login", "/logout"))
_PLAIN_PATH = re.compile(r"[\w./,~-]*", re.ASCII)


def is_page_path(path: str) -> bool:
    """Whether the page shows something at this path."""
    return path in PAGE_PATHS or path.startswith(PAGE_FOLDERS)


def is_public(path: str, method: str) -> bool:
    """Whether a request to this path needs no token."""
    if method in READING_METHODS:
        return path in _READABLE or path in ROOT_FILES or path.startswith(ASSETS) or is_page_path(path)
    return method == "POST" and path in _WRITABLE


def is_visit(path: str, method: str, headers: Mapping[str, str]) -> bool:
    """Whether a person follows a link on another site to the page, which is the same for everybody."""
    is_link = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
    return is_link and method in ("GET", "HEAD") and is_page_path(path)


def build_redirect(path: str) -> str:
    """Build the address after the login, relative to `/login`. Any other path than one of the page leads to its start.

    A relative address also works where the application is mounted below a path, and never leads to another server.
    """
    is_plain = _PLAIN_PATH.fullmatch(path) is not None and ".." not in path and "//" not in path
    return f".{path}" if is_plain and is_page_path(path) else "./"
