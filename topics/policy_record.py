"""Records of the policy topic: the group's retry policy, and the subscription of each instance (contract 10.1).

A record is untrusted until it is parsed: any writer to the topic may write anything. A malformed record gives a value
that says why, never an exception. The settings decide which policy values are allowed, not this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from reconsume.topics import json_bounds as bounds
from reconsume.topics import versions
from reconsume.topics.action_record import ACTION, ActionHeard, read_action
from reconsume.topics.agreement import SETTINGS, SettingsHeard, digest_of, read_settings
from reconsume.topics.decision_record import DECISION, DecisionHeard, read_decision
from reconsume.topics.hold_record import HOLD, MOST_HOLDS, HoldHeard, read_hold
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.instance_sums import InstanceSums
from reconsume.topics.reset_record import RESET, ResetHeard, read_reset

KEY = b"policy"
"""The key of the group's policy."""
OF_SPARK = "spark/"
"""How the names of instances begin that are Spark queries."""
INSTANCE = b"instance/"
"""The prefix of the key of an instance's subscription."""
OWNER = b"retries-owner"
"""The key under which a Spark query that reads the level topics itself claims the group's retries."""
SETTLE = b"settle/"
"""The prefix of the key of a settlement, before a record's id."""

LARGEST = 64 * 1024
"""Bytes of a value. Ours have a few hundred. A larger one would only cost every instance memory."""
DEEPEST = 5
"""Objects and lists inside each other: a rule of a policy may have a formula, and a heartbeat tells of each topic which
reasons its failures had."""
LARGEST_HEARTBEAT = 4 * 1024
"""Bytes of a heartbeat at most: each instance reads those of all others, and every start all of the last minutes."""
MOST_SUBSCRIBED = 512
"""Bytes of the topics and tags in a heartbeat."""
SHORT_REASON = 40
"""Characters of the reason of a pace in a heartbeat that has no room."""
LONGEST_NAME = 256
"""Characters of `who` in a policy, and of an instance's name."""
LONGEST_ID = 300
"""Characters of a record's id: a topic has 249, and two numbers follow."""
LONGEST_WHY = 1_000
"""Characters of the reason that a person gives."""
MOST_TOPICS = 1024

MOST_LABELS, LONGEST_LABEL_NAME, LONGEST_LABEL = 8, 32, 200
"""Labels of a group, and characters of the name and the value of one."""
LONGEST_REASON = 300
"""Characters of the reason why a pace is not open."""
PARTITION = 0
"""The partition of all records: the control log. Their order must be total."""

PREFIXES = ", ".join(f"{prefix.decode()}…" for prefix in (INSTANCE, SETTINGS, DECISION, SETTLE, HOLD, RESET, ACTION))
"""The keys of the other records, for people."""

Long: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Values: TypeAlias = Mapping[str, object]


class PolicyRecord(msgspec.Struct, frozen=True):
    """The group's policy: values as they are written in YAML, by bare keys such as `max_reconsume_times`.

    `was` holds the previous values of the changed keys. `at` is epoch ms. `why` is the reason that was given; left out
    if none was. Unknown keys are kept, because a newer version wrote them.
    """

    policy: dict[str, Any]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    at: Long
    was: dict[str, Any] = {}
    v: Literal[1] = 1
    why: Annotated[str, msgspec.Meta(max_length=LONGEST_WHY)] | msgspec.UnsetType = msgspec.UNSET


# With `omit_defaults` only what a factory makes is always written.
ALWAYS_0: Any = msgspec.field(default_factory=int)
ALWAYS_1: Any = msgspec.field(default_factory=lambda: 1)
ALWAYS_EMPTY: Any = msgspec.field(default_factory=str)


class PaceTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The pace of an instance's deliveries. `state`: open, throttled, outage, waiting, or a word of a newer version.

    With `waiting` nothing is delivered, as the service is not there; `reason` holds its address and the cause.

    `since` is epoch ms. When the record was written, `in_flight` deliveries were in flight, of at most `limit`.
    `reason` says why the pace is not open, and `cause` what an outage is: unreachable, failing or unwell; None without
    one. `idle_since`: in an outage, epoch ms since when no record was there to try the service with; None if one is in
    flight, or outside an outage. A field that is None is not written.
    """

    state: Annotated[str, msgspec.Meta(max_length=32)]
    since: Long
    in_flight: Long = ALWAYS_0
    limit: Long = ALWAYS_0
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ALWAYS_EMPTY
    cause: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    idle_since: Long | None = None


class RefusedTold(msgspec.Struct, frozen=True):
    """A topic whose records the service rejects, each with this status of HTTP. `since` is epoch ms.

    The rest is what was sent: `path` without its query, `content_type` empty for none. `said`: the service said why, in
    a text that heartbeats do not have, as it may quote a record's value.
    """

    topic: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    status: Annotated[int, msgspec.Meta(ge=400, le=499)]
    since: Long
    method: Annotated[str, msgspec.Meta(max_length=32)] = "POST"
    path: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""
    content_type: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)] = ""
    said: bool = False


class ReleaseTold(msgspec.Struct, frozen=True):
    """What an instance runs: its version, the commit that it was built from, its Python and its Kafka client."""

    version: Annotated[str, msgspec.Meta(max_length=64)]
    commit: Annotated[str, msgspec.Meta(max_length=64)]
    python: Annotated[str, msgspec.Meta(max_length=64)]
    librdkafka: Annotated[str, msgspec.Meta(max_length=64)]


class ObeysTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an instance obeys of what operators say.

    `read_to`: it has taken in every policy and hold below this offset of the control log. `holds`: the ids of the holds
    that it obeys, as many as fit. `policy`: the offset of the policy in force; None if there is none. `settings`: the
    digest of the settings of instances that it follows; empty if its own configuration applies.
    """

    read_to: Long = ALWAYS_0
    holds: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=MOST_HOLDS)] = ()
    policy: Long | None = None
    settings: Annotated[str, msgspec.Meta(max_length=64)] = ""


class QueryTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Spark query that consumes the group, and one start of it. `since`: of that start (epoch ms).

    `application` is Spark's id of it, empty if unknown. `nonce` is new in each start: of two with one name the later
    goes on. `gated`: it reads the level topics itself, and claims the group's retries; otherwise it reads what sidecars
    move to the ready topic. `renewed`: an earlier heartbeat of this start counted. `ended`: it reads no more.
    """

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]
    application: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    host: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    since: Long
    nonce: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    gated: bool = False
    renewed: bool = False
    ended: bool = False

    @property
    def instance(self) -> str:
        """The name of the query among the group's instances, and in the events that it writes."""
        return f"{OF_SPARK}{self.name}"


LabelName: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_LABEL_NAME)]
LabelValue: TypeAlias = Annotated[str, msgspec.Meta(max_length=LONGEST_LABEL)]


class SubscriptionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The subscription of one instance: tags by topic, as in the configuration. `at` is epoch ms.

    What the instance does not know is not written: None, or no `all_refused`.

    `pace`: None if nothing is delivered. `overdue`: by how many ms the most overdue retry was late. `well`: it is a
    member of the group, and its service can be reached; None, where that is not known, counts as well. `release`: what
    it runs. `all_refused`: the topics whose records its service rejects. `lock_timeout`, `drain_timeout`: ms for which
    the release of a partition, and a stop, wait at most for a delivery. `sums`: what it saw in the last minutes.
    `obeys`: what it obeys of what operators say. `retried_in_place`: records of an ordered group that it delivers again
    from memory, each of which holds back what follows. `in_place`: the oldest of them, by partition. `settings`: the
    digest of the agreed values of its configuration; empty if they count for no other instance. `mode`, `order`,
    `batch`: of its deliveries. `started`: when it started (epoch ms). `subscribed`: the digest of a subscription of
    which not all topics fit; otherwise empty. `labels`: who the group belongs to, as in the configuration. `query`: the
    instance is a Spark query.
    """

    subscription: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_TOPICS)]
    at: Long
    pace: PaceTold | None = None
    overdue: Long = ALWAYS_0
    v: Literal[1] = ALWAYS_1
    well: bool | None = None
    sums: InstanceSums | None = None
    release: ReleaseTold | None = None
    all_refused: Annotated[tuple[RefusedTold, ...], msgspec.Meta(max_length=64)] = ()
    lock_timeout: Long | None = None
    drain_timeout: Long | None = None
    obeys: ObeysTold | None = None
    retried_in_place: Long = 0
    settings: Annotated[str, msgspec.Meta(max_length=64)] = ""
    mode: Annotated[str, msgspec.Meta(max_length=32)] = ""
    order: Annotated[str, msgspec.Meta(max_length=32)] = ""
    batch: Long = 0
    started: Long = 0
    subscribed: Annotated[str, msgspec.Meta(max_length=64)] = ""
    in_place: Annotated[tuple[InPlaceTold, ...], msgspec.Meta(max_length=64)] = ()
    labels: Annotated[dict[LabelName, LabelValue], msgspec.Meta(max_length=MOST_LABELS)] = msgspec.field(
        default_factory=dict
    )
    query: QueryTold | None = None


class SettlementRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The dismissal of a dead letter. It is meant for the attempt with these counts alone.

    `how`: `commit`; others say nothing. `why` and `who` are for people. `at` is epoch ms. `nonce` is new in each
    settlement. `position`: where the dead letter is, `topic:partition:offset`; without it a settlement says nothing, as
    versions wrote it of a record that waits. `cycle` is left out when it is 0.
    """

    redrives: Long
    times: Long
    how: Annotated[str, msgspec.Meta(max_length=32)]
    why: Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_WHY)]
    who: Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
    at: Long
    nonce: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    position: Annotated[str, msgspec.Meta(max_length=LONGEST_ID)] = msgspec.field(name="place", default_factory=str)
    v: Literal[1] = ALWAYS_1
    cycle: Long = 0


