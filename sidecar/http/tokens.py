"""The bearer tokens in a mounted file. A rotated secret takes effect with the next call, without a restart."""

from __future__ import annotations

import errno
import hmac
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple, TypeAlias

UNNAMED = "unnamed"
"""What the audit calls a token that has no name of its own."""
LONGEST_NAME = 64
LONGEST = 64 * 1024
"""Bytes of a token file."""

_LOG = logging.getLogger("reconsume.api")
# The space makes the difference: no bearer token can hold one, so a bare token with a colon stays what it is.
_NAMED = re.compile(rb"([A-Za-z0-9][\w.@-]{0,%d}):[ \t]+(\S+)" % (LONGEST_NAME - 1))

Signature: TypeAlias = tuple[int, int, int, int]


class Token(NamedTuple):
    """A token, and the name by which the audit tells who used it."""

    name: str
    secret: bytes


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a token file. Raises OSError if it cannot be read, or is none: a device has no end."""
    with path.open("rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise OSError(errno.EFBIG, f"has more than {LONGEST} bytes, so it holds no tokens")
    return tokens_in(content)


def tokens_in(content: bytes) -> list[Token]:
    """Return the tokens of a token file: each line that is not blank, `TOKEN` or `NAME: TOKEN`."""
    return [_token(line.strip()) for line in content.splitlines() if line.strip()]


class Tokens:
    """Hold the tokens that are valid now: each line of the file that is not blank.

    So two tokens can overlap in a rotation.
    """

    def __init__(self, path: Path, least: int = 1) -> None:
        """Read tokens from `path`. `least`: characters of a token; a shorter one is not valid."""
        self._path, self._least = path, least
        self._signature: Signature | None = None
        self._tokens: tuple[Token, ...] = ()
        self._short = False

    def name_of(self, secret: bytes) -> str | None:
        """Return the name of a valid token; None if it is not valid.

        If the file is missing, unreadable or empty, no token is.
        """
        self._refresh()
        # Always compare all of them: the time it takes must not show which one was nearly right.
        found = [token.name for token in self._tokens if hmac.compare_digest(secret, token.secret)]
        return found[0] if found else None

    def too_short(self) -> bool:
        """Return whether the file holds a token that is too short to be valid."""
        self._refresh()
        return self._short

    def _refresh(self) -> None:
        try:
            signature = _signature(self._path.stat())
            if signature != self._signature:
                found = read_tokens(self._path)
                self._tokens = tuple(token for token in found if len(token.secret) >= self._least)
                self._short = len(self._tokens) < len(found)
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


def _token(line: bytes) -> Token:
    named = _NAMED.fullmatch(line)
    return Token(UNNAMED, line) if named is None else Token(named[1].decode("ascii"), named[2])


def _signature(found: os.stat_result) -> Signature:
    """Return what differs between two versions of a file. Kubernetes swaps a link, so the inode counts too."""
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
