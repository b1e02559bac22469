"""The key that is the same in two deliveries with one effect: group, id, cycle and redrives. Pure.

It is read as strictly as the sidecar writes it. The retries are not part of it. If the effect has happened and the
service's answer was lost, the record is retried, and the retry must not repeat the effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

# No leading zeros: one record must not have two ids.
ID = re.compile(r"[a-zA-Z0-9._-]{1,249}:(?:0|[1-9][0-9]{0,9}):(?:0|[1-9][0-9]{0,18})")
GROUP = re.compile(r"[a-zA-Z0-9._-]{1,249}")
SERIES = re.compile(r"(?:([1-9][0-9]{0,5})\.)?(0|[1-9][0-9]{0,5})")
"""The redrives, behind the cycle if there is one."""
LARGEST_COUNT = 999_999


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
        if not isinstance(self.group, str) or GROUP.fullmatch(self.group) is None:
            raise ValueError(f"the group is {self.group!r:.60}, not a Kafka name")
        if not isinstance(self.id, str) or ID.fullmatch(self.id) is None:
            raise ValueError(f"the id is {self.id!r:.60}, not topic:partition:offset")
        for name, count in (("redrives", self.redrives), ("cycle", self.cycle)):
            # `True` would be stored as 1, which is the key of another delivery.
            if type(count) is not int or not 0 <= count <= LARGEST_COUNT:
                raise ValueError(f"{name} is {count!r:.60}, not a number from 0 to {LARGEST_COUNT}")


def delivery_key(headers: Headers) -> DeliveryKey:
    """Return the key of a pushed request.

    Raises ValueError in one sentence if its headers are missing, duplicate or malformed.
    """
    text = only(headers, "Idempotency-Key")
    group, _, rest = text.partition("/")
    identity, _, series = rest.partition("/")
    counts = SERIES.fullmatch(series)
    if counts is None:
        raise ValueError(f"Idempotency-Key is {text!r:.60}, not group/id/redrives")
    return DeliveryKey(group, identity, int(counts[2]), int(counts[1] or 0))


def only(headers: Headers, name: str) -> str:
    """Return the one value of the header `name`. Raises ValueError if there is none or more than one."""
    values = [value for key, value in headers.items() if key.lower() == name.lower()]
    if len(values) != 1:
        raise ValueError(f"{name} is {'missing' if not values else 'there more than once'}")
    return values[0]
