"""Links that sign in to the dashboard once, for programs that start a dashboard for the user who is there.

Whoever has a token can make a link without the dashboard: it proves the token and does not contain it. The proof is an
HMAC of the user's name, the end of the link and a random number, with the token as its key. The dashboard checks it
against the tokens that are valid now, and remembers the links that were used until they would have ended. So a link
that is left in a history, in a log or on a screen opens nothing, and one of a token that was taken out of the file
neither. After a restart of the dashboard a link works once more, until it ends. Used on the dashboard's event loop.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlencode

from reconsume.sidecar.http.tokens import Token, Tokens

VALID_S = 12 * 3_600
"""Seconds for which a link is valid."""
MOST_USED = 1_024
"""Links that were used and have not ended; beyond that no link is accepted."""


class SignIn(NamedTuple):
    """Who signs in by a link, and by which token."""

    who: str
    token: Token


def query_of_link(secret: str, who: str, now: float) -> str:
    """Return the query of a link to `/sign-in` that signs in once as `who`. `now`: epoch seconds."""
    until, nonce = str(int(now) + VALID_S), secrets.token_urlsafe(16)
    proof = _proof(secret.encode(), who, until, nonce)
    return urlencode({"who": who, "until": until, "nonce": nonce, "proof": proof})


class SignInLinks:
    """The links of one dashboard. `tokens`: those that are valid now."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._used: dict[str, int] = {}
        """The proofs of links that were used, and when they end (epoch seconds)."""

    def use(self, query: Mapping[str, str], now: float) -> SignIn | None:
        """Return who signs in by the query of a link; None if it is none, too old, or used. `now`: epoch seconds."""
        who, until, nonce, proof = (query.get(name, "") for name in ("who", "until", "nonce", "proof"))
        if not (until.isascii() and until.isdecimal() and len(until) < 16 and 0 < int(until) - now <= VALID_S):
            return None
        self._used = {used: end for used, end in self._used.items() if end > now}
        token = self._tokens.first(lambda secret: hmac.compare_digest(proof, _proof(secret, who, until, nonce)))
        if token is None or proof in self._used or len(self._used) >= MOST_USED:
            return None
        self._used[proof] = int(until)
        return SignIn(who, token)


def _proof(secret: bytes, *words: str) -> str:
    text = "\n".join(("sign-in", *(word.encode(errors="surrogatepass").hex() for word in words)))
    return hmac.new(secret, text.encode(), sha256).hexdigest()
