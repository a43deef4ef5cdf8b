"""Which hosts are this machine, as the local Hub and its client see it. It imports nothing of ours."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str | None) -> bool:
    """Whether a host name or address is this machine: 127.0.0.0/8, also within IPv6, ::1 or localhost."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return str(host).lower() == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
