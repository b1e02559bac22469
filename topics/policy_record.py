"""Records of the policy topic: the group's retry policy, and the subscription of each instance (INTERFACE §6).

A record is untrusted until it is parsed: any writer to the topic may write anything. A malformed record gives a value
that says why, never an exception. The settings decide which policy values are allowed, not this module.
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
"""The prefix of the key of an instance's subscription."""

LARGEST = 64 * 1024
"""Bytes of a value. Ours have a few hundred. A larger one would only cost every instance memory."""
LONGEST_NAME = 256
"""Characters of `who` in a policy, and of an instance's name."""
MOST_TOPICS = 1024

LONGEST_REASON = 300
"""Characters of the reason why a pace is not open."""
PARTITION = 0
"""The partition of all records, also if the topic has more: the order of policies must be total."""

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Values: TypeAlias = Mapping[str, object]


class PolicyRecord(msgspec.Struct, frozen=True):
    """The group's policy: values as they are written in YAML, by bare keys such as `max_reconsume_times`.

    `was` holds the previous values of the changed keys. `at` is epoch ms. Unknown keys are kept, because a newer
    version wrote them.
    """

    policy: dict[str, Any]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    at: Long
    was: dict[str, Any] = {}
    v: Literal[1] = 1


class PaceTold(msgspec.Struct, frozen=True):
    """The pace of an instance's deliveries. `state`: open, throttled, outage, or a word of a newer version.

    `since` is epoch ms. When the record was written, `in_flight` deliveries were in flight, of at most `limit`.
    `reason` says why the pace is not open.
    """

    state: Annotated[str, msgspec.Meta(max_length=32)]
    since: Long
    in_flight: Long = 0
    limit: Long = 0
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""


class SubscriptionRecord(msgspec.Struct, frozen=True):
    """The subscription of one instance: tags by topic, as in the configuration. `at` is epoch ms.

    `pace`: None if nothing is delivered, and in records of versions without it. `overdue`: by how many ms the most
    overdue retry was late; 0 in records of versions without it. `well`: it is a member of the group, and its service
    can be reached; unset in records of versions without it, which count as well.
    """

    subscription: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_TOPICS)]
    at: Long
    pace: PaceTold | None = None
    overdue: Long = 0
    v: Literal[1] = 1
    well: bool | msgspec.UnsetType = msgspec.UNSET


class BadRecord(msgspec.Struct, frozen=True):
    """The reason why a record of the policy topic does not have the form for its key, as one sentence for people."""

    text: str


class NewerRecord(msgspec.Struct, frozen=True):
    """A record that a newer version of Reconsume wrote, with its `v`. It is left alone.

    `instance` is None if it is the policy.
    """

    v: int
    instance: str | None = None


class PolicyHeard(msgspec.Struct, frozen=True):
    """A policy. `record` is None if it was withdrawn: then each instance's configuration is in force."""

    record: PolicyRecord | None


class InstanceHeard(msgspec.Struct, frozen=True):
    """The subscription of an instance. `record` is None if the instance stopped cleanly."""

    instance: str
    record: SubscriptionRecord | None


Heard: TypeAlias = PolicyHeard | InstanceHeard | NewerRecord | BadRecord

_ENCODER = msgspec.json.Encoder()
_POLICY = msgspec.json.Decoder(PolicyRecord)
_SUBSCRIPTION = msgspec.json.Decoder(SubscriptionRecord)


def instance_key(instance: str) -> bytes:
    """Return the key under which an instance publishes its subscription."""
    return INSTANCE + instance.encode()


def render_record(record: PolicyRecord | SubscriptionRecord) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(record)


def parse_record(key: bytes | None, value: bytes | None) -> Heard:
    """Return the content of a record of the policy topic. Never raises.

    Unknown fields are ignored; everything else must fit.
    """
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
    """Return a key for people. It is cut, because it may hold anything."""
    return "null" if key is None else repr(key[:40])[1:]


def same_subscription(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two instances want the same records. The order of tags, and blanks between them, mean nothing."""
    return _plain(one) == _plain(other)


def _plain(subscription: Mapping[str, str]) -> dict[str, frozenset[str]]:
    return {topic: frozenset(tag.strip() for tag in tags.split("||")) for topic, tags in subscription.items()}
