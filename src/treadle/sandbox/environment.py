"""The variables that a command gets: a short list of names, so that none of our secrets is among them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from treadle.sandbox.base import Job
from treadle.sandbox.caches import build_cache_environment, list_cache_programs
from treadle.sandbox.index_settings import build_index_environment
from treadle.sandbox.network import JAVA_PROXY_OPTIONS, has_proxy
from treadle.sandbox.shown_paths import is_below
from treadle.sandbox.toolchains import Toolchains, find_interpreter_folders

_PASSED_ON = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "TZ")
_USER_VARIABLES = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "TMPDIR", "XDG_RUNTIME_DIR")
_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


_CERTIFICATES = (
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE"),
)
_CERTIFICATE_FOLDERS = ("/usr", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust", "/etc/ca-certificates")
_GIT_IDENTITY = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL")
_GIT_WITHOUT_TERMINAL = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "PAGER": "cat",
    # Git takes this as "no editor": it keeps the message that it prepared, and refuses an empty one.
    "GIT_EDITOR": ":",
    "GIT_SEQUENCE_EDITOR": ":",
}


def build_sandbox_environment(job: Job, workspace: Path, home: str, tools: Toolchains) -> dict[str, str]:
    """Build the variables of a sandboxed command.

    Its search path is the user's own, as far as the sandbox shows those folders, then the system's, then the cache's.
    """
    cache = f"{home}/.cache"
    cached = build_cache_environment(cache)
    if has_proxy(job):
        own = {name: f"{cached.get(name, '')} {JAVA_PROXY_OPTIONS}".strip() for name in ("MAVEN_OPTS", "GRADLE_OPTS")}
        cached = {**cached, **own, **build_index_environment(job.own_registries)}
    visible = (workspace, *job.read_only, *job.writable_folders, *find_interpreter_folders())
    path = os.environ.get("PATH", "").split(os.pathsep)
    usable = [entry for entry in path if entry in tools.path or (entry[:1] == "/" and is_below(Path(entry), visible))]
    return {
        "LANG": "C.UTF-8",
        **_select_variables(_PASSED_ON + _GIT_IDENTITY),
        **_GIT_WITHOUT_TERMINAL,
        **_select_certificates(),
        **tools.variables,
        **cached,
        "PATH": os.pathsep.join(dict.fromkeys((*usable, *_SYSTEM_PATH, *list_cache_programs(cache)))),
        "HOME": home,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "TMPDIR": "/tmp",
        **job.env,
    }


def build_host_environment(job: Job) -> dict[str, str]:
    """Build the variables of a command on the host: the user's own folders, and none of their secrets."""
    return {"PATH": os.pathsep.join(_SYSTEM_PATH), **_select_variables(_PASSED_ON + _USER_VARIABLES), **job.env}


def build_outside_path(*workspaces: Path) -> str:
    """Build the user's search path without the folders that an agent can write: those in a workspace."""
    own = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry.startswith("/")]
    inside = tuple(map(Path, map(os.path.realpath, workspaces)))
    entries = dict.fromkeys((*own, *_SYSTEM_PATH))
    return os.pathsep.join(entry for entry in entries if not is_below(Path(os.path.realpath(entry)), inside))


def _select_variables(names: tuple[str, ...]) -> Mapping[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _select_certificates() -> Mapping[str, str]:
    """Select the variables that name certificates which a command sees. A company's own proxy needs them."""
    named = _select_variables(_CERTIFICATES)
    return {name: path for name, path in named.items() if is_below(Path(path), map(Path, _CERTIFICATE_FOLDERS))}
