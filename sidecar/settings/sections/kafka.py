"""The section `kafka`: librdkafka properties as text, except those that would break the promise.

A secret may also be given by the file that holds it. The fault of a refused property states the reason, so that users
need not read the source.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from reconsume.sidecar.settings.masks import is_path, is_secret
from reconsume.sidecar.settings.sections.kafka_secrets import FILED, SUFFIX, Kafka, is_filed
from reconsume.sidecar.settings.values import Checked, KeyPath, RefusedError, expect_visible
from reconsume.topics.client_rules import NATIVE, property_fault


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

TRANSACTION_TIMEOUT = (5_000, 10_000)
"""Limits of transaction.timeout.ms in ms. Below, a slow broker ends good transactions. Above, one crashed
pod blocks the readers of everything that it wrote to for as long."""
LEAST_MS: Mapping[str, int] = {
    "message.timeout.ms": 1_000,
    "delivery.timeout.ms": 1_000,
    "request.timeout.ms": 1_000,
    "socket.timeout.ms": 1_000,
    "max.poll.interval.ms": 10_000,
}
"""The least ms of a time limit within which a broker answers. librdkafka takes 1 for most: then no copy is ever written
in time, and each failed record is held without end."""
MOST_BACKOFF = 5_000
"""ms of retry.backoff.ms at most. With more a transaction of 10 s has ended before a request is sent again."""
MAX_POLL_INTERVAL = 300_000
"""librdkafka's default of max.poll.interval.ms, in ms. A member that does not poll for longer has left the group."""


def read_kafka(value: object) -> Kafka:
    """Return the properties for librdkafka, with secrets in files not read yet.

    Raises RefusedError with every fault, and ValueError if `value` is no mapping.
    """
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of librdkafka properties")
    faults: list[tuple[KeyPath, str]] = []
    taken: dict[str, str] = {}
    for name, property_value in value.items():
        try:
            taken[str(name)] = check_property(str(name), property_value)
        except ValueError as fault:
            faults.append(((str(name),), str(fault)))
    if not taken.get("bootstrap.servers", "").strip() and not names_servers(faults):
        faults.append((("bootstrap.servers",), "is required: host:port of one or more brokers, joined by commas"))
    faults += [
        ((name,), f"is given twice: {name.removesuffix(SUFFIX)} is there too")
        for name in taken
        if is_filed(name) and name.removesuffix(SUFFIX) in taken
    ]
    if faults:
        raise RefusedError(faults)
    return Kafka(taken)


def names_servers(faults: list[tuple[KeyPath, str]]) -> bool:
    """Whether one of the faults is already about the list of servers."""
    return any(path[0] in ("bootstrap.servers", "metadata.broker.list") for path, _ in faults)


def check_property(name: str, property_value: object) -> str:
    """Return one property's value as text. Raises ValueError if it is refused or is no scalar."""
    if isinstance(property_value, Mapping):
        raise ValueError(f"must be written flat, with dots: {name}.{next(iter(property_value), 'x')}")
    if CODE.fullmatch(name):
        raise ValueError("is code, and cannot be given in a configuration")
    value = scalar(property_value)
    fixed = FIXED.get(name)
    if fixed is not None and value.lower() not in fixed.values:
        raise ValueError(f"cannot be set: {fixed.why}")
    if is_filed(name) and not value.startswith("/"):
        raise ValueError("must be the absolute path of a file that holds it")
    if why := property_fault(name, value):
        raise ValueError(why)
    if not is_secret((name,)) or is_path((name,), value):
        expect_visible(LINE_ENDS.sub("", value))
    check_range(name, value)
    return value


def scalar(value: object) -> str:
    """Return a YAML scalar as librdkafka reads it. Raises ValueError for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("must be text, a number, true or false")


def check_range(name: str, value: str) -> None:
    """Raise ValueError if a property that the promise depends on is outside its limits."""
    low, high = TRANSACTION_TIMEOUT
    if name == "transaction.timeout.ms" and not (value.isdecimal() and low <= int(value) <= high):
        raise ValueError(f"must be {low} to {high}: an open transaction of a dead pod holds up every reader so long")
    least = LEAST_MS.get(name, 0)
    if least and not (value.isdecimal() and int(value) >= least):
        raise ValueError(f"must be at least {least}: within a shorter time a broker cannot answer")
    if name == "retry.backoff.ms" and not (value.isdecimal() and int(value) <= MOST_BACKOFF):
        raise ValueError(f"must be at most {MOST_BACKOFF}: a transaction would end before its request is sent again")
    if name == "group.protocol" and value.lower() not in ("classic", "consumer"):
        raise ValueError("must be classic or consumer")


def kafka_schema() -> dict[str, object]:
    """Return the JSON Schema of the section. Its descriptions are the reasons, so that an editor shows them."""
    known: dict[str, object] = {"bootstrap.servers": {"type": "string", "description": "host:port, joined by commas"}}
    for name, fixed in FIXED.items():
        allowed: dict[str, object] = {"enum": yaml_forms(fixed.values)} if fixed.values else {"not": {}}
        known[name] = {**allowed, "description": f"Cannot be set: {fixed.why}."}
    low, high = TRANSACTION_TIMEOUT
    known["transaction.timeout.ms"] = {"type": "integer", "minimum": low, "maximum": high}
    for name, least in LEAST_MS.items():
        known[name] = {"type": "integer", "minimum": least}
    known["retry.backoff.ms"] = {"type": "integer", "maximum": MOST_BACKOFF}
    known["group.protocol"] = {"enum": ["classic", "consumer"]}
    for name in sorted(FILED):
        known[name + SUFFIX] = {"type": "string", "pattern": "^/", "description": f"The file that holds {name}."}
    return {
        "type": "object",
        "required": ["bootstrap.servers"],
        "properties": known,
        "additionalProperties": {"type": ["string", "number", "boolean"]},
    }


def yaml_forms(values: tuple[str, ...]) -> list[object]:
    """Return the values as text, and also in the form of YAML if that is different."""
    other: dict[str, object] = {"true": True, "false": False, "-1": -1}
    return [*values, *(other[value] for value in values if value in other)]


KAFKA = Checked(
    read_kafka,
    "a mapping of librdkafka properties, with bootstrap.servers",
    kafka_schema(),
    write=lambda kafka: dict(kafka.properties),
)
