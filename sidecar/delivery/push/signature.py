"""Say in a request who sends it: a bearer token, and signatures in the form of Standard Webhooks. Pure.

The lines are added to a request that is already rendered, because they depend on the moment: a token may have been
renewed, and a receiver refuses a signature that is five minutes old. So a record is rendered once, and its repeated
request is signed anew.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence

PREFIX = "whsec_"
KEY_BYTES = range(24, 65)
"""Bytes of a signing secret, as the specification says."""
MOST_SECRETS = 4
"""A rotation has two. Each one costs a line of 48 characters and a hash over the body."""
LONGEST_TOKEN = 4 * 1024
"""Characters of a bearer token: half of the smallest head that servers take."""
LONGEST_ID = 200
"""Characters of a `webhook-id`. A longer id of a record, such as one of a topic full of dots, is sent as its hash."""
SIGNED_ROOM = 512
"""Characters that the lines of a signature take in a head, at most: the id, the time, and four signatures."""
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
ID_LINE = b"\r\nReconsume-Id: "


def token_in(content: bytes) -> str:
    """Return the bearer token that a file holds. Raises ValueError, with a sentence that shows none of it."""
    text = _text_in(content).strip()
    if not text:
        raise ValueError("is empty")
    if TOKEN.fullmatch(text) is None:
        raise ValueError("holds no bearer token: one line of letters of ASCII, digits and - . _ ~ + /")
    if len(text) > LONGEST_TOKEN:
        raise ValueError(f"holds a token of more than {LONGEST_TOKEN} characters, which no server takes")
    return text


def secrets_in(content: bytes) -> tuple[bytes, ...]:
    """Return the signing secrets that a file holds, in its order.

    Raises ValueError, with a sentence that shows none of them.
    """
    words = _text_in(content).split()
    if not words:
        raise ValueError("is empty")
    if len(words) > MOST_SECRETS:
        raise ValueError(f"holds more than {MOST_SECRETS} secrets; a rotation needs two")
    secrets = tuple(_secret(number, word) for number, word in enumerate(words, 1))
    for number, secret in enumerate(secrets, 1):
        if (first := secrets.index(secret) + 1) != number:
            raise ValueError(f"holds one secret twice (numbers {first} and {number}); leave one of them out")
    return secrets


def authenticated(request: bytes, token: str, secrets: Sequence[bytes], seconds: int) -> bytes:
    """Return a rendered request with the lines of its sender at the end of its head.

    `token`: sent as it is; empty for none. `seconds`: the time of the signatures (epoch). Without `secrets` nothing is
    signed.
    """
    end = request.index(b"\r\n\r\n") + 2
    lines = f"Authorization: Bearer {token}\r\n" if token else ""
    if secrets:
        lines += signature_lines(message_id(request, end), seconds, memoryview(request)[end + 2 :], secrets)
    return b"".join((memoryview(request)[:end], lines.encode("ascii"), memoryview(request)[end:]))


def signature_lines(message: str, seconds: int, body: bytes | memoryview, secrets: Sequence[bytes]) -> str:
    """Return the three header lines of Standard Webhooks, with a signature for each secret."""
    start = f"{message}.{seconds}.".encode("ascii")
    signatures = " ".join(f"v1,{_signature(secret, start, body)}" for secret in secrets)
    return f"webhook-id: {message}\r\nwebhook-timestamp: {seconds}\r\nwebhook-signature: {signatures}\r\n"


def message_id(request: bytes, end: int) -> str:
    """Return the `webhook-id` of a request whose head ends at `end`: the same for each attempt of a record.

    It is the record's id, in which a dot is written as %2E: with dots in it, one signature would fit several messages.
    A batch has the hash of its body, since other records stand together in its next attempt.
    """
    at = request.find(ID_LINE, 0, end)
    if at < 0:
        return "batch-" + hashlib.sha256(memoryview(request)[end + 2 :]).hexdigest()[:32]
    at += len(ID_LINE)
    id_ = request[at : request.index(b"\r\n", at)]
    written = id_.decode("ascii").replace(".", "%2E")
    return written if len(written) <= LONGEST_ID else "id-" + hashlib.sha256(id_).hexdigest()[:32]


def _signature(secret: bytes, start: bytes, body: bytes | memoryview) -> str:
    keyed = hmac.new(secret, start, hashlib.sha256)
    keyed.update(body)
    return base64.b64encode(keyed.digest()).decode("ascii")


def _text_in(content: bytes) -> str:
    try:
        return content.removeprefix(b"\xef\xbb\xbf").decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("is not ASCII") from None  # the error's own text would hold the bytes


def _secret(number: int, word: str) -> bytes:
    if not word.startswith(PREFIX):
        raise ValueError(f"holds a secret (number {number}) that does not begin with {PREFIX}")
    try:
        secret = base64.b64decode(word.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"holds a secret (number {number}) that is not {PREFIX} and base64") from None
    if len(secret) not in KEY_BYTES:
        least, most = KEY_BYTES[0], KEY_BYTES[-1]
        raise ValueError(f"holds a secret (number {number}) of {len(secret)} bytes; it must have {least} to {most}")
    return secret
