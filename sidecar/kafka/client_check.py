"""Check the Kafka properties together: one client of each kind is made from the whole set, without a broker.

A property may be good alone and fight with another one, or with a value that the sidecar sets itself. Only the client
knows. So each command begins with this check, and what librdkafka refuses is a fault of the configuration. Properties
of Kafka's Java client, and logins that our client has not, are named first, with what to write instead
(`foreign_faults`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.client_config import (
    consumer_config,
    follower_config,
    producer_config,
    reader_config,
    teller_config,
    view_config,
)
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import code_of, sentence_of
from reconsume.sidecar.settings.faults import is_secret
from reconsume.sidecar.settings.kafka import LOCATIONS, SUFFIX, Kafka
from reconsume.topics.masking import MASK

LOGIN = "write sasl.mechanism, sasl.username and sasl.password (or sasl.password.file)"
TRUST = "is Java's trust store: write ssl.ca.location with the CA's certificates as PEM (`keytool -exportcert -rfc`)"
CLASS = "names a Java class, and this client has none; leave it out"
IAM = (
    "MSK's IAM login (AWS_MSK_IAM) is Java code that this client has not: use MSK's SASL/SCRAM "
    "(sasl.mechanism: SCRAM-SHA-512, port 9096) or client certificates (security.protocol: SSL, port 9094)"
)
KERBEROS = (
    "Kerberos (GSSAPI) is not in the client that Reconsume brings: use SCRAM-SHA-512, PLAIN, OAUTHBEARER or client "
    "certificates"
)
NO_MECHANISM = "is missing: a SASL login needs one of SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER"
TOKEN = (
    "OAUTHBEARER needs a way to its tokens: sasl.oauthbearer.method: oidc, with sasl.oauthbearer.token.endpoint.url, "
    "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret (or their .file)"
)
FOREIGN: Mapping[str, str] = {
    "sasl.jaas.config": f"is Java's: {LOGIN}, or mount Strimzi's secret by kafka_secret",
    "ssl.truststore.location": TRUST,
    "ssl.truststore.password": TRUST,
    "ssl.truststore.type": TRUST,
    "ssl.truststore.certificates": "is Java's: write ssl.ca.pem",
    "ssl.keystore.type": "is Java's: ssl.keystore.location takes PKCS#12 (`keytool -importkeystore` makes it of JKS)",
    "ssl.keystore.key": "is Java's: write ssl.key.pem",
    "ssl.keystore.certificate.chain": "is Java's: write ssl.certificate.pem",
    "ssl.enabled.protocols": "is Java's; leave it out, since the client takes TLS 1.2 and 1.3",
    "ssl.protocol": "is Java's; leave it out, since the client takes TLS 1.2 and 1.3",
    "sasl.client.callback.handler.class": f"{CLASS}. {IAM}",
    "sasl.login.callback.handler.class": f"{CLASS}. {TOKEN}",
    "sasl.login.class": CLASS,
    "key.serializer": CLASS,
    "value.serializer": CLASS,
    "key.deserializer": CLASS,
    "value.deserializer": CLASS,
    "interceptor.classes": CLASS,
    "metric.reporters": CLASS,
    "partitioner.class": CLASS,
    "max.request.size": "is Java's: leave it out, since the topics' own limits decide",
    "buffer.memory": "is Java's: write queue.buffering.max.kbytes",
    "max.block.ms": "is Java's; leave it out",
    "default.api.timeout.ms": "is Java's; leave it out",
    "fetch.max.wait.ms": "is Java's: write fetch.wait.max.ms",
    "sasl.kerberos.service.name": KERBEROS,
    "sasl.kerberos.keytab": KERBEROS,
    "sasl.kerberos.principal": KERBEROS,
}
"""Properties by their names."""
SASL = ("SASL_PLAINTEXT", "SASL_SSL")


def foreign_faults(given: Mapping[str, str]) -> dict[str, str]:
    """Return a sentence for each property that belongs to another client, and for a login that cannot work here, by the
    property."""
    faults = {name: FOREIGN[name] for name in given if name in FOREIGN}
    name = "sasl.mechanisms" if "sasl.mechanisms" in given else "sasl.mechanism"
    mechanism, is_sasl = given.get(name, "").upper(), given.get("security.protocol", "").upper() in SASL
    if mechanism.startswith("AWS_MSK_IAM"):
        faults[name] = IAM
    elif mechanism == "GSSAPI":
        faults[name] = KERBEROS
    elif is_sasl and not mechanism:
        faults[name] = NO_MECHANISM
    elif is_sasl and mechanism == "OAUTHBEARER" and not _has_tokens(given):
        faults["sasl.oauthbearer.method"] = TOKEN
    return {name: f"kafka.{name}: {fault}" for name, fault in faults.items()}


def _has_tokens(given: Mapping[str, str]) -> bool:
    unsecured = given.get("enable.sasl.oauthbearer.unsecure.jwt", "").lower() == "true"
    return unsecured or given.get("sasl.oauthbearer.method", "").lower() == "oidc"


NOBODY = "reconsume-check"
"""The name of the clients that are made here. They talk to no broker."""
NOWHERE = {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:9/"}
"""Where a client would ask for a token as soon as it is made."""
PREFIX = re.compile(r"^Failed to create [a-z ]+: ")
KEYS = frozenset({"ssl.certificate.location", "ssl.key.location", "ssl.keystore.location", "ssl.keystore.password"})
"""Properties that are of no use without each other."""

Make = Callable[[Mapping[str, str]], object]


def _consumer(config: dict[str, Any]) -> None:
    make_client(Consumer, {**config, "log_level": 0}).close()


CLIENTS: Mapping[str, Make] = {
    "the consumer of a lane": lambda properties: _consumer(consumer_config(properties, NOBODY, NOBODY)),
    "a producer of retries": lambda properties: make_client(
        Producer, {**producer_config(properties, NOBODY, NOBODY), "log_level": 0}
    ),
    "a reader of offsets": lambda properties: _consumer(reader_config(properties, NOBODY, NOBODY)),
    "a follower of topics": lambda properties: _consumer(follower_config(properties, NOBODY, NOBODY)),
    "a reader of the view": lambda properties: _consumer(view_config(properties, NOBODY, NOBODY)),
    "a producer of heartbeats": lambda properties: make_client(
        Producer, {**teller_config(properties, NOBODY), "log_level": 0}
    ),
    "an admin client": lambda properties: make_client(AdminClient, {"client.id": NOBODY, "log_level": 0, **properties}),
}
"""What makes one client of each kind that the product has, by what it is for."""


def expect_clients(kafka: Mapping[str, str]) -> None:
    """Raise ConfigError with every fault for which a client could not be made."""
    if faults := client_faults(kafka):
        raise ConfigError(faults)


def client_faults(kafka: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each fault for which a client could not be made: of one property, or of them together.

    Connects to no broker. Raises ConfigError if a file of a secret cannot be read.
    """
    given = dict(kafka)
    foreign = foreign_faults(given)
    faults = (*foreign.values(), *property_faults(_without(given, foreign)))
    return faults or (*_together(given), *_heartbeats(kafka))


