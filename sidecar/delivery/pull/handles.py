"""Receipt handles of pull mode: external names of leases, which a caller can neither invent nor use too late.

A handle holds this process's incarnation, the partition's assignment epoch and the lease's number. It also holds a code
over them that only this process can make. Callers must treat a handle as an opaque text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct

from reconsume.sidecar.delivery.pull.lease_table import HandleStatus

FORM = "h1-"
"""The beginning of every handle, so that a later form can be distinguished from this one."""
LAYOUT = struct.Struct(">8sIQ12s")
"""Incarnation, epoch, number, code."""
CODE = 12
"""Bytes of the code. A handle is valid for hours at most, and only callers of this API can try one."""
LENGTH = len(FORM) + 43
OTHER_FORM = re.compile(r"h(?!1-)[0-9]{1,4}-[A-Za-z0-9_-]{16,256}")
"""A handle that another version made. Its process is gone, so it is answered like a handle of another incarnation."""


class ReceiptHandles:
    """Make and read the handles of one process. Each start of the sidecar is another incarnation."""

    def __init__(self, incarnation: bytes | None = None, key: bytes | None = None) -> None:
        """Use an incarnation of 8 bytes and a secret key of up to 64 bytes; random ones by default."""
        self._incarnation = incarnation or secrets.token_bytes(8)
        self._key = key or secrets.token_bytes(32)

    def encode(self, epoch: int, number: int) -> str:
        """Return the handle of a lease."""
        code = self._code(epoch, number)
        sealed = LAYOUT.pack(self._incarnation, epoch, number, code)
        return FORM + base64.urlsafe_b64encode(sealed)[:-1].decode("ascii")

    def decode(self, handle: str) -> int | HandleStatus:
        """Return the lease's number; FENCED for a handle of another process, UNKNOWN for a text that is no handle."""
        if OTHER_FORM.fullmatch(handle) is not None:
            return HandleStatus.FENCED
        if len(handle) != LENGTH or not handle.startswith(FORM) or not handle.isascii():
            return HandleStatus.UNKNOWN
        try:
            sealed = base64.b64decode(f"{handle[len(FORM) :]}=", altchars=b"-_", validate=True)
        except binascii.Error:
            return HandleStatus.UNKNOWN
        incarnation, epoch, number, code = LAYOUT.unpack(sealed)
        if incarnation != self._incarnation:
            return HandleStatus.FENCED
        return number if hmac.compare_digest(code, self._code(epoch, number)) else HandleStatus.UNKNOWN

    def _code(self, epoch: int, number: int) -> bytes:
        return hashlib.blake2b(b"%d %d" % (epoch, number), key=self._key, digest_size=CODE).digest()
