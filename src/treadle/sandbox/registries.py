"""The well-known package registries that one setting allows: only hosts that packages are read from.

Some of them also take uploads. That needs a token of the publisher, and commands do not see the user's.
"""

from __future__ import annotations

from collections.abc import Iterable

REGISTRIES = "registries"
"""The word that stands for all of them in a list of hosts."""

REGISTRY_HOSTS = (
    "pypi.org",  # Python
    "files.pythonhosted.org",
    "registry.npmjs.org",  # JavaScript
    "registry.yarnpkg.com",
    "crates.io",  # Rust
    "index.crates.io",
    "static.crates.io",
    "proxy.golang.org",  # Go
    "sum.golang.org",
    "rubygems.org",  # Ruby
    "index.rubygems.org",
    "repo.maven.apache.org",  # Java
    "repo1.maven.org",
    "plugins.gradle.org",
    "api.nuget.org",  # .NET
    "packagist.org",  # PHP
    "repo.packagist.org",
    "hex.pm",  # Elixir
    "repo.hex.pm",
)


def expand_hosts(hosts: Iterable[str], own: Iterable[str] = ()) -> tuple[str, ...]:
    """Replace the word `registries` in a list of hosts by the hosts of the registries and the user's own ones."""
    registries = (*REGISTRY_HOSTS, *own)
    expanded = (host for entry in hosts for host in (registries if entry == REGISTRIES else (entry,)))
    return tuple(dict.fromkeys(expanded))


def describe_hosts(hosts: Iterable[str]) -> str:
    """Name hosts in a few words: the well-known registries are not listed one by one."""
    named = tuple(hosts)
    if not set(REGISTRY_HOSTS) <= set(named):
        return ", ".join(named)
    return ", ".join(("the package registries", *(host for host in named if host not in REGISTRY_HOSTS)))


def are_registries(hosts: Iterable[str], own: Iterable[str] = ()) -> bool:
    """Tell whether hosts are named, and all of them are registries. An empty list means every public host."""
    return bool(named := set(hosts)) and named <= {*REGISTRY_HOSTS, *own}
