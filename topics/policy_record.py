"""The records of the policy topic: the group's retry policy, and what each instance subscribes to (INTERFACE §6).

Hostile until parsed: whoever may write to the topic may write anything. What breaks the form is a value that says why,
never an exception. What the values of a policy may be is the settings' to say, not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from topics import json_bounds as bounds
from topics import versions

KEY = b"policy"
"""The key of the group's policy."""
INSTANCE = b"instance/"
"""What the key of an instance's subscription begins with."""

LARGEST = 64 * 1024
"""Bytes of a value. Ours have a few hundred; a larger one would only cost every instance its memory."""
LONGEST_NAME = 256
"""Characters of who wrote a policy, and bytes of an instance's name."""
MOST_TOPICS = 1024

LONGEST_REASON = 300
"""Characters of why a pace is not open."""
PARTITION = 0
"""All is written to this one, also where the topic has more: the order of policies must be total."""

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Values: TypeAlias = Mapping[str, object]


class PolicyRecord(msgspec.Struct, frozen=True):
    """The group's policy: values as they are written in YAML, by bare keys such as `max_reconsume_times`.

    `was` holds what the changed keys were before; `at` is epoch ms. Keys that we do not know are kept: a newer version
    wrote them.
    """

    policy: dict[str, Any]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    at: Long
    was: dict[str, Any] = {}
    v: Literal[1] = 1


class PaceTold(msgspec.Struct, frozen=True):
    """How an instance's deliveries go: open, throttled, outage, or what a newer version calls it; `since` is epoch ms.

    `in_flight` deliveries were out when it was told, of `limit` at most; `reason` says why it is not open.
    """

    state: Annotated[str, msgspec.Meta(max_length=32)]
    since: Long
    in_flight: Long = 0
    limit: Long = 0
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""


class SubscriptionRecord(msgspec.Struct, frozen=True):
    """What one instance subscribes to: tags by topic, as they are written in the configuration. `at` is epoch ms.

    `pace`: None where nothing is delivered, and from versions that did not tell. `overdue`: by how many ms its most
    overdue retry was late; 0 from versions that did not tell.
    """

    subscription: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_TOPICS)]
    at: Long
    pace: PaceTold | None = None
    overdue: Long = 0
    v: Literal[1] = 1


class BadRecord(msgspec.Struct, frozen=True):
    """Why a record of the policy topic is not what its key promises, as one sentence for people."""

    text: str


class NewerRecord(msgspec.Struct, frozen=True):
    """A record that a newer version of Reconsume wrote, with its `v`: left alone. `instance` None: it is the policy."""

    v: int
    instance: str | None = None


class PolicyHeard(msgspec.Struct, frozen=True):
    """The group's policy was written; None: it was withdrawn, and each instance's configuration holds."""

    record: PolicyRecord | None


class InstanceHeard(msgspec.Struct, frozen=True):
    """An instance told what it subscribes to; None: it has left in order."""

    instance: str
    record: SubscriptionRecord | None


Heard: TypeAlias = PolicyHeard | InstanceHeard | NewerRecord | BadRecord

_ENCODER = msgspec.json.Encoder()
_POLICY = msgspec.json.Decoder(PolicyRecord)
_SUBSCRIPTION = msgspec.json.Decoder(SubscriptionRecord)


def instance_key(instance: str) -> bytes:
    """The key under which an instance tells what it subscribes to."""
    return INSTANCE + instance.encode()


def render_record(record: PolicyRecord | SubscriptionRecord) -> bytes:
    """The record's value, as JSON."""
    return _ENCODER.encode(record)


def parse_record(key: bytes | None, value: bytes | None) -> Heard:
    """What a record of the policy topic says. Never raises; unknown fields are ignored, all else must fit."""
    if value is not None and (why := bounds.excess(value, LARGEST)):
        return BadRecord(why)
    if key == KEY:
        return PolicyHeard(None) if value is None else _parse(value, _POLICY, PolicyHeard, None)
    if key is None or not key.startswith(INSTANCE):
        return BadRecord(f"the key {shown(key)} is neither policy nor instance/…")
    try:
        instance = key[len(INSTANCE) :].decode()
    except UnicodeDecodeError:
        instance = ""
    if not 1 <= len(instance) <= LONGEST_NAME or not instance.isprintable():
        return BadRecord(f"the key {shown(key)} names no instance")
    if value is None:
        return InstanceHeard(instance, None)
    return _parse(value, _SUBSCRIPTION, lambda record: InstanceHeard(instance, record), instance)


def _parse(value: bytes, decoder: msgspec.json.Decoder[Any], heard: Any, instance: str | None) -> Heard:
    try:
        found: Heard = heard(decoder.decode(value))
    except (msgspec.MsgspecError, UnicodeError) as fault:
        if (v := versions.newer(value)) is not None:
            return NewerRecord(v, instance)
        return BadRecord(f"the value is not as agreed: {fault}"[:300])
    return found


def shown(key: bytes | None) -> str:
    """A key for people, cut: it may hold anything."""
    return "null" if key is None else repr(key[:40])[1:]


def same_subscription(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two instances want the same records; the order of tags, and blanks between them, mean nothing."""
    return _plain(one) == _plain(other)


def _plain(subscription: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {topic: frozenset(tag.strip() for tag in tags.split("||")) for topic, tags in subscription.items()}
