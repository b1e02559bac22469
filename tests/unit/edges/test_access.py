"""Who is near, and what only callers from afar meet: what a test on loopback cannot play with real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.responses import Response
from starlette.types import Message, Scope

from sidecar.edges.access import Access, Guard, host_name, is_near


@pytest.mark.parametrize(
    ("server", "client", "near"),
    [
        (("127.0.0.1", 8471), ("127.0.0.1", 40_000), True),
        (("0.0.0.0", 8471), ("127.9.9.9", 40_000), True),
        (("::1", 8471), ("::1", 40_000), True),
        (("/run/api.sock", None), None, True),
        (("10.0.0.7", 8471), ("10.0.0.8", 40_000), False),
        (("10.0.0.7", 8471), ("10.0.0.7", 40_000), False),
        (("10.0.0.7", 8471), None, False),  # a TCP caller that has gone already
        (None, None, False),
        (("127.0.0.1", 8471), ("localhost.evil.example", 1), False),
    ],
)
def test_only_loopback_and_unix_sockets_are_near(server: object, client: object, near: bool) -> None:
    assert is_near({"server": server, "client": client}) is near


@pytest.mark.parametrize(
    ("client", "headers", "status"),
    [
        ("10.0.0.8", [], 401),
        ("10.0.0.8", [(b"authorization", b"Bearer right")], 200),
        ("10.0.0.8", [(b"x-forwarded-for", b"127.0.0.1")], 401),
        ("127.0.0.1", [], 200),
    ],
)
def test_a_drain_from_afar_needs_the_token(
    tmp_path: Path, client: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("right")
    access = Access(token_file, ("billing.local",))
    assert _status(access, "/drain", client, [(b"host", b"billing.local:8471"), *headers]) == status


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("LOCALHOST:1", "localhost"),
        ("[0:0:0:0:0:0:0:1]:8471", "[::1]"),
        ("a_b-c.d", "a_b-c.d"),
        ("a b", None),
        ("a:b:c", None),
        ("::1", None),
        ("a\x00", None),
        ("[::1%lo]", None),
        ("", None),
    ],
)
def test_a_host_is_a_name_or_an_address_with_or_without_a_port(host: str, name: str | None) -> None:
    assert host_name(host) == name


def _status(access: Access, path: str, client: str, headers: list[tuple[bytes, bytes]]) -> int:
    """What a call from `client` is answered with, by the guard or by the app behind it (200)."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "server": ("10.0.0.7", 8471),
        "client": (client, 40_000),
    }
    asyncio.run(Guard(Response(), access)(scope, receive, send))
    return int(sent[0]["status"])
