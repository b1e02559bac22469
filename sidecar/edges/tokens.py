"""The bearer tokens in a mounted file. A rotated secret takes effect with the next call, without a restart."""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path
from typing import TypeAlias

_LOG = logging.getLogger("reconsume.api")

Signature: TypeAlias = tuple[int, int, int, int]


class Tokens:
    """The tokens that are valid now: each line of the file that is not blank, so that two overlap in a rotation."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: Signature | None = None
        self._tokens: tuple[bytes, ...] = ()

    def accepts(self, token: bytes) -> bool:
        """Whether `token` is valid. A file that is missing, unreadable or empty makes none valid."""
        self._refresh()
        # All of them, always: which one was nearly right must not show in the time it takes.
        return any([hmac.compare_digest(token, valid) for valid in self._tokens])  # noqa: C419

    def _refresh(self) -> None:
        try:
            signature = _signature(self._path.stat())
            if signature != self._signature:
                lines = self._path.read_bytes().splitlines()
                self._tokens = tuple(line.strip() for line in lines if line.strip())
                self._signature = signature
        except OSError as failure:
            _LOG.error(
                "the token file cannot be read, so no call that needs a token is let in: %s",
                failure.strerror,
                extra={"event": "token-unreadable"},
            )
            self._tokens, self._signature = (), None


def _signature(found: os.stat_result) -> Signature:
    """What differs between two versions of a file; Kubernetes swaps a link, so the inode counts too."""
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
