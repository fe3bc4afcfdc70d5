"""The address of a remote repository: which ones are used, which host one leads to, and how it is shown."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from treadle.errors import BadInput

Scheme = Literal["https", "ssh", "git", "http", "file"]

_MAX_CHARACTERS = 2048
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_HOST = rf"{_NAME}|\[[0-9A-Fa-f:.]+\]"
_USER = r"[A-Za-z0-9_.][A-Za-z0-9_.-]*"
_URL = re.compile(rf"(https|http|ssh|git)://(?:([^/?#@]*(?:@[^/?#@]*)*)@)?({_HOST})(?::(\d{{1,5}}))?(/[^?#]*)?")
_SHORT_SSH = re.compile(rf"(?:({_USER})@)?({_NAME}):(?!-)([^?#]+)")
_PROGRAM = re.compile(r"[A-Za-z0-9+.-]*::")
_FORMS = "https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH or git://HOST/PATH"
_IN_OUTPUT = re.compile(r"(?<=://)[^\s/@']+(?:@[^\s/@']+)*@")

_REWRITE = re.compile(r"url\.(.+)\.(push)?insteadof", re.DOTALL)
_USER_PART = re.compile(r"([a-z][a-z0-9+.-]*)://([^/@]*)@", re.IGNORECASE)


class AddressRefused(BadInput):
    """The address is not used. The message says why, and never shows a password."""


class RemoteAddress(Struct, frozen=True):
    """An address that may be used.

    `text` is the address itself. It may hold a password, so it is never shown. `shown` is the address without it.
    `host` has the port if one is named, and is empty for a folder of this machine. `user` is the account in it.
    """

    text: str
    scheme: Scheme
    host: str
    shown: str
    user: str = ""

    @property
    def warning(self) -> str:
        """What a person should know before data goes there, or nothing."""
        is_open = self.scheme in ("http", "git")
        open_words = f"{self.scheme}:// is not encrypted, so others can read and change what is sent" if is_open else ""
        name = re.sub(r":\d+$", "", self.host) if not self.host.endswith("]") else self.host
        with suppress(OSError):
            name = socket.inet_ntoa(socket.inet_aton(name))  # `127.1` and `2130706433` are addresses too
        try:
            is_near = not ipaddress.ip_address(name.strip("[]")).is_global
        except ValueError:
            is_near = name == "localhost" or name.endswith(".localhost")
        return "; ".join(filter(None, ("it is this machine or its network" if is_near else "", open_words)))

    def remove_secrets(self, text: str) -> str:
        """Remove the account of any address, and this one's password, from a text of git."""
        password = self.user.partition(":")[2]
        shown = hide_accounts(text)
        return shown.replace(password, "[secret]") if len(password) > 3 else shown


class Rewrite(Struct, frozen=True):
    """A setting of the user that replaces the `beginning` of addresses by `base`: `url.BASE.insteadOf`."""

    base: str
    beginning: str
    is_for_push: bool = False


def list_rewrites(settings: Iterable[tuple[str, str]]) -> tuple[Rewrite, ...]:
    """List the rewrites among settings of git."""
    found = ((_REWRITE.fullmatch(key), value) for key, value in settings)
    return tuple(Rewrite(match[1], value, bool(match[2])) for match, value in found if match and value)


def rewrite_address(text: str, rewrites: Sequence[Rewrite], *, is_push: bool = False) -> str:
    """Rewrite an address as git does: the longest beginning counts, and for a push those that are for pushes alone."""
    rewritten = text
    for is_for_push in (True, False) if is_push else (False,):
        fitting = [one for one in rewrites if one.is_for_push == is_for_push and text.startswith(one.beginning)]
        if fitting:
            best = max(fitting, key=lambda one: len(one.beginning))
            rewritten = best.base + text.removeprefix(best.beginning)
            break
    if any(one.beginning == rewritten != one.base for one in rewrites):  # git would rewrite it a second time
        raise AddressRefused("the user's own settings of git rewrite this address in two steps, which is not used.")
    return rewritten


def hide_accounts(text: str) -> str:
    """Remove users and passwords from the addresses in a text."""
    return _IN_OUTPUT.sub("", text)


def remove_account(address: str) -> str:
    """Remove the account, and what follows the path, from the address of a remote. The user of ssh belongs to it."""
    if "://" not in address:
        return address

    def keep_user(found: re.Match[str]) -> str:
        user = f"{found[2].partition(':')[0]}@" if "ssh" in found[1].lower() else ""
        return f"{found[1]}://{user}"

    return _USER_PART.sub(keep_user, re.sub(r"[?#].*", "", address, flags=re.DOTALL))


def parse_address(text: str, *, is_configured: bool = False) -> RemoteAddress:
    """Check an address; raises `AddressRefused`.

    Only a remote that `is_configured` may be a folder or have an account in a web address: a model chooses neither.
    """
    if not text or len(text) > _MAX_CHARACTERS or not text.isprintable() or " " in text or "\\" in text:
        raise AddressRefused(f"the address is empty, too long, or has blanks or control characters. Use {_FORMS}.")
    if _PROGRAM.match(text):
        raise AddressRefused("an address that names a program to run (`ext::` and the like) is never used.")
    if found := _URL.fullmatch(text):
        return _build_web_address(text, found, is_configured=is_configured)
    if "://" not in text and (found := _SHORT_SSH.fullmatch(text)):
        return RemoteAddress(text, "ssh", found[2].lower(), text, found[1] or "")
    path = text.removeprefix("file://")
    if path.startswith("/") and is_configured:
        return RemoteAddress(text, "file", "", path)
    if path.startswith(("/", ".")):
        raise AddressRefused(f"a folder of this machine is no address here. Use {_FORMS}.")
    raise AddressRefused(f"this is no address of a repository that can be used. Use {_FORMS}.")


def _build_web_address(text: str, found: re.Match[str], *, is_configured: bool) -> RemoteAddress:
    scheme, user, host, port, path = found[1], found[2] or "", found[3].lower(), found[4], found[5] or ""
    where = f"{host}:{port}" if port else host
    if scheme == "ssh":
        if user and not re.fullmatch(_USER, user):
            raise AddressRefused("an ssh address has a plain user and no password: keys are the user's own.")
        return RemoteAddress(
            text, "ssh", where, f"ssh://{user}@{where}{path}" if user else f"ssh://{where}{path}", user
        )
    if user and not is_configured:
        raise AddressRefused("an address with a user or a password in it is not taken: the user's own are used.")
    if scheme == "git" and user:
        raise AddressRefused("git:// knows no users.")
    kind: Scheme = "https" if scheme == "https" else "http" if scheme == "http" else "git"
    return RemoteAddress(text, kind, where, f"{scheme}://{where}{path}", user)
