"""The dashboard without a browser: calls with forms and cookies, as a script or an attacker makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode, urlsplit

from tests.support.sidecar.running_api import Answer, Client
from tests.ui.scene import TOKEN, Scene

Fields = Mapping[str, str] | Sequence[tuple[str, str]]
"""The fields of a form; as pairs, one may be there more than once."""


class Visitor:
    """A caller that keeps its cookie. `headers` replace what a browser would send along; None leaves one out."""

    def __init__(self, scene: Scene, source: str | None = None) -> None:
        """`source`: the address to call from."""
        self.host = urlsplit(scene.url).netloc
        self.cookie, self._source = "", source
        self._port = urlsplit(scene.url).port or 0

    def get(self, path: str, headers: Mapping[str, str | None] | None = None) -> Answer:
        return self._call("GET", path, b"", headers or {})

    def post(self, path: str, fields: Fields, headers: Mapping[str, str | None] | None = None) -> Answer:
        usual = {"origin": f"http://{self.host}", "content-type": "application/x-www-form-urlencoded"}
        return self._call("POST", path, urlencode(fields).encode(), {**usual, **(headers or {})})

    def sign_in(self, who: str = "alice", token: str = TOKEN) -> Answer:
        return self.post("/sign-in", {"who": who, "token": token})

    def csrf(self) -> str:
        """The token of this session's forms."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("/activity").body.decode())
        assert found is not None
        return found[1]

    def _call(self, method: str, path: str, body: bytes, headers: Mapping[str, str | None]) -> Answer:
        sent = {"host": self.host, "cookie": self.cookie or None, "content-length": str(len(body)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value is not None)
        with Client(self._port, self._source) as client:
            client.send(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            answer = client.answer(method)
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer
