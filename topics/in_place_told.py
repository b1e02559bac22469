"""What a heartbeat says of a record that is retried in place, and blocks its key or partition meanwhile.

Retries in place have no event and no copy, so memory alone has their attempts. Each instance names the oldest such
record of a partition, those first that fail longest. Every instance of the group reads a heartbeat, so they take
`LARGEST` bytes at most. They are as untrusted as any record (`policy_record.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

MOST = 4
"""Records that a heartbeat names, one of a partition."""
LARGEST = 768
"""Bytes that they take together; the first one always fits."""
LONGEST_KEY = 48
"""Bytes of a key that a heartbeat has."""
LONGEST_REASON = 64
"""Characters of the class of a failure."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class InPlaceTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The oldest record of a partition that is retried in place. `id`: topic, partition and offset.

    `times`: how often it has failed. `due`: when its next attempt was due; `since`: when it failed first (epoch ms).
    `reason`: the class of its last failure. `key`: the beginning of its key, in Base64; None if it has none, or for
    readers who may not see it. `cut`: the key is longer. `held`: an operator holds it, so no attempt follows.
    """

    id: Annotated[str, msgspec.Meta(max_length=300)]
    times: Count
    due: Count
    since: Count
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""
    key: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    cut: bool = False
    held: bool = False

    @property
    def key_bytes(self) -> bytes | None:
        """The beginning of its key; None if it is not known, or not Base64."""
        try:
            return None if self.key is None else base64.b64decode(self.key, validate=True)
        except ValueError:
            return None

    def without_key(self) -> InPlaceTold:
        """Return what a reader may see who may see no keys."""
        return msgspec.structs.replace(self, key=None, cut=False)


def bounded(told: Iterable[InPlaceTold]) -> tuple[InPlaceTold, ...]:
    """Return those that fit in a heartbeat, the ones first that fail longest."""
    taken, room = list[InPlaceTold](), LARGEST
    for one in sorted(told, key=lambda one: one.since)[:MOST]:
        room -= len(_ENCODER.encode(one)) + 1
        if room < 0 and taken:
            break
        taken.append(one)
    return tuple(taken)


_ENCODER = msgspec.json.Encoder()
