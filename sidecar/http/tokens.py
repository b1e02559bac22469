"""The bearer tokens in a mounted file. A rotated secret takes effect with the next call, without a restart."""

from __future__ import annotations

import hmac
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from reconsume.sidecar.files import read_plain

UNNAMED = "unnamed"
"""What the audit calls a token that has no name of its own."""
LONGEST_NAME = 64
LONGEST = 64 * 1024
"""Bytes of a token file."""
SHORTEST = 16
"""Characters of a token; a shorter one could be found by trying them all."""
FORM = f"TOKEN or `NAME: TOKEN`, of at least {SHORTEST} characters and without any of $ {{ }} < > \" ' %"

_LOG = logging.getLogger("reconsume.api")
# The space makes the difference: no bearer token can hold one, so a bare token with a colon stays what it is. One that
# ends with a colon is a name whose token was left out, and would be a secret that everybody can guess.
# The signs that no token has are those of placeholders that were never filled in: ${TOKEN}, "", <token>, %TOKEN%.
_SECRET = rb"[!#&(-;=?-z|~]{%d,}" % SHORTEST
_NAMED = re.compile(rb"([A-Za-z0-9][\w.@-]{0,%d}):[ \t]+(%s)" % (LONGEST_NAME - 1, _SECRET))
_BARE = re.compile(rb"%s(?<!:)" % _SECRET)

Signature: TypeAlias = tuple[int, int, int, int]


class Token(NamedTuple):
    """A token, and the name by which the audit tells who used it."""

    name: str
    secret: bytes


class TokenFile(NamedTuple):
    """The content of a token file: its tokens, and the numbers of the lines that are none (from 1)."""

    tokens: tuple[Token, ...]
    bad_lines: tuple[int, ...]

    @property
    def fault(self) -> str:
        """Why not all of it can be used, as a sentence without any of its content; empty if nothing is wrong."""
        if self.bad_lines:
            return f"line {', '.join(map(str, self.bad_lines[:5]))} is neither {FORM}, nor a comment"
        return "" if self.tokens else "it holds no token, so every call that needs one is refused"


def read_tokens(path: Path) -> TokenFile:
    """Return what a token file holds. Raises OSError if it cannot be read, or is too long or no plain file."""
    return tokens_in(read_plain(path, LONGEST))


def tokens_in(content: bytes) -> TokenFile:
    """Return the tokens of a token file: `TOKEN` or `NAME: TOKEN` a line. Blank lines and those with # are skipped."""
    tokens, bad = list[Token](), list[int]()
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        token = _token(text)
        tokens += [token] if token is not None else []
        bad += [number] if token is None else []
    return TokenFile(tuple(tokens), tuple(bad))


class Tokens:
    """Hold the tokens that are valid now: each line of the file that is one.

    So two tokens can overlap in a rotation.
    """

    def __init__(self, path: Path) -> None:
        """Read tokens from `path`."""
        self._path = path
        self._signature: Signature | None = None
        self._tokens: tuple[Token, ...] = ()

    def name_of(self, secret: bytes) -> str | None:
        """Return the name of a valid token; None if it is not valid.

        If the file is missing, unreadable or empty, no token is.
        """
        token = self.first(lambda valid: hmac.compare_digest(secret, valid))
        return None if token is None else token.name

    def first(self, fits: Callable[[bytes], bool]) -> Token | None:
        """Return the first valid token whose secret fits; None if none does."""
        self._refresh()
        # Always compare all of them: the time it takes must not show which one was nearly right.
        fitting = [token for token in self._tokens if fits(token.secret)]
        return fitting[0] if fitting else None

    def _refresh(self) -> None:
        try:
            signature = _signature(self._path.stat())
            if signature != self._signature:
                self._use_file(read_tokens(self._path))
                self._signature = signature
        except OSError as failure:
            _LOG.error(
                "the token file cannot be read, so every call that needs a token is refused: %s",
                failure.strerror,
                extra={"event": "token-unreadable"},
            )
            self._tokens, self._signature = (), None

    def _use_file(self, file: TokenFile) -> None:
        self._tokens = file.tokens
        if file.fault:
            _LOG.error("the token file %s: %s", self._path, file.fault, extra={"event": "token-malformed"})


def _token(line: bytes) -> Token | None:
    """Return the token of a line; None if it is none."""
    if (named := _NAMED.fullmatch(line)) is not None:
        return Token(named[1].decode("ascii"), named[2])
    return Token(UNNAMED, line) if _BARE.fullmatch(line) is not None else None


def _signature(stat: os.stat_result) -> Signature:
    """Return what differs between two versions of a file. Kubernetes swaps a link, so the inode counts too."""
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size
