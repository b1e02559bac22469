"""The section `kafka`: librdkafka's properties as text, those that are refused, and secrets in mounted files.

Any property is passed on, except those that would break the promise. The fault of a refused one states the reason, so
that users need not read the source (`FIXED`, `LIMITS`).

A secret may also be given by the file that holds it, as `<name>.file`, or by the folder of a Strimzi KafkaUser
(`kafka_secret`). `Kafka` is the value of the section. The check of a configuration reads no secret, because `explain`
or `topics export` run where none is mounted. The first client that is made reads them, and `Kafka.fresh` has them read
again (`kafka/credentials/watcher.py`). Their values never appear in our texts: `repr` shows names alone, and no fault
has the content of a file.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import open_plain, read_plain
from reconsume.sidecar.settings.faults import is_path, is_secret
from reconsume.sidecar.settings.table import Fault, Kind, RefusedError, expect_visible, read_parts
from reconsume.topics.client_rules import NATIVE, property_fault

# --- secrets in files

SUFFIX = ".file"
FILED = frozenset(
    {
        "sasl.username",
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    }
)
"""Properties that may be given as `<name>.file: /path`. librdkafka has no property of these names with the suffix."""
LOCATIONS = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "sasl.oauthbearer.assertion.private.key.file",
    "https.ca.location",
)
"""Properties that name a file which librdkafka itself reads, once for each client."""
BY_FOLDER = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.certificate.location",
        "ssl.key.location",
    }
)
"""Properties that Strimzi's secret may give."""
NO_USER = "holds neither user.crt and user.key, nor sasl.jaas.config; mount the secret of a Strimzi KafkaUser there"
MOST = 65_536
"""Bytes of a secret. A larger file was mounted by mistake."""
LARGEST_READ = 16 * 1024 * 1024
"""Bytes of a file that librdkafka or the watcher of credentials reads. A bundle of all public CAs has 0.25 MB."""
USER, PASSWORD = (re.compile(rf'\b{name}\s*=\s*"((?:[^"\\]|\\.)*)"') for name in ("username", "password"))

ESCAPED = re.compile(r"\\(.)")
"""A character with the escape that it has between the quotes of a login configuration."""


@dataclass(frozen=True, repr=False, eq=False)
class Kafka(Mapping[str, str]):
    """The properties for librdkafka. `properties`: as they were written; `folder`: the mounted secret of Strimzi.

    Files are read once, at the first access that needs them. Raises ConfigError with every file that cannot be read.
    """

    properties: Mapping[str, str]
    folder: Path | None = None

    def fresh(self) -> Kafka:
        """Return the same properties, whose files are read again."""
        return Kafka(self.properties, self.folder)

    @functools.cached_property
    def resolved(self) -> Mapping[str, str]:
        """All properties, with the contents of the files. Raises ConfigError with every fault, never with a value."""
        faults: list[str] = []
        properties = {name: value for name, value in self.properties.items() if not is_filed(name)}
        for name, path in self.by_file.items():
            try:
                properties[name] = secret_in(path)
            except ValueError as fault:
                faults.append(f"kafka.{name}{SUFFIX} = {path}: {fault}")
        if self.folder is not None:
            try:
                theirs = of_user(self.folder)
                if "sasl.mechanisms" in properties:  # librdkafka's other name for the same
                    theirs.pop("sasl.mechanism", None)
                properties = {**theirs, **properties}
            except ValueError as fault:
                faults.append(f"kafka_secret = {self.folder}: {fault}")
        for name in LOCATIONS:
            if name in properties and (why := unreadable(properties[name])):
                faults.append(f"kafka.{name} = {properties[name]}: {why}")
        if faults:
            raise ConfigError(faults)
        return properties

    @property
    def by_file(self) -> Mapping[str, Path]:
        """The properties that are given as `<name>.file`, with the paths of their files."""
        names = (name.removesuffix(SUFFIX) for name in self.properties if is_filed(name))
        return {name: Path(self.properties[name + SUFFIX]) for name in names}

    def read_by_client(self) -> tuple[Path, ...]:
        """Return the files and folders that librdkafka itself reads, once for each client. Raises ConfigError."""
        return tuple(Path(self[name]) for name in LOCATIONS if name in self and self[name] != "probe")

    def __getitem__(self, name: str) -> str:
        if name in self.properties and not is_filed(name):
            return self.properties[name]
        if name in self.by_file or (self.folder is not None and name in BY_FOLDER):
            return self.resolved[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.resolved)

    def __len__(self) -> int:
        return len(self.resolved)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Kafka):  # the same configuration is equal without reading anything
            return (self.properties, self.folder) == (other.properties, other.folder)
        return isinstance(other, Mapping) and self.resolved == other

    __hash__ = None  # type: ignore[assignment]  # as every mapping

    def __repr__(self) -> str:
        return f"Kafka({', '.join(sorted(self.properties))})"  # names alone, because it may appear in a traceback


