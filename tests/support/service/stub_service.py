"""A scripted HTTP service on raw sockets, for what no HTTP library would do: one behaviour for each request.

    with StubService([hang, ok]) as service:
        ...service.url, service.requests, service.connections...

The last behaviour answers all further requests. Each connection has its own thread; leaving the block ends them all.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

DRIP_SECONDS = 0.02
"""Between two bytes: far slower than any answer, and quick enough for a test."""
JOIN_SECONDS = 30.0


class Talk:
    """One request, and the connection to answer it on."""

    def __init__(self, connection: socket.socket, request: bytes, leaving: threading.Event) -> None:
        self.connection = connection
        self.request = request
        self.leaving = leaving

    def say(self, data: bytes) -> None:
        """Send all of it, in as few packets as the system likes."""
        self.connection.sendall(data)


Behaviour: TypeAlias = Callable[[Talk], bool]
"""Answers one request; whether the connection stays open for another."""


def answer(status: int = 200, *headers: str, body: bytes = b"") -> Behaviour:
    """A whole answer with a Content-Length; the connection stays open."""
    lines = [f"HTTP/1.1 {status} Whatever", *headers, f"Content-Length: {len(body)}", "", ""]
    return raw("\r\n".join(lines).encode("latin-1") + body)


def raw(data: bytes, *, keep: bool = True) -> Behaviour:
    """These bytes; then the connection stays open, or is closed."""

    def behave(talk: Talk) -> bool:
        talk.say(data)
        return keep

    return behave


def endless(start: bytes, again: bytes) -> Behaviour:
    """A start, and then the same bytes for ever."""

    def behave(talk: Talk) -> bool:
        talk.say(start)
        while not talk.leaving.is_set():
            talk.say(again)
        return False

    return behave


def drip(data: bytes) -> Behaviour:
    """Byte by byte, with pauses."""

    def behave(talk: Talk) -> bool:
        for position in range(len(data)):
            if talk.leaving.wait(DRIP_SECONDS):
                return False
            talk.say(data[position : position + 1])
        return True

    return behave


def hang(talk: Talk) -> bool:
    """Say nothing and stay."""
    talk.leaving.wait()
    return False


ok = answer(200)
close_before = raw(b"", keep=False)
close_mid = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345", keep=False)
close_mid_json = raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{", keep=False)
close_mid_head = raw(b"HTTP/1.1 200 OK\r\nContent-Le", keep=False)
close_mid_chunk = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", keep=False)
close_idle = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", keep=False)
connection_close = answer(200, "Connection: close")
garbage = raw(b"220 mail.example ESMTP\r\n")
continue_then_ok = raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
chunked = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
read_to_close = raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil I close", keep=False)
endless_headers = endless(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"m" * 100 + b"\r\n")
endless_interim = endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n")
endless_body = endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"400\r\n" + b"b" * 1024 + b"\r\n")
upgrade = raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nanything")


def head_then_hang(talk: Talk) -> bool:
    """Say that all is well and that a body follows, and stay."""
    talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    return hang(talk)


def ok_then_leaves_the_next_unread(talk: Talk) -> bool:
    """Answer, and close the connection once the next request has come, without reading it."""
    talk.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    talk.connection.recv(1, socket.MSG_PEEK)
    return False


def resets(talk: Talk) -> bool:
    """End the connection by a reset, though the request was read."""
    talk.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


class StubService:
    """The service: a port of its own on loopback, or a Unix socket, as long as the block."""

    def __init__(
        self,
        behaviours: Sequence[Behaviour],
        socket_path: Path | None = None,
        *,
        early: bool = False,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """`early`: behave as soon as a request's head is there. `context`: talk TLS; may be replaced at any time."""
        self.context = context
        self.handshakes: list[str] = []
        """What became of each handshake: the user of the client's certificate, or the error."""
        self._early = early
        self._behaviours = list(behaviours)
        self._socket_path = socket_path
        self._listener = socket.socket(socket.AF_INET if socket_path is None else socket.AF_UNIX)
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.connections = self.carrying = 0
        """Connections that were accepted, and those of them that have carried a request."""

    def __enter__(self) -> StubService:
        self._listener.bind(("127.0.0.1", 0) if self._socket_path is None else str(self._socket_path))
        self._listener.listen(128)
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        with self._lock:
            for opened in (self._listener, *self._open):
                with suppress(OSError):  # it may be closed already
                    opened.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join(JOIN_SECONDS)
            assert not thread.is_alive(), "a behaviour did not end"
        self._listener.close()

    @property
    def url(self) -> str:
        """The push URL."""
        if self._socket_path is not None:
            return f"unix:{self._socket_path}:/events"
        scheme = "http" if self.context is None else "https"
        return f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}/events"

    def stop_listening(self) -> None:
        """Refuse new connections from now on."""
        with suppress(OSError):  # it may be closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _start(self, target: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._leaving.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # shut down: the end of the block
                return
            with self._lock:
                self.connections += 1
                self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        if self.context is not None:
            secure = self._secured(connection, self.context)
            if secure is None:
                return
            connection = secure
        has_carried = False
        with connection, suppress(OSError):  # the client may leave at any time
            while (request := read_request(connection, body=not self._early)) is not None:
                behave = self._next(request)
                self.carrying += not has_carried
                has_carried = True
                if not behave(Talk(connection, request, self._leaving)):
                    return

    def _secured(self, connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket | None:
        """The connection after its handshake; None if that fails."""
        secure = None
        with connection:
            try:
                secure = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._open.append(secure)
                secure.do_handshake()
            except OSError as error:
                self.handshakes.append(getattr(error, "reason", "") or type(error).__name__)
                if secure is not None:
                    secure.close()
                return None
        subject = dict(pair for part in (secure.getpeercert() or {}).get("subject", ()) for pair in part)
        self.handshakes.append(subject.get("commonName", ""))
        return secure

    def _next(self, request: bytes) -> Behaviour:
        with self._lock:
            self.requests.append(request)
            return self._behaviours[min(len(self.requests), len(self._behaviours)) - 1]


def read_request(connection: socket.socket, *, body: bool = True) -> bytes | None:
    """The bytes of one request; None when the client leaves. Without `body` what has come with the head."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    if not body:
        return data
    head, _, rest = data.partition(b"\r\n\r\n")
    lengths = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
    length = next(lengths, 0)
    while len(rest) < length:
        more = connection.recv(65536)
        if not more:
            return None
        rest += more
    return head + b"\r\n\r\n" + rest
