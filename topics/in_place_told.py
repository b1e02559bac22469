"""What a heartbeat says of a record that is retried in place, and blocks its key or partition meanwhile.

Retries in place have no event and no copy, so memory alone has their attempts. Each instance names the records that
block their key (`is_blocked`), those first that fail longest. Every instance of the group reads a heartbeat, so they
take `LARGEST` bytes at most, and none has a key. They are as untrusted as any record (`policy_record.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec

MOST = 20
"""Records that a heartbeat names."""
LARGEST = 2_304
"""Bytes that they take together; the first one always fits."""
LONGEST_REASON = 64
"""Characters of the class of a failure."""
BLOCKED_TIMES = 3
BLOCKED_MS = 10_000
"""A key is blocked once its first record has failed so often, or for so long (ms)."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class InPlaceTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record that is retried in place and blocks what follows. `id`: topic, partition and offset.

    `times`: how often it has failed. `due`: when its next attempt was due; `since`: when it failed first (epoch ms).
    `reason`: the class of its last failure. `held`: an operator holds it, so no attempt follows.
    """

    id: Annotated[str, msgspec.Meta(max_length=300)]
    times: Count
    due: Count
    since: Count
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""
    held: bool = False


def is_blocked(times: int, since_ms: int, now_ms: int) -> bool:
    """Return whether a record that has failed so often, the first time at `since_ms` (epoch ms), blocks its key."""
    return times >= BLOCKED_TIMES or now_ms - since_ms >= BLOCKED_MS


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