def is_filed(name: str) -> bool:
    """Whether a property names the file of a secret, as `<name>.file`."""
    return name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in FILED


def secret_in(path: Path) -> str:
    """Return the content of a file, without the line end that editors and `echo` leave.

    Raises ValueError with a sentence.
    """
    try:
        held = read_plain(path, MOST)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    try:
        text = held.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None  # the error's own text would hold the bytes
    if not text:
        raise ValueError("is empty")
    return text


def unreadable(location: str) -> str:
    """Return why librdkafka cannot read a file. Empty if it can.

    A folder of certificates and `probe` are not opened, and count as readable. The client would wait for a pipe, and
    read a device without end.
    """
    path = Path(location)
    try:
        if location != "probe" and not path.is_dir():
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
            return f"has more than {LARGEST_READ} bytes" if size > LARGEST_READ else ""
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def of_user(folder: Path) -> dict[str, str]:
    """Return the properties that follow from the mounted secret of a KafkaUser. Raises ValueError with a sentence.

    Its `ca.crt` is the CA of the *clients*, and says nothing about brokers: `ssl.ca.location` names the CA to trust,
    the `ca.crt` of the secret `<cluster>-cluster-ca-cert`.
    """
    certificate, key, jaas = (folder / name for name in ("user.crt", "user.key", "sasl.jaas.config"))
    if not folder.is_dir():
        raise ValueError("there is no such folder")
    if certificate.exists() and key.exists():
        locations = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
        return {"security.protocol": "SSL", **locations}
    if not jaas.exists():
        raise ValueError(NO_USER)
    text = secret_in(jaas)
    user, password = USER.search(text), PASSWORD.search(text)
    if "ScramLoginModule" not in text or user is None or password is None:
        raise ValueError("its sasl.jaas.config is none of SCRAM with a username and a password")
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": ESCAPED.sub(r"\1", user[1]),
        "sasl.password": ESCAPED.sub(r"\1", password[1]),
    }


# --- properties


@dataclass(frozen=True, slots=True)
class Fixed:
    """A property that the sidecar sets itself, and the reason `why`.

    `values` are harmless to repeat. The first one is the value that the sidecar uses.
    """

    why: str
    values: tuple[str, ...] = ()


PROGRESS = "progress is committed in the transaction that writes the retries; any other commit would lose records"
OWN_ACKS = "a retry is done only when every in-sync replica has it"

FIXED: dict[str, Fixed] = {
    "enable.auto.commit": Fixed(PROGRESS, ("false",)),
    "auto.commit.enable": Fixed(PROGRESS, ("false",)),
    "enable.auto.offset.store": Fixed(PROGRESS, ("false",)),
    "auto.offset.reset": Fixed("a lost offset is never a silent jump; use `start: earliest` or `start: latest`"),
    "isolation.level": Fixed("a retry of an aborted transaction must never be delivered", ("read_committed",)),
    "group.id": Fixed("it is `group`, and the retry topics are read by a group of their own"),
    "group.instance.id": Fixed("two pods with one copied configuration would fence each other"),
    "transactional.id": Fixed("it is made of group, lane, instance and a number, so that only our own dead are fenced"),
    "enable.idempotence": Fixed("a copy must be written once, and in order", ("true",)),
    "acks": Fixed(OWN_ACKS, ("all", "-1")),
    "request.required.acks": Fixed(OWN_ACKS, ("all", "-1")),
    "delivery.report.only.error": Fixed("a committed transaction proves its records, only refused ones are told"),
    "default.topic.config": Fixed("write the properties in it as properties of their own"),
    "partition.assignment.strategy": Fixed(
        "a rebalance gives partitions up one by one, after their deliveries were answered", ("cooperative-sticky",)
    ),
    "allow.auto.create.topics": Fixed(
        "a topic with the broker's defaults may delete waiting retries; `reconsume topics apply` creates them",
        ("false",),
    ),
    "enable.partition.eof": Fixed("each lane sets it as it needs"),
    "metadata.broker.list": Fixed("write bootstrap.servers"),
    "offset.store.method": Fixed(PROGRESS, ("broker",)),
    "offset.store.path": Fixed(PROGRESS),
    **{name: Fixed(why, values) for name, (why, values) in NATIVE.items()},
}
"""Properties with measured or documented harm, each with its sentence. The value that the sidecar uses is allowed."""

# Callbacks and client objects are code. As text they would fail later, with a less useful error.
CODE = re.compile(
    r".*_cb|opaque|interceptors|ssl_engine_callback_data|default_topic_conf|msg_order_cmp|ssl_\w+|logger|on_\w+"
)
LINE_ENDS = re.compile(r"[\t\r\n]")
"""Allowed in any property: certificates have lines, and a variable from a Secret often ends with one."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of a number that the promise depends on. `words` complete "must be …"."""

    words: str
    why: str
    low: int = 0
    high: int = 1 << 31

    def allows(self, value: str) -> bool:
        """Whether the text is a whole number within the limits."""
        return value.isdecimal() and self.low <= int(value) <= self.high

    @classmethod
    def at_least(cls, low: int) -> Limit:
        """Return the limit of a time in ms within which a broker answers.

        librdkafka takes 1 for most: then no copy is ever written in time, and each failed record is held without end.
        """
        return cls(f"at least {low}", "within a shorter time a broker cannot answer", low)


LIMITS: dict[str, Limit] = {
    # Below, a slow broker ends good transactions. Above, a crashed pod blocks the readers of all that it wrote to.
    "transaction.timeout.ms": Limit(
        "5000 to 10000", "an open transaction of a dead pod holds up every reader so long", 5_000, 10_000
    ),
    "message.timeout.ms": Limit.at_least(1_000),
    "delivery.timeout.ms": Limit.at_least(1_000),
    "request.timeout.ms": Limit.at_least(1_000),
    "socket.timeout.ms": Limit.at_least(1_000),
    "max.poll.interval.ms": Limit.at_least(10_000),
    "retry.backoff.ms": Limit("at most 5000", "a transaction would end before its request is sent again", high=5_000),
}
WHOLE_NUMBERS = {
    ".ms": "ms, such as 30000",
    ".bytes": "bytes, such as 1048576",
    ".kbytes": "KiB, such as 1024",
    "batch.size": "bytes, such as 131072",
}
"""By the end of a property's name, what its value counts. librdkafka itself reads `30s` as 30."""
FRACTIONS = frozenset({"linger.ms", "queue.buffering.max.ms"})
"""Properties in ms that need not be whole."""
ALIASES = {
    "sasl.mechanism": "sasl.mechanisms",
    "compression.type": "compression.codec",
    "delivery.timeout.ms": "message.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "retries": "message.send.max.retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
"""Properties of librdkafka that are other names of others. Of two that are given, the client would take one."""
YAML_FORMS: dict[str, object] = {"true": True, "false": False, "-1": -1}
"""Values that YAML reads as another kind than text."""
PROTOCOLS = ("classic", "consumer")
MAX_POLL_INTERVAL = 300_000
"""librdkafka's default of max.poll.interval.ms, in ms. A member that does not poll for longer has left the group."""


def read_kafka(section: object) -> Kafka:
    """Return the properties for librdkafka, with secrets in files not read yet.

    Raises RefusedError with every fault, and ValueError if `section` is no mapping.
    """
    if not isinstance(section, Mapping):
        raise ValueError("must be a mapping of librdkafka properties")
    values, faults = read_parts(
        (str(name), value, functools.partial(check_property, str(name))) for name, value in section.items()
    )
    taken = {str(name): value for name, value in values.items()}
    refused = {fault.path[0] for fault in faults}
    if not taken.get("bootstrap.servers", "").strip() and not refused & {"bootstrap.servers", "metadata.broker.list"}:
        text, servers = (
            "is required: host:port of one or more brokers, joined by commas",
            taken.get("bootstrap.servers"),
        )
        faults.append(Fault(("bootstrap.servers",), text, servers, has_value=servers is not None))
    faults += [
        Fault((name,), f"is given twice: {name.removesuffix(SUFFIX)} is there too", path)
        for name, path in taken.items()
        if is_filed(name) and name.removesuffix(SUFFIX) in taken
    ]
    faults += [
        Fault((name,), f"is given twice: it is another name of {other}, which is there too", taken[name])
        for name, other in ALIASES.items()
        if name in taken and other in taken
    ]
    if faults:
        raise RefusedError(faults)
    return Kafka(taken)


def check_property(name: str, property_value: object) -> str:
    """Return one property's value as text. Raises ValueError if it is refused or is no scalar."""
    if isinstance(property_value, Mapping):
        raise ValueError(f"must be written flat, with dots: {name}.{next(iter(property_value), 'x')}")
    if CODE.fullmatch(name):
        raise ValueError("is code, and cannot be given in a configuration")
    if not isinstance(property_value, str | int | float):
        raise ValueError("must be text, a number, true or false")
    value = str(property_value).lower() if isinstance(property_value, bool) else str(property_value)
    fixed = FIXED.get(name)
    if fixed is not None and value.lower() not in fixed.values:
        raise ValueError(f"cannot be set: {fixed.why}")
    if is_filed(name) and not value.startswith("/"):
        raise ValueError("must be the absolute path of a file that holds it")
    if why := property_fault(name, value):
        raise ValueError(why)
    if not is_secret((name,)) or is_path((name,), value):
        expect_visible(LINE_ENDS.sub("", value))
    if why := number_fault(name, value) or repeated_server(name, value):
        raise ValueError(why)
    if name == "group.protocol" and value.lower() not in PROTOCOLS:
        raise ValueError("must be classic or consumer")
    return value


def number_fault(name: str, value: str) -> str:
    """Return why a property that is a number may not have this value; empty if it may, or is none."""
    unit = next((unit for end, unit in WHOLE_NUMBERS.items() if name.endswith(end)), None)
    if unit is not None and name not in FRACTIONS and re.fullmatch(r"-?[0-9]+", value.strip()) is None:
        return f"must be a whole number of {unit}"
    limit = LIMITS.get(name)
    return "" if limit is None or limit.allows(value) else f"must be {limit.words}: {limit.why}"


def repeated_server(name: str, value: str) -> str:
    """Return why the list of brokers is refused, if one of them is there twice; otherwise empty."""
    servers = [server.strip() for server in value.split(",")] if name == "bootstrap.servers" else []
    twice = next((server for server in servers if server and servers.count(server) > 1), None)
    return "" if twice is None else f"has {twice} twice; leave one of them out"


def good_properties(section: object) -> dict[str, str]:
    """Return the properties that are not refused here, without those that name the file of a secret."""
    if not isinstance(section, Mapping):
        return {}
    parts = ((str(name), value, functools.partial(check_property, str(name))) for name, value in section.items())
    values, _ = read_parts(parts)
    return {str(name): value for name, value in values.items() if not is_filed(str(name))}


def kafka_schema() -> dict[str, object]:
    """Return the JSON Schema of the section. Its descriptions are the reasons, so that an editor shows them."""
    known: dict[str, object] = {"bootstrap.servers": {"type": "string", "description": "host:port, joined by commas"}}
    for name, fixed in FIXED.items():
        forms = [*fixed.values, *(YAML_FORMS[value] for value in fixed.values if value in YAML_FORMS)]
        allowed: dict[str, object] = {"enum": forms} if forms else {"not": {}}
        known[name] = {**allowed, "description": f"Cannot be set: {fixed.why}."}
    for name, limit in LIMITS.items():
        known[name] = {"type": "integer", "minimum": limit.low, "maximum": limit.high}
    known["group.protocol"] = {"enum": list(PROTOCOLS)}
    for name in sorted(FILED):
        known[name + SUFFIX] = {"type": "string", "pattern": "^/", "description": f"The file that holds {name}."}
    return {
        "type": "object",
        "required": ["bootstrap.servers"],
        "properties": known,
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def write_kafka(kafka: Kafka) -> dict[str, str]:
    """Return the properties as they were given."""
    return dict(kafka.properties)


KAFKA = Kind(
    read_kafka,
    "a mapping of librdkafka properties, with bootstrap.servers",
    kafka_schema(),
    write_kafka,
)
