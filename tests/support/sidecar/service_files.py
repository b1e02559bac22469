"""The files with what a service is called with, as a pod mounts them."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from typing import Any

from reconsume.sidecar.delivery.push.credentials import CA, CERTIFICATE, KEY, SECRETS, TOKEN
from tests.support.kafka.certificates import Authority


class ServiceFiles:
    """A CA, a client's certificate with its key, a token and a signing secret. `named`: the files by their settings."""

    def __init__(self, folder: Path, authority: Authority, user: str = "sidecar") -> None:
        folder.mkdir()
        self.authority, self._user = authority, user
        self.named = {name: folder / name.rpartition(".")[2] for name in (CA, CERTIFICATE, KEY, TOKEN, SECRETS)}
        self.write(CA, authority.pem)
        self.renew_certificate()
        self.token, self.secret = "", ""
        self.renew_token()
        self.renew_secret()

    @property
    def settings(self) -> dict[str, Any]:
        """The part of `deliver` that names them."""
        named = {name.removeprefix("deliver."): str(file) for name, file in self.named.items()}
        tls = {name.removeprefix("tls."): file for name, file in named.items() if name.startswith("tls.")}
        return {"tls": tls, **{name: file for name, file in named.items() if not name.startswith("tls.")}}

    def write(self, name: str, content: bytes) -> None:
        """Replace one file, as a mount does: in one step."""
        path = self.named[name]
        newer = path.with_suffix(".newer")
        newer.write_bytes(content)
        os.replace(newer, path)  # noqa: PTH105 - as the kubelet: one rename

    def read(self, name: str) -> bytes:
        return self.named[name].read_bytes()

    def renew_certificate(self, user: str = "") -> None:
        """Show another certificate from now on."""
        certificate, key = self.authority.issue("sidecar.test", common_name=user or self._user)
        self.write(CERTIFICATE, certificate)
        self.write(KEY, key)

    def renew_token(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.write(TOKEN, self.token.encode() + b"\n")

    def renew_secret(self, *, beside: bool = False) -> None:
        """Another secret; `beside` the former, as in a rotation."""
        former, self.secret = self.secret, "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self.write(SECRETS, f"{self.secret}\n{former if beside else ''}\n".encode())
