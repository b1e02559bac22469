"""A token endpoint of OIDC: gives out unsigned tokens, as Kafka's own validator for development takes them."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class TokenServer:
    """What it was asked, and for whom it gives tokens. `secret`: the only one that it takes; `life`: s of a token."""

    def __init__(self, secret: str, life: int) -> None:
        self.secret, self.life = secret, life
        self.url = ""
        self.grants: list[str] = []
        """The client ids that got a token."""
        self.refusals = 0

    def answer(self, authorization: str) -> tuple[int, dict[str, object]]:
        """What a request with this header gets."""
        client, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if secret != self.secret:
            self.refusals += 1
            return 401, {"error": "invalid_client"}
        self.grants.append(client)
        return 200, {"access_token": unsigned(client, self.life), "token_type": "Bearer", "expires_in": self.life}


def unsigned(client: str, life: int) -> str:
    """A token for so many seconds."""
    at = int(time.time())
    parts = ({"alg": "none"}, {"sub": client, "iat": at - 5, "exp": at + life, "scope": "kafka"})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


@contextmanager
def token_server(secret: str, life: int = 60) -> Iterator[TokenServer]:
    """One that runs on a free port of 127.0.0.1."""
    tokens = TokenServer(secret, life)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = tokens.answer(self.headers.get("Authorization", ""))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing: what it was asked is kept."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        tokens.url = f"http://127.0.0.1:{server.server_address[1]}/token"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tokens
        server.shutdown()
