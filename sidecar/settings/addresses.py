"""Parse and check the URLs of the service and the addresses on which the sidecar listens. Nothing is opened here."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import urlsplit

UNIX_URL = re.compile(r"unix:(/[^:?#\s]+):(/\S*)")
URL_FORMS = "http(s)://host:port/path or unix:/path/of.sock:/path"
LISTEN_FORMS = "host:port, [v6]:port or unix:/path/of.sock"
LONGEST_SOCKET_PATH = 107
"""Bytes of a socket's path. Linux keeps 108, including the closing zero."""


class Listen(NamedTuple):
    """An address to listen on: the `path` of a Unix socket, or `host` and `port`. Port 0 means any free port."""

    host: str
    port: int
    path: str | None = None

    def __str__(self) -> str:
        """Return the address in the form of a setting."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.path is None else f"unix:{self.path}"


def check_url(url: str) -> str:
    """Return the URL. Raises ValueError unless it is a valid target for deliveries."""
    if url.startswith("unix:"):
        match = UNIX_URL.fullmatch(url)
        if match is None:
            raise ValueError(f"must be {URL_FORMS}")
        check_socket_path(match[1])
        return url
    try:
        url_parts = urlsplit(url)
        port = url_parts.port
    except ValueError:
        raise ValueError(f"must be {URL_FORMS}") from None
    if url_parts.scheme not in ("http", "https") or not url_parts.hostname or re.search(r"\s", url):
        raise ValueError(f"must be {URL_FORMS}")
    if port == 0:
        raise ValueError(f"must be {URL_FORMS}, and no service listens on port 0")
    if url_parts.username is not None or url_parts.fragment:
        raise ValueError(f"must be {URL_FORMS}, without a user, a password or a #fragment")
    return url


def is_local_url(url: str) -> bool:
    """Whether a checked URL stays on this machine: loopback or a Unix socket."""
    return url.startswith("unix:") or is_loopback(urlsplit(url).hostname or "")


def is_tls_url(url: str) -> bool:
    """Whether requests to a checked URL go through TLS."""
    return urlsplit(url).scheme == "https"


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of the loopback interface."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listen(text: str) -> Listen:
    """Return the address that `text` gives to listen on. Raises ValueError if it is malformed."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        check_socket_path(path)
        return Listen("", 0, path)
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65_535:
        raise ValueError(f"must be {LISTEN_FORMS}")
    return Listen(match[1] or match[2], int(match[3]))


def check_socket_path(path: str) -> None:
    """Raise ValueError unless `path` is absolute, without spaces, and short enough for a Unix socket."""
    if not path.startswith("/") or re.search(r"\s", path):
        raise ValueError("must name the socket by its absolute path, as in unix:/run/app/app.sock")
    if len(path.encode()) > LONGEST_SOCKET_PATH:
        raise ValueError(f"must name a socket whose path has at most {LONGEST_SOCKET_PATH} bytes")