class BadRecord(msgspec.Struct, frozen=True):
    """The reason why a record of the policy topic does not have the form for its key, as one sentence for people.

    `newer`: a newer version of Reconsume wrote it.
    """

    text: str
    newer: bool = False


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


class OwnerHeard(msgspec.Struct, frozen=True):
    """A query's claim to the group's retries, as its heartbeat. `record` is None if the claim was deleted."""

    record: SubscriptionRecord | None


class SettlementHeard(msgspec.Struct, frozen=True):
    """The settlement of the record with this id. `record` is None if its letter is gone."""

    id: str
    record: SettlementRecord | None


Heard: TypeAlias = (
    PolicyHeard
    | InstanceHeard
    | OwnerHeard
    | SettingsHeard
    | SettlementHeard
    | DecisionHeard
    | HoldHeard
    | ResetHeard
    | ActionHeard
    | NewerRecord
    | BadRecord
)

_ENCODER = msgspec.json.Encoder()
_POLICY = msgspec.json.Decoder(PolicyRecord)
_SUBSCRIPTION = msgspec.json.Decoder(SubscriptionRecord)
_SETTLEMENT = msgspec.json.Decoder(SettlementRecord)
SOLE: Mapping[bytes | None, tuple[Any, msgspec.json.Decoder[Any], str | None]] = {
    KEY: (PolicyHeard, _POLICY, None),
    OWNER: (OwnerHeard, _SUBSCRIPTION, OWNER.decode()),
}
"""The keys of which a log has one: the content of their records, its decoder, and the instance that wrote it."""
READERS: Mapping[bytes, Callable[[bytes, bytes | None], Any]] = {
    SETTINGS: read_settings,
    DECISION: read_decision,
    HOLD: read_hold,
    RESET: read_reset,
    ACTION: read_action,
}
"""What reads the records whose keys have a prefix. It returns what they say, or a sentence why they say nothing."""


def instance_key(instance: str) -> bytes:
    """Return the key under which an instance publishes its subscription."""
    return INSTANCE + instance.encode()


def settlement_key(ident: str) -> bytes:
    """Return the key of the settlement of the record with this id."""
    return SETTLE + ident.encode()


def render_record(record: PolicyRecord | SubscriptionRecord | SettlementRecord) -> bytes:
    """Return the record's value, as JSON."""
    return _ENCODER.encode(record)


