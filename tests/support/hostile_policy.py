"""Records of a policy topic as whoever may write there can make them: forged, broken, endless, of no known version."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

HOUR, YEAR_9999 = 3_600_000, 253_370_764_800_000
UNSHOWABLE = ("a\nb", "\x1b[31mred\x1b[0m", "\x9b2J", "\u202eevil\u2066", "\ud800", "\x00")
"""Texts that a terminal or a page must not get as they are."""
VALUES = (
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, 1e308, 0.5),
    *("", " ", "1", "x" * 1_001, "x" * 60_000, *UNSHOWABLE),
    *([], {}, {"a": {"b": [1]}}, ["x"] * 2_000, [[[[[[[]]]]]]], YEAR_9999),
)
NAMES = (b"", b"a b", b"a\nb", b"\xff", b"\x1b[31m", b"x" * 400, b"orders", b"orders:0:1", b"h-1", b"others:0:1:2")
KINDS = (b"hold/", b"settle/", b"decision/", b"policy")
Record = tuple[bytes, bytes | None]


def forged(kind: bytes) -> dict[str, object]:
    """What is well formed, though nobody who may has written it. It names a topic that no group has."""
    now = int(time.time() * 1000)
    if kind == b"hold/":
        return {"since": now, "until": now + HOUR, "why": "x", "who": "root", "topic": "nobody-has-it", "v": 1}
    if kind == b"settle/":
        made = {"redrives": 0, "times": 1, "how": "commit", "why": "x", "who": "root", "at": now, "nonce": "n1"}
        return {**made, "place": "nobody-has-it-DLQ:0:1", "v": 1}
    if kind == b"decision/":
        made = {"how": "commit", "who": "root", "why": "x", "at": now, "rate": "5/s", "topic": "nobody-has-it", "v": 1}
        return {**made, "ranges": [["nobody-has-it", 0, "", 0, 9]]}
    return {"policy": {"max_deaths": 7}, "who": "root", "at": now, "was": {"max_deaths": 3}, "v": 1}


def hostile(seed: int, count: int) -> Iterator[Record]:
    """So many records of all kinds in turn, each with one thing or several that are not as agreed."""
    chance = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        key = kind if kind == b"policy" else kind + chance.choice([*NAMES, b"id-%d" % number])
        yield key, value_of(kind, chance)


def value_of(kind: bytes, chance: random.Random) -> bytes | None:
    """A value with fields changed, gone or unknown; or bytes that are cut, mixed up, or nothing at all."""
    fields = forged(kind)
    for _ in range(chance.choice([1, 1, 2, 4])):
        fields[chance.choice([*fields, "unknown"])] = chance.choice(VALUES)
    if chance.random() < 0.2:
        del fields[chance.choice(list(fields))]
    value = json.dumps(fields).encode()
    broken = (None, b"", b"null", b"[" * 50_000, value[: len(value) // 2], value[::-1], b"\xff" + value, value * 2)
    return chance.choice(broken) if chance.random() < 0.2 else value
