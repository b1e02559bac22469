"""Certificates for tests, in files as Kubernetes mounts them: PEM, keys as PKCS#8, which Kafka's Java wants."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificates

BEFORE = datetime.now(UTC) - timedelta(days=2)


class Authority:
    """A CA of its own. `file`: its certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA(organization_name=name)
        self.file = folder / f"{name}-ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self._ca.cert_pem.bytes()

    def issue(
        self, *names: str, common_name: str | None = None, expired: bool = False, days: float = 1
    ) -> tuple[bytes, bytes]:
        """A certificate with its chain, and its key. `days`: until it expires."""
        until = datetime.now(UTC) + timedelta(days=-1 / 24 if expired else days)
        leaf = self._ca.issue_cert(*names, common_name=common_name, not_before=BEFORE, not_after=until)
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return b"".join(part.bytes() for part in leaf.cert_chain_pems), pkcs8

    def context(
        self, *names: str, expired: bool = False, mutual: Authority | None = None, days: float = 1
    ) -> ssl.SSLContext:
        """The TLS of a service. `mutual`: the CA of the certificates that it wants from its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pem"
            file.write_bytes(b"".join(reversed(self.issue(*names, expired=expired, days=days))))
            context.load_cert_chain(file)
        if mutual is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(mutual.file)
        return context

    def server(self, path: Path, *names: str) -> Path:
        """A key store as Kafka's Java reads it: key and chain in one PEM file."""
        certificate, key = self.issue(*names)
        path.write_bytes(key + certificate)
        return path


def locked(key: bytes, passphrase: str) -> bytes:
    """The key with a passphrase."""
    loaded = load_pem_private_key(key, None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase.encode()))


def key_store(chain: bytes, key: bytes, password: str) -> bytes:
    """Certificate and key as PKCS#12."""
    own, *others = load_pem_x509_certificates(chain)
    encryption = BestAvailableEncryption(password.encode())
    return serialize_key_and_certificates(b"user", load_pem_private_key(key, None), own, others, encryption)  # type: ignore[arg-type]


class Mounted:
    """A mounted secret: its files are links into a folder that is swapped as a whole, as the kubelet does it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0
        folder.mkdir(parents=True)

    def swap(self, **files: bytes) -> None:
        """Put other contents there, all at once; `user_crt` is the file `user.crt`."""
        self._versions += 1
        version = self.folder / f"..version_{self._versions}"
        version.mkdir()
        named = {name.replace("_", "."): content for name, content in files.items()}
        for name, content in named.items():
            (version / name).write_bytes(content)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        os.replace(link, self.folder / "..data")  # noqa: PTH105 - as the kubelet: one rename
        for name in named:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
