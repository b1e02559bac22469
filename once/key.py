"""The key that is the same in two deliveries with one effect. Pure.

There are two. `DeliveryKey` has group, id, cycle and redrives: the effect of one record. `ProducerKey` has group,
topic, the producer's own text and cycle (`deliver.idempotency`): the effect of all records with that text. Both are
read as strictly as the sidecar writes them. The retries are not part of them. If the effect has happened and the
service's answer was lost, the record is retried, and the retry must not repeat the effect.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

# No leading zeros: one record must not have two ids.
ID = re.compile(r"[a-zA-Z0-9._-]{1,249}:(?:0|[1-9][0-9]{0,9}):(?:0|[1-9][0-9]{0,18})")
NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""The name of a group or topic on Kafka."""
SERIES = re.compile(r"(?:([1-9][0-9]{0,5})\.)?(0|[1-9][0-9]{0,5})")
"""The redrives, behind the cycle if there is one."""
COUNT = re.compile(r"0|[1-9][0-9]{0,5}")
LARGEST_COUNT = 999_999
IN_HEADER = re.compile(r"[!-~]{1,200}")
"""A text that the sidecar sends unchanged in a header; of any other it sends the hash."""
LONGEST_ID = 280
"""Characters of the column `record_id`."""


class Headers(Protocol):
    """A request's headers, in a form that a dict and the headers of every framework have."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Return names, in any case, and values."""


@dataclass(frozen=True, slots=True)
class DeliveryKey:
    """One record, since its last redrive or reset, for one group.

    Raises ValueError unless all four fields are in the contract's form.
    """

    group: str
    id: str
    """`topic:partition:offset` of the record's first copy."""
    redrives: int = 0
    """How often the record was redriven from the dead-letter topic. Each redrive asks for the effect again."""
    cycle: int = 0
    """How often the position of its partition was reset. Each reset asks for the effect again."""

    def __post_init__(self) -> None:
        expect_name("group", self.group)
        if not isinstance(self.id, str) or ID.fullmatch(self.id) is None:
            raise ValueError(f"the id is {self.id!r:.60}, not topic:partition:offset")
        expect_count("redrives", self.redrives)
        expect_count("cycle", self.cycle)

    @property
    def row(self) -> tuple[str, str, int, int]:
        """The primary key of the table: group, record_id, cycle, redrives."""
        return self.group, self.id, self.cycle, self.redrives


@dataclass(frozen=True, slots=True)
class ProducerKey:
    """All records of a topic that have one text of their producer, since the last reset, for one group.

    `text` may be any text. It is kept as the sidecar sends it in a header, so that a request and a record of a batch
    have the same key. Raises ValueError if it is empty, or another field is not in the contract's form.
    """

    group: str
    topic: str
    """The main topic: two topics may use the same texts for different things."""
    text: str
    cycle: int = 0
    """How often the position of the record's partition was reset. Each reset asks for the effect again."""

    def __post_init__(self) -> None:
        expect_name("group", self.group)
        expect_name("topic", self.topic)
        if not isinstance(self.text, str) or not self.text:
            raise ValueError("the text is empty")
        if IN_HEADER.fullmatch(self.text) is None:
            object.__setattr__(self, "text", hashed(self.text))
        expect_count("cycle", self.cycle)

    @property
    def row(self) -> tuple[str, str, int, int]:
        """The primary key of the table. `record_id` is `topic/text`, which no id is, or the hash of a longer one."""
        name = f"{self.topic}/{self.text}"
        return self.group, name if len(name) <= LONGEST_ID else hashed(name), self.cycle, 0


def delivery_key(headers: Headers) -> DeliveryKey | ProducerKey:
    """Return the key of a pushed request.

    It is that of the record's id if `Idempotency-Key` is; otherwise it is that of the producer's text
    (`deliver.idempotency`). Raises ValueError in one sentence if a header is missing, duplicate or malformed.
    """
    text = only(headers, "Idempotency-Key")
    try:
        key = key_of_id(text)
    except ValueError:
        if not any(name.lower() == "reconsume-id" for name, _ in headers.items()):
            raise
        key = None
    if key is None or not is_of_record(key, headers):
        cycle = count_in(headers, "Reconsume-Cycle")
        return ProducerKey(only(headers, "Reconsume-Group"), only(headers, "Reconsume-Topic"), text, cycle)
    return key


def record_key(group: str, record: Mapping[str, Any]) -> DeliveryKey | ProducerKey:
    """Return the key of a record of a batch, of an envelope or of the pull API. Raises ValueError if it has none."""
    try:
        own = DeliveryKey(group, record["id"], record["redrives"], record.get("cycle", 0))
        text, topic = record["idempotency_key"], record["topic"]
    except KeyError as missing:
        raise ValueError(f"the record has no {missing}") from None
    series = f"{own.cycle}.{own.redrives}" if own.cycle else str(own.redrives)
    return own if text == f"{group}/{own.id}/{series}" else ProducerKey(group, topic, text, own.cycle)


def key_of_id(text: str) -> DeliveryKey:
    """Return the key that `group/id/redrives` names. Raises ValueError if the text is no such key."""
    group, _, rest = text.partition("/")
    identity, _, series = rest.partition("/")
    counts = SERIES.fullmatch(series)
    if counts is None:
        raise ValueError(f"Idempotency-Key is {text!r:.60}, not group/id/redrives")
    return DeliveryKey(group, identity, int(counts[2]), int(counts[1] or 0))


def is_of_record(key: DeliveryKey, headers: Headers) -> bool:
    """Return whether a key is that of the record in the request, and not a text of its producer that looks like one."""
    if not any(name.lower() == "reconsume-id" for name, _ in headers.items()):
        return True  # a call of the service's own, with the key alone
    counts = count_in(headers, "Reconsume-Redrives"), count_in(headers, "Reconsume-Cycle")
    own = (only(headers, "Reconsume-Group"), only(headers, "Reconsume-Id"), *counts)
    return (key.group, key.id, key.redrives, key.cycle) == own


def count_in(headers: Headers, name: str) -> int:
    """Return the number in a header; 0 if it is not there. Raises ValueError if it is malformed or duplicate."""
    if not any(key.lower() == name.lower() for key, _ in headers.items()):
        return 0
    text = only(headers, name)
    if COUNT.fullmatch(text) is None:
        raise ValueError(f"{name} is {text!r:.60}, not a number from 0 to {LARGEST_COUNT}")
    return int(text)


def only(headers: Headers, name: str) -> str:
    """Return the one value of the header `name`. Raises ValueError if there is none or more than one."""
    values = [value for key, value in headers.items() if key.lower() == name.lower()]
    if len(values) != 1:
        raise ValueError(f"{name} is {'missing' if not values else 'there more than once'}")
    return values[0]


def hashed(text: str) -> str:
    """Return the hash of a text as the sidecar writes it into a header."""
    return f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"


def expect_name(field: str, name: object) -> None:
    """Raise ValueError unless a field is a name on Kafka."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(f"the {field} is {name!r:.60}, not a Kafka name")


def expect_count(field: str, count: object) -> None:
    """Raise ValueError unless a field is a number that the sidecar writes."""
    # `True` would be stored as 1, which is the key of another delivery.
    if type(count) is not int or not 0 <= count <= LARGEST_COUNT:
        raise ValueError(f"{field} is {count!r:.60}, not a number from 0 to {LARGEST_COUNT}")
