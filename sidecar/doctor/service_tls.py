"""Look at the service's certificate and its clock by a connection of our own: the push client keeps neither."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime

from reconsume.sidecar.delivery.push.dial import REFUSED, tls_reason
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.doctor.findings import Finding, fail, ok, warn

CONNECT_SECONDS = 3.0
ALERT_SECONDS = 0.5
"""Under TLS 1.3 a service refuses our certificate behind its own part of the handshake."""
DAY = 86_400
SOON_DAYS = 14
"""Days before its end at which a certificate should have been renewed. Those of ACME are renewed 30 days before it."""
CLOCK_WARN, CLOCK_FAIL = 60.0, 300.0
"""Seconds that the clocks may differ. Receivers of Standard Webhooks refuse a signature that is 5 minutes away."""
SYNC = "synchronise the clocks of this machine and of the service (NTP)"
CAUSES: Mapping[str, tuple[str, str]] = {
    "tls-untrusted": (
        "its certificate is not trusted: its CA is not known here",
        "deliver.tls.ca_file must hold the CA of the service's certificate",
    ),
    "tls-expired": ("its certificate has expired", "renew it, or look at the clock of this machine"),
    "tls-not-yet-valid": ("its certificate is not valid yet", "look at the clocks of this machine and of the CA"),
    "tls-wrong-name": ("its certificate is for another name", "use a name in the URL that is in the certificate"),
    REFUSED: (
        "it does not accept our certificate, or wants one",
        "deliver.tls.cert_file must hold a certificate of a CA that the service trusts, and that has not expired",
    ),
}
HANDSHAKE = (
    "the TLS handshake fails",
    "the port may have no TLS, or the service may want a certificate: deliver.tls.cert_file",
)


def connect(target: Target) -> socket.socket:
    """Return a connection to the target, at the first of its addresses that accepts one. Raises OSError."""
    if target.socket_path:
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(CONNECT_SECONDS)
        try:
            unix.connect(target.socket_path)
        except OSError:
            unix.close()
            raise
        return unix
    refused: tuple[object, ...] = ()
    for host in target.hosts:
        try:
            return socket.create_connection((host, target.port), CONNECT_SECONDS)
        except OSError as fault:
            refused = refused or fault.args
    raise OSError(*(refused or ("no address",)))


def certificate(where: str, plain: socket.socket, context: ssl.SSLContext, name: str) -> Iterator[Finding]:
    """Yield what is wrong with the service's certificate or ours, and what will be soon. Closes the connection.

    `where`: the setting and its URL, as the beginning of a sentence; `name`: what the certificate must be for.
    """
    try:
        with context.wrap_socket(plain, server_hostname=name) as secure:
            rest = ssl.cert_time_to_seconds(str((secure.getpeercert() or {})["notAfter"])) - time.time()
            if rest < SOON_DAYS * DAY:
                yield warn(f"{where}: its certificate expires in {rest / DAY:.0f} days", "renew it")
            secure.settimeout(ALERT_SECONDS)
            secure.recv(1)
    except TimeoutError:  # nothing is said: our certificate is accepted, or none is wanted
        return
    except OSError as fault:
        cause, mend = CAUSES.get(tls_reason(fault), HANDSHAKE)
        yield fail(f"{where}: {cause}", mend)
    finally:
        plain.close()


def clock(target: Target, context: ssl.SSLContext | None, method: str) -> Finding:
    """Return how far the service's clock is from this one, by the `Date` of its answer to a request without effect."""
    request = f"{method} {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nConnection: close\r\n\r\n"
    try:
        with closing(connect(target)) as plain:
            secure = None if context is None else context.wrap_socket(plain, server_hostname=target.tls_name)
            with closing(secure or plain) as connection:
                sent = time.time()
                connection.sendall(request.encode("ascii"))
                answer = http.client.HTTPResponse(connection)
                answer.begin()
                middle = (sent + time.time()) / 2
                date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (OSError, http.client.HTTPException, TypeError, ValueError):  # the last two: no Date, or an unreadable one
        return warn("the service's clock is not compared: it gives no Date", "see that both clocks are synchronised")
    return judged(date + 0.5 - middle)  # half of the second that a Date leaves out


def judged(seconds: float) -> Finding:
    """Return the finding for a service whose clock is so many seconds ahead of this one."""
    if abs(seconds) < CLOCK_WARN:
        return ok("the service's clock is right enough for signatures")
    where = "ahead of" if seconds > 0 else "behind"
    text = f"the service's clock is {abs(seconds):.0f} s {where} this one: it may refuse our signatures"
    return (fail if abs(seconds) >= CLOCK_FAIL else warn)(text, SYNC)
