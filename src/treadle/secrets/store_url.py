"""The URL of a store on PostgreSQL: its parts, and how it is shown without its password. Pure.

It is what libpq takes, with several hosts if need be, and one option more: `listen`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from urllib.parse import unquote

from msgspec import Struct

from treadle.errors import BadInput

HIDDEN = "***"
_FORM = "postgresql://USER@HOST:PORT/DATABASE"
_SCHEME = re.compile(r"postgres(ql)?://", re.IGNORECASE)
_USER = re.compile(r"(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%~-]*)(?::(?P<port>\d{0,5}))?")
_IN_TEXT = re.compile(r"(?i)postgres(?:ql)?://[^\s'\"]+")
_ADDRESS_OPTIONS = ("host", "hostaddr", "port")
_SECRET_OPTIONS = frozenset(("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"))
_OPTIONS = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "user", "passfile", "require_auth", "channel_binding", "service"),
        *("connect_timeout", "client_encoding", "options", "application_name", "fallback_application_name"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
        *("gssencmode", "gsslib", "gssdelegation", "krbsrvname", "requirepeer", "target_session_attrs"),
        *("sslmode", "requiressl", "sslnegotiation", "sslcompression", "sslcert", "sslkey", "sslcertmode"),
        *("sslrootcert", "sslcrl", "sslcrldir", "sslsni", "ssl_min_protocol_version", "ssl_max_protocol_version"),
        *("load_balance_hosts", "min_protocol_version", "max_protocol_version", "servicefile", "listen"),
    )
)


class PostgresUrl(Struct, frozen=True):
    """A store on PostgreSQL: the URL for its connections, the one for LISTEN, and how it is shown.

    A pooler cannot pass on notifications, so LISTEN may have an address of its own. `password` is what is hidden.
    """

    connect: str
    listen: str
    shown: str
    password: str = ""


def is_postgres_url(store: str) -> bool:
    """Whether a store is named by the URL of a database."""
    return bool(_SCHEME.match(store))


def parse_postgres_url(url: str) -> PostgresUrl:
    """Read the URL of a store. Raises `BadInput` that shows nothing of a password, also of one that is not encoded."""
    rest = url[len(scheme[0]) :] if (scheme := _SCHEME.match(url)) else ""
    if scheme is None or not rest or re.search(r"[\s\x00-\x1f]", url):
        raise _build_bad_url(f"write {_FORM}")
    login = _USER.match(rest)
    address, _, query = rest[login.end() if login else 0 :].partition("?")
    hosts, slash, database = address.partition("/")
    for host in hosts.split(","):
        if (found := _HOST.fullmatch(host)) is None or int(found["port"] or 0) > 65535:
            raise _build_bad_url(
                f"one of its hosts or ports cannot be read; write {_FORM}, and special characters of a password as "
                "%40 for @, %3A for :, %2F for /"
            )
    if "@" in database or "/" in database:
        raise _build_bad_url("its database has a character that must be written as %40 for @, or %2F for /")
    options = [(name, value) for name, _, value in (part.partition("=") for part in query.split("&") if part)]
    for name, value in options:
        if name not in _OPTIONS | _SECRET_OPTIONS:
            near = difflib.get_close_matches(name, _OPTIONS | _SECRET_OPTIONS, 1)  # the name may be part of a password
            hint = f"did you mean {near[0]}?" if near else "there are sslmode, connect_timeout, listen and others"
            raise _build_bad_url(f"one of its options is none of a connection; {hint}")
        if not value:
            raise _build_bad_url(f"its option {name} has no value")
    direct = next((_decode_address(value) for name, value in options if name == "listen"), "")
    if direct and not all(_HOST.fullmatch(host) for host in direct.split(",")):
        raise _build_bad_url("its option listen is not HOST:PORT, the address of the database without a pooler")
    start, end = f"postgresql://{login[0] if login else ''}", f"{slash}{database}"
    plain = [(name, value) for name, value in options if name != "listen"]
    others = [(name, value) for name, value in plain if name not in _ADDRESS_OPTIONS] if direct else plain
    passwords = [login["password"] if login else None, *(value for name, value in options if name == "password")]
    return PostgresUrl(
        connect=f"{start}{hosts}{end}{_join_options(plain)}",
        listen=f"{start}{direct or hosts}{end}{_join_options(others)}",
        shown=hide_password(url),
        password=unquote(next(filter(None, reversed(passwords)), "")),
    )


def _decode_address(value: str) -> str:
    """Decode the marks between hosts and ports. The path of a socket stays encoded, as libpq wants it."""
    return re.sub("%3[Aa]", ":", re.sub("%2[Cc]", ",", value))


def _join_options(options: Sequence[tuple[str, str]]) -> str:
    return f"?{'&'.join(f'{name}={value}' for name, value in options)}" if options else ""


def hide_password(text: str) -> str:
    """Return a text with every password in a URL of PostgreSQL hidden. Other text stays as it is.

    When in doubt, it hides more: a password with characters that had to be encoded must not be shown in part.
    """
    return _IN_TEXT.sub(lambda found: _hide_in_url(found[0]), text)


def _hide_in_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    address, mark, query = rest.partition("?")
    if "@" not in address and "@" in query and ":" in address:  # a question mark in the password
        address, mark, query = rest, "", ""
    login, at, hosts = address.rpartition("@")
    user, colon, _ = login.partition(":")
    options = (part.partition("=") for part in query.split("&"))
    shown = [
        f"{name}={value}" if name in _OPTIONS else f"{name if name in _SECRET_OPTIONS else HIDDEN}={HIDDEN}"
        for name, _, value in options
    ]
    return f"{scheme}://{user}{colon and f':{HIDDEN}'}{at}{hosts}{mark}{'&'.join(shown) if query else ''}"


def _build_bad_url(why: str) -> BadInput:
    return BadInput(f"the URL of the store is wrong: {why}")
