"""What the sidecar shows to the service and trusts of it: read from the files of `deliver`, whole or not at all.

Nothing here logs or shows a value, and an error names the setting, the file and the fault.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from reconsume.sidecar.delivery.push.signature import LONGEST_TOKEN, secrets_in, token_in
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import read_plain
from reconsume.sidecar.settings.deliver import Deliver
from reconsume.sidecar.tls_context import client_context

CA, CERTIFICATE, KEY = "deliver.tls.ca_file", "deliver.tls.cert_file", "deliver.tls.key_file"
TOKEN, SECRETS = "deliver.bearer_token_file", "deliver.signing_secret_file"
TLS = (CA, CERTIFICATE, KEY)
LARGEST: Mapping[str, int] = {CA: 4 << 20, CERTIFICATE: 1 << 20, KEY: 1 << 20, TOKEN: 2 * LONGEST_TOKEN, SECRETS: 4096}
"""Bytes of each file. A bundle of all public CAs has 0.25 MB. A larger file was mounted by mistake."""

T = TypeVar("T")


class Credentials:
    """What was read at one moment. No value of it is ever shown.

    `context`: for connections by TLS; None if no URL is https. `token`: empty for none. `tls_digest` and `digest`
    differ between versions of the files.
    """

    __slots__ = ("context", "digest", "secrets", "tls_digest", "token")

    def __init__(
        self, context: ssl.SSLContext | None, token: str, secrets: tuple[bytes, ...], contents: Mapping[str, bytes]
    ) -> None:
        self.context, self.token, self.secrets = context, token, secrets
        self.tls_digest = digest_of({name: content for name, content in contents.items() if name in TLS})
        self.digest = digest_of(contents)


def files_of(deliver: Deliver) -> dict[str, Path]:
    """Return the files that the settings name, by setting."""
    tls = deliver.tls
    values = (tls.ca_file, tls.cert_file, tls.key_file, deliver.bearer_token_file, deliver.signing_secret_file)
    return {name: Path(file) for name, file in zip((*TLS, TOKEN, SECRETS), values, strict=True) if file is not None}


def read_credentials(files: Mapping[str, Path], *, secure: bool) -> Credentials:
    """Return what the files hold. `secure`: a URL is https. Raises ConfigError with every fault, never with a value."""
    contents, faults = _contents(files)
    token = _taken(TOKEN, files, contents, faults, token_in, "")
    secrets = _taken(SECRETS, files, contents, faults, secrets_in, tuple[bytes, ...]())
    context = None
    if secure and not any(name in files and name not in contents for name in TLS):
        try:
            context = context_of(files, contents)
        except ConfigError as fault:
            faults += fault.problems
    if faults:
        raise ConfigError(faults)
    return Credentials(context, token, secrets, contents)


def digest_of_files(files: Mapping[str, Path]) -> bytes:
    """Return the digest of what the files hold now. Raises ConfigError."""
    contents, faults = _contents(files)
    if faults:
        raise ConfigError(faults)
    return digest_of(contents)


def digest_of(contents: Mapping[str, bytes]) -> bytes:
    """Return a hash that differs between contents."""
    digest = hashlib.sha256()
    for name, content in sorted(contents.items()):
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()


def context_of(files: Mapping[str, Path], contents: Mapping[str, bytes]) -> ssl.SSLContext:
    """Return the context of TLS: what is trusted, and what is shown. Raises ConfigError."""
    context = client_context()
    context.set_alpn_protocols(["http/1.1"])
    if CA in files:
        # So that an intermediate CA, or the certificate itself, can be what is trusted.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        _load(CA, files, lambda: context.load_verify_locations(cadata=_pem_of(contents[CA])))
    else:
        _load_public(context)
    if CERTIFICATE in files:
        key = KEY if KEY in files else CERTIFICATE
        if b"ENCRYPTED" in contents[key]:
            raise ConfigError([f"{key} = {files[key]}: its key has a passphrase; mount it without one"])
        # By path, because ssl takes it from nowhere else. Never asks a terminal for a passphrase.
        _load(CERTIFICATE, files, lambda: context.load_cert_chain(files[CERTIFICATE], files[key], password=lambda: ""))
    return context


def _contents(files: Mapping[str, Path]) -> tuple[dict[str, bytes], list[str]]:
    """Return what can be read, and a sentence for each file that cannot."""
    contents, faults = dict[str, bytes](), list[str]()
    for name, file in files.items():
        try:
            contents[name] = read_plain(file, LARGEST[name])
        except FileNotFoundError:
            faults.append(f"{name} = {file}: is not there")
        except OSError as error:
            faults.append(f"{name} = {file}: cannot be read: {error.strerror}")
    return contents, faults


def _taken(
    name: str,
    files: Mapping[str, Path],
    contents: Mapping[str, bytes],
    faults: list[str],
    read: Callable[[bytes], T],
    none: T,
) -> T:
    """Return what `read` makes of a file; `none`, and one more fault, if it makes nothing of it."""
    try:
        return read(contents[name]) if name in contents else none
    except ValueError as fault:
        faults.append(f"{name} = {files[name]}: {fault}")
        return none


def _load_public(context: ssl.SSLContext) -> None:
    try:
        context.load_default_certs()
    except (OSError, ValueError) as error:
        raise ConfigError([f"the CAs of this machine cannot be read ({type(error).__name__}); set {CA}"]) from None


def _load(name: str, files: Mapping[str, Path], load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        text = "its key is not that of its certificate" if error.reason == "KEY_VALUES_MISMATCH" else WRONG[name]
    except (OSError, ValueError):
        text = WRONG[name]
    else:
        return
    raise ConfigError([f"{name} = {files[name]}: {text}"])


WRONG: Mapping[str, str] = {
    CA: "holds no certificates in PEM",
    CERTIFICATE: "certificate and key are not there in PEM",
}


def _pem_of(content: bytes) -> str:
    return content.decode("ascii", errors="ignore")  # comments may be anything
