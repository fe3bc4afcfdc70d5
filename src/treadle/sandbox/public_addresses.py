"""Which addresses are out in the public internet. Pure; names are resolved elsewhere, once, before this is asked."""

from __future__ import annotations

import ipaddress

# Forms that carry an IPv4 address, which a gateway or the system would take out again, and old ways to say "here".
_CARRIERS = tuple(
    map(
        ipaddress.IPv6Network,
        ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"),
    )
)


def is_public_address(address: str) -> bool:
    """Whether an address is surely somewhere else: not this machine, its network, a cloud's metadata or a group."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and (
        parsed.is_site_local or any(parsed in network for network in _CARRIERS)
    ):
        return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved
