"""How a connection to the database of a store is made, and how it is ended while somebody waits for an answer on it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_SECONDS = 2.0
_DEFAULTS = {
    "application_name": "treadle",
    "connect_timeout": str(int(CONNECT_SECONDS)),
    "target_session_attrs": "read-write",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "8000",
}


def build_conninfo(url: str) -> str:
    """Build what libpq needs to connect. What the URL says itself counts before our defaults.

    Text is sent as UTF-8, whatever the environment says.
    """
    return make_conninfo("", **{**_DEFAULTS, **conninfo_to_dict(url), "client_encoding": "UTF8"})


def shut_down(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Shut a connection down. Who waits for an answer on it gets an error at once, and the server goes on.

    The server must not be asked to cancel a statement: it would report a commit that no standby has.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as shared:
        shared.shutdown(socket.SHUT_RDWR)