def parse_record(key: bytes | None, value: bytes | None) -> Heard:
    """Return the content of a record of the policy topic. Never raises.

    Unknown fields are ignored; everything else must fit.
    """
    if value is not None and (why := bounds.excess(value, LARGEST, DEEPEST)):
        return BadRecord(why)
    if key in SOLE:
        kind, decoder, instance = SOLE[key]
        return kind(None) if value is None else _parse(value, decoder, kind, instance)
    if key is not None and key.startswith(SETTLE):
        return _settlement(key, value)
    if key is not None and (read := READERS.get(key[: key.find(b"/") + 1])) is not None:
        said = read(key, value)
        return BadRecord(said, versions.newer(value or b"") is not None) if isinstance(said, str) else said
    if key is None or not key.startswith(INSTANCE):
        return BadRecord(f"the key {shown(key)} is neither policy nor {OWNER.decode()} nor one of {PREFIXES}")
    instance = _name(key[len(INSTANCE) :], LONGEST_NAME)
    if not instance:
        return BadRecord(f"the key {shown(key)} names no instance")
    if value is None:
        return InstanceHeard(instance, None)
    return _parse(value, _SUBSCRIPTION, lambda record: InstanceHeard(instance, record), instance)


def _name(data: bytes, longest: int) -> str:
    """Return a printable name; empty if it is none."""
    try:
        name = data.decode()
    except UnicodeDecodeError:
        return ""
    return name if len(name) <= longest and name.isprintable() else ""


def _settlement(key: bytes, value: bytes | None) -> SettlementHeard | BadRecord:
    ident = _name(key[len(SETTLE) :], LONGEST_ID)
    if not ident:
        return BadRecord(f"the key {shown(key)} names no record")
    if value is None:
        return SettlementHeard(ident, None)
    record = versions.decoded(_SETTLEMENT, value, "the value is")
    return BadRecord(record) if isinstance(record, str) else SettlementHeard(ident, record)


def _parse(value: bytes, decoder: msgspec.json.Decoder[Any], heard: Any, instance: str | None) -> Heard:
    try:
        record: Heard = heard(decoder.decode(value))
    except (msgspec.MsgspecError, UnicodeError) as fault:
        if (v := versions.newer(value)) is not None:
            return NewerRecord(v, instance)
        return BadRecord(f"the value is not as agreed: {fault}"[:300])
    return record


def shown(key: bytes | None) -> str:
    """Return a key for people. It is cut, because it may hold anything."""
    return "null" if key is None else repr(key[:40])[1:]


def heartbeat_subscription(subscription: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return what a heartbeat says of a subscription: its first topics, as many as fit, and the digest of it if there
    are more. The order of tags, and blanks between them, mean nothing."""
    plain = {
        topic: "||".join(sorted({tag.strip() for tag in subscription[topic].split("||")}))
        for topic in sorted(subscription)
    }
    kept, room = dict[str, str](), MOST_SUBSCRIBED
    for topic, tags in plain.items():
        room -= len(topic.encode()) + len(tags.encode()) + len('"":"",')
        if room < 0:
            return kept, digest_of(plain)
        kept[topic] = tags
    return kept, ""


def fitted(record: SubscriptionRecord) -> SubscriptionRecord:
    """Return a heartbeat of LARGEST_HEARTBEAT bytes at most. What its lists have first, the worst, stays longest."""
    while len(_ENCODER.encode(record)) > LARGEST_HEARTBEAT and (shorter := _shorter(record)) is not None:
        record = shorter
    return record


def _shorter(record: SubscriptionRecord) -> SubscriptionRecord | None:
    """Return a heartbeat without the least important thing that it can go without; None if there is nothing more."""
    sums, obeys, pace = record.sums, record.obeys, record.pace
    if sums is not None and (sums.failures or sums.dead_letters or sums.lag):
        lists: dict[str, list[Any]] = {"failures": sums.failures, "dead_letters": sums.dead_letters, "lag": sums.lag}
        longest = max(lists, key=lambda name: len(lists[name]))
        fewer: dict[str, Any] = {longest: lists[longest][:-1], "omitted": sums.omitted + 1}
        return replace(record, sums=replace(sums, **fewer))
    if record.all_refused:
        return replace(record, all_refused=record.all_refused[:-1])
    if len(record.in_place) > 1:
        return replace(record, in_place=record.in_place[:-1])
    if pace is not None and len(pace.reason) > SHORT_REASON:
        return replace(record, pace=replace(pace, reason=f"{pace.reason[: SHORT_REASON - 1]}…"))
    if record.in_place:
        return replace(record, in_place=())
    if obeys is not None and obeys.holds:
        return replace(record, obeys=replace(obeys, holds=obeys.holds[:-1]))
    return None
