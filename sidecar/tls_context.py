"""Make the TLS context of every client of ours: the one place where a certificate's name and chain are decided about.

Used for the service (https), for what `doctor` finds out about certificates, and for downloads. Kafka's own client has
TLS of its own, which takes the rules of `kafka.ssl.*`.
"""

from __future__ import annotations

import ssl


def client_context() -> ssl.SSLContext:
    """Return a context that checks chain and name, with TLS 1.2 or newer, and trusts nothing yet.

    The name must be among the certificate's alternative names. A common name alone is not looked at: it is free text,
    which an internal CA may let anybody choose (RFC 9525).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    return context


def public_context() -> ssl.SSLContext:
    """Return such a context that trusts the CAs of this machine."""
    context = client_context()
    context.load_default_certs()
    return context
