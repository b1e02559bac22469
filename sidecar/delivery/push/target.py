"""Where records are pushed to: parse the push URL, once and strictly. Pure; no name is resolved here.

The target comes from the configuration alone, never from a record, an answer or the API. It stays on this host unless
the operator allows another one. Otherwise the sidecar could be made to call any address that it can reach.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from reconsume.topics.masking import url_without_secrets

USUAL_PORTS = {"http": 80, "https": 443}
LOOPBACK_NAME = "localhost"
# Tried in this order without asking a resolver: `localhost` must never be able to mean another host.
LOOPBACK_HOSTS = ("127.0.0.1", "::1")

PATH = re.compile(r"/[!-~]*")
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\.?")
# The size of `sun_path` on Linux, without its closing NUL.
LONGEST_SOCKET_PATH = 107


class Target(msgspec.Struct, frozen=True):
    """Where to connect, and what to request there."""

    hosts: tuple[str, ...]
    """Addresses, or one name, tried in order; empty for a Unix socket."""
    port: int
    socket_path: str
    """The path of the Unix socket; empty for TCP."""
    authority: str
    """The value of the `Host` header."""
    path: str
    """The request target: path and query."""
    allow_remote: bool = False
    tls_name: str = ""
    """The name or address that the certificate must be for; empty without TLS."""


def parse_target(url: str, allow_remote: bool) -> Target:
    """Return the target of `http://127.0.0.1:8080/events`, `https://…` or `unix:/run/app.sock:/events`.

    Raises ValueError, with one sentence, if the text is not a URL or has userinfo or a fragment. Also raises it for an
    address outside this host without `allow_remote`, and for a link-local address, where clouds serve their metadata.
    """
    if url.startswith("unix:"):
        return unix_target(url)
    parts = split(url)
    host = parts.hostname or ""
    hosts = hosts_of(host, url, allow_remote)
    scheme = parts.scheme
    port = port_of(parts, scheme, url)
    shown = f"[{host}]" if ":" in host else host
    path = path_of((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), url)
    authority = shown if port == USUAL_PORTS[scheme] else f"{shown}:{port}"
    # A certificate's names have no dot at their end.
    return Target(hosts, port, "", authority, path, allow_remote, host.rstrip(".") if scheme == "https" else "")


def unix_target(url: str) -> Target:
    """Return the target of `unix:/run/app.sock:/events`. Raises ValueError if its path is not valid."""
    socket_path, _, rest = url.removeprefix("unix:").partition(":/")
    if not socket_path.startswith("/") or "\0" in socket_path:
        raise ValueError(f"{shown(url)} has no absolute socket path: write it like unix:/run/app/app.sock:/events")
    if len(socket_path.encode(errors="surrogateescape")) > LONGEST_SOCKET_PATH:
        raise ValueError(f"the socket path of {shown(url)} is longer than the {LONGEST_SOCKET_PATH} bytes that fit")
    return Target((), 0, socket_path, LOOPBACK_NAME, path_of("/" + rest, url))


Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
METADATA = tuple(
    map(
        ipaddress.ip_network,
        (
            "fd00:ec2::/32",  # AWS, by IPv6
            "fd20:ce::/64",  # Google, by IPv6
            "168.63.129.16",  # Azure's platform
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle, as it was
        ),
    )
)
"""Addresses of cloud metadata that are not link-local. AWS, Google, Azure, Oracle, Tencent, IBM, DigitalOcean and
OpenStack also use link-local ones."""
COMPATIBLE, NAT64 = ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b::/96")


def shown(url: str) -> str:
    """Return a URL in quotes, without its secrets."""
    return repr(url_without_secrets(url))


def split(url: str) -> SplitResult:
    """Return the parts of an http or https URL.

    Raises ValueError for another scheme, or a part that would be ignored.
    """
    try:
        parts = urlsplit(url)
    except ValueError as fault:
        raise ValueError(f"{shown(url)} is not a URL: {fault}") from None
    if parts.scheme not in USUAL_PORTS:
        raise ValueError(f"{shown(url)} is not a push URL: it starts with http://, https:// or unix:/")
    if "@" in parts.netloc:
        raise ValueError("the push URL must not hold a user or a password")
    if parts.fragment:
        raise ValueError(f"{shown(url)} has a fragment, which is never sent")
    return parts


def hosts_of(host: str, url: str, allow_remote: bool) -> tuple[str, ...]:
    """Return the addresses or the name to connect to. Raises ValueError if they are not allowed."""
    if host == LOOPBACK_NAME:
        return LOOPBACK_HOSTS
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if HOST_NAME.fullmatch(host) is None:
            raise ValueError(f"{shown(url)} names no host") from None
        loopback = False
    else:
        refuse_link_local(host)
        loopback = address.is_loopback
    if not loopback and not allow_remote:
        raise ValueError(f"{shown(url)} is not on this host: use 127.0.0.1, a Unix socket, or set deliver.allow_remote")
    return (host,)


def refuse_link_local(address: str) -> None:
    """Raise ValueError for an address, in any form, where clouds serve their metadata and credentials."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if any(form.is_link_local or any(form in network for network in METADATA) for form in forms_of(parsed)):
        raise ValueError(f"{address} is a link-local address, where clouds serve metadata; records are not sent there")


def is_no_metadata(peer: tuple[str, ...]) -> bool:
    """Return whether a connected peer (address, port, …) may get records.

    A remote name may have been made to resolve to a metadata address.
    """
    try:
        refuse_link_local(peer[0])
    except ValueError:
        return False
    return True


def forms_of(address: Address) -> Iterator[Address]:
    """Yield the address, and the IPv4 addresses that it stands for: mapped, compatible, 6to4, Teredo and NAT64."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    if address in COMPATIBLE or address in NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    yield from (inner for inner in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())) if inner)


def port_of(parts: SplitResult, scheme: str, url: str) -> int:
    """Return the port, or the usual one of the scheme if there is none. Raises ValueError if it is not valid."""
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port is None:
        return USUAL_PORTS[scheme]
    if port == 0:
        raise ValueError(f"{shown(url)} has no valid port: 1 to 65535")
    return port


def path_of(path: str, url: str) -> str:
    """Return the request target. Raises ValueError if a request line cannot carry it."""
    if PATH.fullmatch(path) is None or "#" in path:
        raise ValueError(
            f"the path of {shown(url)} has characters that a request line cannot carry: percent-encode them"
        )
    return path
