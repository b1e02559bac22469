"""A receiver's check of a signature, as the text of Standard Webhooks says it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping


def takes(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether a receiver with this secret takes a request. `headers`: with names in lower case."""
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    wanted = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return wanted in headers["webhook-signature"].split(" ")