def single_faults(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each property that is not librdkafka's, or whose value it refuses, whatever others there
    are. Connects to no broker."""
    foreign = {name: fault for name, fault in foreign_faults(properties).items() if name in properties}
    return (*foreign.values(), *property_faults(_without(properties, foreign)))


def _without(properties: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in names}


def property_faults(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each property that librdkafka does not know, or whose value it refuses.

    Connects to no broker.
    """
    faults: list[str] = []
    for name, value in properties.items():
        try:
            make_client(Producer, {name: value, "log_level": 0} if name != "bootstrap.servers" else {"log_level": 0})
        except KafkaException as error:
            # A property tested alone may lack others that it needs. Those are judged together.
            if code_of(error) == KafkaError._INVALID_ARG and "onfiguration property" in error.args[0].str():
                faults.append(f"kafka.{name}: {_masked(sentence_of(error), {name: value})}")
    return tuple(faults)


def _together(given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each refusal of the whole set, with the first kind of client that is refused."""
    said = set[str]()
    offline = {name: value for name, value in given.items() if name not in ("bootstrap.servers", *NOWHERE)}
    offline |= {name: stand_in for name, stand_in in NOWHERE.items() if name in given}
    for kind, make in CLIENTS.items():
        try:
            make(offline)
        except KafkaException as error:
            sentence = PREFIX.sub("", _masked(sentence_of(error), given))
            if sentence not in said:
                said.add(sentence)
                yield f"kafka: {kind} cannot be made: {sentence}"


def _heartbeats(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence if the group would take a member for dead between two of its heartbeats.

    librdkafka takes every pair of values. Such a member loses its partitions again and again.
    """
    config = consumer_config(properties, NOBODY, NOBODY)
    every, session = (int(str(config.get(name, 0))) for name in ("heartbeat.interval.ms", "session.timeout.ms"))
    if every >= session > 0:
        yield f"kafka.heartbeat.interval.ms: {every} must be below session.timeout.ms, which is {session}"


def _masked(text: str, given: Mapping[str, str]) -> str:
    for name, value in given.items():
        if value and is_secret((name,)):
            text = text.replace(value, MASK)
    return text


def absent_files(kafka: Kafka) -> dict[str, Path]:
    """Return the files and folders that the properties name and that are not there, by the setting that names them."""
    named = {f"kafka.{name}{SUFFIX}": path for name, path in kafka.by_file.items()}
    named |= {f"kafka.{name}": Path(kafka.properties[name]) for name in LOCATIONS if name in kafka.properties}
    if kafka.folder is not None:
        named["kafka_secret"] = kafka.folder
    return {name: path for name, path in named.items() if str(path) != "probe" and not path.exists()}


def without_files(kafka: Kafka, absent: Mapping[str, Path]) -> Kafka:
    """Return the properties as they are without these files, with stand-ins where a client must have something."""
    given = dict(kafka.properties)
    for name in [name.removeprefix("kafka.") for name in absent if name != "kafka_secret"]:
        del given[name]
        if name.endswith(SUFFIX):
            given[name.removesuffix(SUFFIX)] = NOBODY
    if any(f"kafka.{name}" in absent for name in KEYS):
        given = {name: value for name, value in given.items() if name not in KEYS}
    if "kafka_secret" not in absent:
        return Kafka(given, kafka.folder)
    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": NOBODY, "sasl.password": NOBODY}
    return Kafka(login | given if "sasl.mechanisms" not in given else given)
