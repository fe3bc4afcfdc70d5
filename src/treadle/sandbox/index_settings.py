"""Which package index the user's pip, uv, npm and go use, for commands that do not see those settings.

Only addresses of registries that the user named are read, without users, passwords and queries: no command gets
credentials.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from treadle.sandbox.proxy import is_host_allowed
from treadle.sandbox.registries import REGISTRY_HOSTS

_VARIABLES = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"),
    *("npm_config_registry", "NPM_CONFIG_REGISTRY", "YARN_REGISTRY", "YARN_NPM_REGISTRY_SERVER", "GOPROXY"),
)
_MAX_BYTES = 65536
_ADDRESS = re.compile(r"https?://[^\s,|]+")
_REGISTRY = re.compile(r"^\s*registry\s*=\s*[\"']?(https?://[^\s\"']+)", re.MULTILINE)


def build_index_environment(registries: Sequence[str]) -> dict[str, str]:
    """Build the variables that name the user's package indexes, as far as they are among `registries`.

    The well-known registries count too. A variable of the user overrides a file.
    """
    own = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    found = {**_read_pip_settings(), **_read_npm_settings(), **own}
    hosts = (*REGISTRY_HOSTS, *registries)
    named = {name: _select_addresses(text, hosts, "," if name == "GOPROXY" else " ") for name, text in found.items()}
    return {name: addresses for name, addresses in named.items() if addresses}


def _select_addresses(text: str, hosts: Sequence[str], separator: str) -> str:
    """Select the addresses of some hosts from a text, without anything that may be secret."""
    selected: list[str] = []
    for found in _ADDRESS.finditer(text):
        try:
            parts = urlsplit(found[0])
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:  # it is no address
            continue
        if is_host_allowed(hosts, host, port):
            selected.append(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))
    return separator.join(selected)


def _read_pip_settings() -> Mapping[str, str]:
    home, named = Path.home(), os.environ.get("PIP_CONFIG_FILE", "")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = (Path("/etc/pip.conf"), home / ".pip/pip.conf", folder / "pip/pip.conf", *([Path(named)] if named else []))
    found: dict[str, str] = {}
    for text in _read_files(files):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for section in ("global", "install"):
            for key in ("index-url", "extra-index-url"):
                addresses = _ADDRESS.findall(parser.get(section, key, fallback=""))
                if addresses:
                    found[f"PIP_{key.upper().replace('-', '_')}"] = " ".join(addresses)
    return found


def _read_npm_settings() -> Mapping[str, str]:
    file = Path(os.environ.get("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc")
    found = _REGISTRY.search("\n".join(_read_files((file,))))
    return {"npm_config_registry": found[1]} if found is not None else {}


def _read_files(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        try:
            if file.is_file() and file.stat().st_size <= _MAX_BYTES:
                yield file.read_text("utf-8", "replace")
        except OSError:
            continue
