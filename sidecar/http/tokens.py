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
    """Hold the tokens that are valid now: each line of the file that is not blank.

    So two tokens can overlap in a rotation.
    """

    def __init__(self, path: Path, least: int = 1) -> None:
        """Read tokens from `path`. `least`: characters of a token; a shorter one is not valid."""
        self._path, self._least = path, least
        self._signature: Signature | None = None
        self._tokens: tuple[bytes, ...] = ()
        self._short = False

    def accepts(self, token: bytes) -> bool:
        """Return whether `token` is valid. If the file is missing, unreadable or empty, no token is."""
        self._refresh()
        # Always compare all of them: the time it takes must not show which one was nearly right.
        return any([hmac.compare_digest(token, valid) for valid in self._tokens])  # noqa: C419

    def too_short(self) -> bool:
        """Return whether the file holds a token that is too short to be valid."""
        self._refresh()
        return self._short

    def _refresh(self) -> None:
        try:
            signature = _signature(self._path.stat())
            if signature != self._signature:
                lines = [line.strip() for line in self._path.read_bytes().splitlines() if line.strip()]
                self._tokens = tuple(line for line in lines if len(line) >= self._least)
                self._short = len(self._tokens) < len(lines)
                self._signature = signature
                if self._short:
                    text = "a token of the token file is not valid: it has fewer than %d characters"
                    _LOG.error(text, self._least, extra={"event": "token-too-short"})
        except OSError as failure:
            _LOG.error(
                "the token file cannot be read, so every call that needs a token is refused: %s",
                failure.strerror,
                extra={"event": "token-unreadable"},
            )
            self._tokens, self._signature = (), None


def _signature(found: os.stat_result) -> Signature:
    """Return what differs between two versions of a file. Kubernetes swaps a link, so the inode counts too."""
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
