"""Which header names a record may never choose, and which a glob does not choose by accident. Pure.

A record is written by a producer, and a service trusts the headers of a call: for who calls it, from where, and how the
request is framed. Proxies write such headers, and services believe them because the proxy removes what a caller sends.
There is no proxy here. So some names are never sent, and others only where the operator's glob itself says the word.
"""

from __future__ import annotations

import re

_REQUEST = (
    *("connection", "keep-alive", "te", "trailers?", "transfer-.*", "upgrade.*", "http2-settings", "expect", "host"),
    *("via", "max-forwards", "early-data", "alt-.*", "priority", "proxy-.*"),
    *("content-.*", "range", "if-.*", "accept.*", "prefer", "pragma", "cache-control"),
    *("x-http-method.*", "x-method-override", "http-.*", "reconsume-.*", "idempotency-key"),
)
"""What frames a request, describes its body, negotiates its answer or makes another call of it; and our own names."""
_BROWSER = ("(set-)?cookie2?", "origin", "referer", "sec-.*", "access-control-.*")
_CALLER = (
    r"(.*-)?authori[sz]ation(-.*)?",
    r"(.*-)?authenticat(e|ed|ion|or)(-.*)?",
    r"(x-)?(forwarded|original|real|rewrite|remote|true-client|cluster-client|client-ip|client-cert)(-.*)?",
    r"(x-)?(ssl|tls|mtls)(-.*)?",
    r"x-(auth|webauth|userinfo|consumer|credential|impersonate|iap|oidc|jwt|proxyuser)(-.*)?",
    r"(x-)?(cf|cdn|fastly|akamai|fly|envoy|amzn|amz|goog|ms|azure|appengine|arr|vercel|nf|istio|kong|traefik)-.*",
    r"impersonate-.*",
)
"""What proxies, gateways and clouds say about a caller: alone, or as a family that begins so."""
NEVER = re.compile("|".join((*_REQUEST, *_BROWSER, *_CALLER)))
WORDS = re.compile(
    # `auth` is every word of authentication, and no author.
    r"auth(?!ors?(?:-|$))|oidc|saml|jwt|token|cookie|session|credential|passw|secret|apikey|api-key|csrf|xsrf"
    r"|user|principal|identity|impersonat|login|client|remote|proxy|forward|original|rewrite|cert"
    r"|(?:^|-)(?:ip|url|uri|host|port|scheme|ssl|tls|mtls|sso|dn|roles?|groups?|scopes?|claims?|e-?mail)(?=-|$)"
)
"""Words in the names by which callers are told. A name with one is sent only by a glob that has the word itself."""
OTHER = re.compile(r"[^a-z0-9]")


def is_trusted(name: str, pattern: str) -> bool:
    """Whether a header called `name` may be sent because it matches `pattern`; both in lower case."""
    plain = plain_name(name)
    if NEVER.fullmatch(plain) is not None:
        return False
    said = plain_name(pattern)
    return all(word.strip("-") in said for word in WORDS.findall(plain))


def plain_name(name: str) -> str:
    """Return a name as CGI, WSGI, PHP and gateways may read it: they take other signs for the same as `-`."""
    return OTHER.sub("-", name)
