"""Which proxy a URL is asked through, by the variables of the environment.

Belongs here: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY in all their forms. It is the one answer for
every source: requests knows networks of IPv4 only. Does not belong here: sending anything.
"""

from __future__ import annotations

import ipaddress
import re
import urllib.request
from urllib.parse import urlsplit

VARIABLES = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
"""The remedy where a proxy may have answered."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def proxy_for(url: str) -> str | None:
    """The proxy that ``url`` is asked through, as the environment writes it; None where there is none."""
    proxies = urllib.request.getproxies()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    port = port or {"http": 80, "https": 443}.get(parts.scheme)
    if host is None or is_exempt(host, port, proxies.get("no", "")):
        return None
    return proxies.get(parts.scheme) or proxies.get("all") or None


def is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """True if ``no_proxy`` names this host. An entry is ``*``, a name with everything below it
    (``example.com``, ``.example.com``, ``*.example.com``), an address, or a network (``10.0.0.0/8``,
    ``fd00::/8``). Each may have a port (IPv6 then in brackets). Commas or blanks separate entries.
    """
    name = host.strip("[]").rstrip(".").lower()
    address = _address(name)
    return any(_names(entry, name, address, port) for entry in re.split(r"[,\s]+", no_proxy.lower()) if entry)


def _names(entry: str, name: str, address: _Address | None, port: int | None) -> bool:
    if entry == "*":
        return True
    if found := re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+):(\d+)", entry):
        wanted = found[2] or found[4]
        if wanted is not None and int(wanted) != port:
            return False
        entry = found[1] or found[3]
    if address is not None:
        return _holds(entry, address)
    entry = entry.removeprefix("*").strip(".")
    return bool(entry) and (name == entry or name.endswith("." + entry))


def _holds(entry: str, address: _Address) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return address in network


def _address(name: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
