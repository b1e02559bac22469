"""Find out whether a broker answers with these credentials, and if not, why.

The client's own messages name the cause, some of them only in its log. Of a broker's certificate librdkafka says only
that the handshake failed; a handshake of our own finds out what is wrong with it.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import sentence_of
from reconsume.sidecar.tls_context import client_context
from reconsume.topics.masking import text_without_secrets

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
CERTIFICATE_FAULTS: Mapping[int, Distrust] = {
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
        return CERTIFICATE_FAULTS.get(62 if error.verify_code == OTHER_ADDRESS else error.verify_code, CA)
    except (OSError, ValueError):  # a name that is none (RFC 1035) is a ValueError of the TLS library
        return None


TRY_SECONDS = 6.0
"""Seconds within which a broker must have answered. A login that fails is known after 1.1 s, silence after 4 s."""


CERTAIN_SECONDS = 2.0
"""Seconds after which a refusal that was received is the answer: another broker would have answered by now."""


TURN_SECONDS = 0.5
"""Seconds for one request."""


UNTRUSTED = "certificate verify failed"


CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        UNTRUSTED,
        "TLS: the broker's certificate is not trusted: its CA is unknown, it has expired, or it is for another name",
        "kafka.ssl.ca.location must hold the CA of the brokers' certificates, and bootstrap.servers a name in them",
    ),
    (
        r"alert (bad certificate|certificate|unknown ca|access denied)|CERTIFICATE_REQUIRED",
        "TLS: the broker does not accept our certificate: it has none, does not know its CA, or it has expired",
        "kafka.ssl.certificate.location and kafka.ssl.key.location (or kafka_secret) must hold a valid one",
    ),
    (
        r"PLAINTEXT broker listener",
        "TLS: the broker speaks without TLS on this port",
        "correct the port in kafka.bootstrap.servers, or kafka.security.protocol",
    ),
    (
        r"SSL handshake failed|SSL_HANDSHAKE|^_SSL ",
        "TLS: the handshake fails",
        "the broker speaks no TLS on this port, or asks for a certificate of ours: kafka.ssl.certificate.location",
    ),
    (
        r"not valid in current SASL state|supported mechanisms:\s*(\(|$)",
        "SASL: the broker asks for no login on this port",
        "correct the port in kafka.bootstrap.servers, or kafka.security.protocol",
    ),
    (
        r"Unsupported SASL mechanism|supported mechanisms",
        "SASL: the broker does not know this mechanism",
        "set kafka.sasl.mechanism to one that the broker supports",
    ),
    (
        r"OIDC|acquire SASL OAUTHBEARER token",
        "SASL: the token endpoint gives no token",
        "look at kafka.sasl.oauthbearer.token.endpoint.url and at the client's id and secret",
    ),
    (
        r"SASL authentication error|^_AUTHENTICATION ",
        "SASL: the login is refused",
        "kafka.sasl.username and kafka.sasl.password, or whatever the mechanism asks for, must be those of the broker",
    ),
    (
        r"Failed to resolve",
        "no such host",
        "correct kafka.bootstrap.servers, or look at the name service of this machine",
    ),
    (
        r"Connection refused|Network is unreachable|No route to host",
        "nothing takes connections there",
        "start the broker, correct kafka.bootstrap.servers, or open the way to it",
    ),
    (
        r"Disconnected",
        "the broker closes the connection: it expects another security.protocol, TLS or a login",
        "set kafka.security.protocol to that of the broker's listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    ),
    (
        r"timed out|Timed out",
        "the connection is taken, or swallowed, and nobody answers",
        "look at the brokers, and at firewalls between",
    ),
)
"""A pattern in librdkafka's messages, its meaning, and the remedy. The first that matches decides: the certain ones
come before the vague ones."""


class Unreachable(NamedTuple):
    """Why no broker answered, as a sentence, and the remedy."""

    finding: str
    mend: str


class ClientLog(logging.Handler):
    """A log handler that keeps the client's messages: some causes are only in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        text = record.getMessage()
        # Advice about the configuration is not a cause.
        if not text.startswith("CONFWARN"):
            self.texts.append(text)

    def keep_error(self, error: KafkaError) -> None:
        """Keep one error, with the name of its code."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # it says less than the error before it
            self.texts.append(f"{error.name()} {error.str()}")


def answers(kafka: Mapping[str, str]) -> list[str] | Unreachable:
    """Return the addresses of all brokers, or why none answers and the remedy.

    Uses a client of its own and returns within seconds.
    """
    told = ClientLog()
    logger = logging.Logger("doctor")
    logger.addHandler(told)
    config: dict[str, Any] = {
        "client.id": "reconsume-doctor",
        "reconnect.backoff.max.ms": 500,
        **kafka,
        "socket.connection.setup.timeout.ms": 3_000,
        "api.version.request.timeout.ms": 3_000,
        "logger": logger,
        "error_cb": told.keep_error,
    }
    try:
        client = make_client(AdminClient, config)
    except KafkaException as error:
        return Unreachable(f"the client cannot be made: {sentence_of(error)}", "correct the kafka: section")
    servers = kafka["bootstrap.servers"]
    return ask(client, told) or untrusted(kafka, told.texts) or diagnosed(servers, told.texts)


def ask(client: AdminClient, told: ClientLog) -> list[str]:
    """Return the addresses of all brokers; empty if none answered in time."""
    began = time.monotonic()
    while time.monotonic() < began + (CERTAIN_SECONDS if told.texts else TRY_SECONDS):
        try:
            return [
                f"{broker.host}:{broker.port}" for broker in client.list_topics(timeout=TURN_SECONDS).brokers.values()
            ]
        except KafkaException:
            client.poll(0)  # runs the client's callbacks, which note its errors
    return []


def untrusted(kafka: Mapping[str, str], texts: Iterable[str]) -> Unreachable | None:
    """Return the exact fault of a broker's certificate; None if it is unknown or something else is wrong."""
    if not any(UNTRUSTED in text for text in texts):
        return None
    problem = distrust(listed_in(kafka["bootstrap.servers"]), kafka)
    if problem is None:
        return None
    address, why = problem
    return Unreachable(f"{address}: TLS: the broker's certificate is not trusted: {why.cause}", why.mend)


def diagnosed(servers: str, texts: Sequence[str]) -> Unreachable:
    """Return the most likely reason why no broker answered."""
    for pattern, cause, mend in CAUSES:
        said = next((text for text in texts if re.search(pattern, text)), None)
        if said is not None:
            return Unreachable(f"{servers}: {cause} ({last_words(said)})", mend)
    said = f" ({last_words(texts[0])})" if texts else ""
    return Unreachable(
        f"{servers}: no broker answered within {TRY_SECONDS:g} s{said}", "look at kafka.bootstrap.servers"
    )


def last_words(text: str) -> str:
    """Return the client's message without its source and time."""
    text = re.sub(r"^.*/bootstrap: ", "", " ".join(text.split()))
    text = text_without_secrets(text)
    return re.sub(r" \(after \d+ms in state \w+\)$|: verify that.*$|, verify that.*$", "", text)


def listed_in(servers: str) -> list[str]:
    """Return the addresses in `bootstrap.servers`."""
    return [address.strip() for address in servers.split(",") if address.strip()]
