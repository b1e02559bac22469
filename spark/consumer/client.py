"""Say what librdkafka's clients on the workers need, by the settings of Kafka's Java client. Pure.

Spark's Kafka source is Java, and transactions are made by librdkafka. A user gives one mapping, `kafka`, in Java's
names. Where something of it has no counterpart, nothing is guessed: the user gives the other mapping, `client`, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from reconsume.topics.client_rules import check_properties

SERVERS = "bootstrap.servers"
SAME = frozenset(
    {
        SERVERS,
        "client.id",
        "client.rack",
        "compression.type",
        "security.protocol",
        "sasl.mechanism",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
    }
)
"""Properties that both clients have."""
PEM = {
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
"""Properties of a store of type PEM, by Java's names."""
PKCS12 = {"ssl.keystore.location": "ssl.keystore.location", "ssl.keystore.password": "ssl.keystore.password"}
TYPES = ("ssl.truststore.type", "ssl.keystore.type")
SECURITY = ("security.", "sasl.", "ssl.")
"""How the names of properties begin without which no broker lets a client in."""
LOGIN = re.compile(
    r"\s*[\w.]*\.(?:Plain|Scram)LoginModule\s+required\s+"
    r'(?:username="((?:[^"\\]|\\.)*)"\s+password="((?:[^"\\]|\\.)*)")\s*;\s*'
)
"""A `sasl.jaas.config` with a user and a password, as Kafka's documentation writes it."""


def native_client(kafka: Mapping[str, str] | None, client: Mapping[str, str] | None) -> dict[str, str]:
    """Return librdkafka's settings: `client`, or what follows from `kafka`, Java's settings.

    Other settings of Java's client than those of the connection are left out. Raises ValueError if neither names
    `bootstrap.servers`, if a security setting has no counterpart, or if a property would bring code along.
    """
    settings = dict(client) if client is not None else _translated(kafka or {})
    if SERVERS not in settings:
        raise ValueError("write the brokers of the copies as kafka={'bootstrap.servers': …}")
    check_properties(settings)
    return settings


def _translated(kafka: Mapping[str, str]) -> dict[str, str]:
    names = {**{name: name for name in SAME}, **dict.fromkeys(TYPES, "")}
    for store in TYPES:
        kind, prefix = kafka.get(store, "JKS").upper(), store.removesuffix("type")
        own = PEM if kind == "PEM" else PKCS12 if kind == "PKCS12" else {}
        names |= {name: native for name, native in own.items() if name.startswith(prefix)}
    if (login := LOGIN.fullmatch(kafka.get("sasl.jaas.config", ""))) is not None:
        names["sasl.jaas.config"] = ""
    foreign = sorted(name for name in kafka if name.startswith(SECURITY) and name not in names)
    if foreign:
        raise ValueError(
            f"{', '.join(foreign)} cannot be translated for librdkafka, which writes the copies on the workers: "
            "write its settings as client={'bootstrap.servers': …, …}"
        )
    settings = {native: kafka[name] for name, native in names.items() if native and name in kafka}
    if settings.get("ssl.endpoint.identification.algorithm") == "":
        settings["ssl.endpoint.identification.algorithm"] = "none"
    if login is not None:
        user, password = (re.sub(r"\\(.)", r"\1", text) for text in login.groups())
        settings |= {"sasl.username": user, "sasl.password": password}
    return settings
