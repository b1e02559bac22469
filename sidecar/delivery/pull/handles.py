"""Receipt handles (pull mode): how a lease is named outside, so that nobody can make a name up or use an old one.

A handle holds this process's incarnation, the partition's assignment epoch and the lease's number, and a code over them
that only this process can make. What it holds is nobody's business outside.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct

from sidecar.delivery.pull.lease_table import HandleStatus

FORM = "h1-"
"""How every handle begins: a later form can be told from this one."""
LAYOUT = struct.Struct(">8sIQ12s")
"""Incarnation, epoch, number, code."""
CODE = 12
"""Bytes. A handle is good for hours at most, and only callers of this API can try one."""
LENGTH = len(FORM) + 43
OTHER_FORM = re.compile(r"h(?!1-)[0-9]{1,4}-[A-Za-z0-9_-]{16,256}")
"""A handle that another version made: it was good for a process that is gone, as one of another incarnation."""


class ReceiptHandles:
    """Makes and reads the handles of one process; each start of the sidecar is another incarnation."""

    def __init__(self, incarnation: bytes | None = None, key: bytes | None = None) -> None:
        """8 bytes and a secret of up to 64; random ones by default."""
        self._incarnation = incarnation or secrets.token_bytes(8)
        self._key = key or secrets.token_bytes(32)

    def encode(self, epoch: int, number: int) -> str:
        """The handle of a lease."""
        code = self._code(epoch, number)
        sealed = LAYOUT.pack(self._incarnation, epoch, number, code)
        return FORM + base64.urlsafe_b64encode(sealed)[:-1].decode("ascii")

    def decode(self, handle: str) -> int | HandleStatus:
        """The number of the lease; fenced for a handle of another process, unknown for what is no handle."""
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
