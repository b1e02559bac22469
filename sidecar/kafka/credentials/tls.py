"""Find out why a broker's certificate is not trusted, by our own handshake: librdkafka says only that it failed."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from reconsume.sidecar.tls_context import client_context

CONNECT_SECONDS = 2.0


class Distrust(NamedTuple):
    """What is wrong with a broker's certificate, and the remedy."""

    cause: str
    mend: str


CA = Distrust(
    "its CA is not known here",
    "kafka.ssl.ca.location must hold the CA of the brokers' certificates (with Strimzi the ca.crt of the secret "
    "CLUSTER-cluster-ca-cert, not that of the user's)",
)
CAUSES: Mapping[int, Distrust] = {
    9: Distrust("it is not valid yet", "look at the clocks of this machine and of whoever made the certificate"),
    10: Distrust("it has expired", "renew the brokers' certificate, or look at the clock of this machine"),
    62: Distrust(
        "it is for another name",
        "kafka.bootstrap.servers and the brokers' advertised.listeners must use a name that is in the certificate",
    ),
}
"""By OpenSSL's X509_V_ERR numbers. Any other error is a matter of the CA."""
OTHER_ADDRESS = 64
"""X509_V_ERR_IP_ADDRESS_MISMATCH: treated as another name."""


def distrust(addresses: Iterable[str], kafka: Mapping[str, str]) -> tuple[str, Distrust] | None:
    """Return the first address (`host:port`) whose certificate is not trusted, and why; None if there is none."""
    try:
        context = context_of(kafka)
    except (OSError, ValueError):  # ssl.SSLError is an OSError; the client could not have been made either
        return None
    for address in addresses:
        if (fault := certificate_fault(context, address)) is not None:
            return address, fault
    return None


def context_of(kafka: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context that trusts what the configuration trusts. Raises OSError or ValueError."""
    location = kafka.get("ssl.ca.location", "probe")
    context = client_context()
    if location == "probe" and "ssl.ca.pem" in kafka:
        text = kafka["ssl.ca.pem"].encode("ascii", errors="ignore").decode("ascii")  # comments may be anything
        context.load_verify_locations(cadata=text)
    elif location == "probe":
        context.load_default_certs()
    else:
        where = Path(location)
        context.load_verify_locations(capath=where) if where.is_dir() else context.load_verify_locations(where)
    if kafka.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    return context


def certificate_fault(context: ssl.SSLContext, address: str) -> Distrust | None:
    """Return what is wrong with the certificate at an address; None if nothing is, or no server shows one."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdecimal():
        return None
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host.strip("[]")),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return CAUSES.get(62 if error.verify_code == OTHER_ADDRESS else error.verify_code, CA)
    except (OSError, ValueError):  # a name that is none (RFC 1035) is a ValueError of the TLS library
        return None
