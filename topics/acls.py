"""Who needs which right on Kafka: for each of the five users the least set with which it does its work (contract §2).

Pure. A right that Kafka gives by itself is not listed: READ, WRITE and DELETE carry DESCRIBE, and WRITE on any topic
carries IDEMPOTENT_WRITE on the cluster (KIP-679). So each right of a set is needed, and tests take each away once.
Names are literal but for transactional ids: a prefix `billing-RETRY` would also give the view and the policy away.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from topics.names import Names


class User(enum.StrEnum):
    """The Kafka users of a group; each should be one of its own."""

    SIDECAR = "sidecar"
    SERVICE = "service"
    """The service itself, which reads Kafka in relay mode alone."""
    SPARK = "spark"
    """The job of `reconsume view run`."""
    ADMIN = "admin"
    """Whoever creates topics, sets policies and redrives or purges dead letters."""
    UI = "ui"
    """Whoever looks, and changes nothing."""


class Resource(enum.StrEnum):
    """What a right is on."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Operation(enum.StrEnum):
    """What a right lets its user do; the words are Kafka's."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"


class Permission(msgspec.Struct, frozen=True, order=True):
    """One right; `prefixed`: on every name that begins so."""

    resource: Resource
    name: str
    operation: Operation
    prefixed: bool = False

    def __str__(self) -> str:
        """The right in words: `READ on topic orders`."""
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.prefixed else ''}"


class GroupShape(msgspec.Struct, frozen=True):
    """What the rights of a group's users depend on. `delays`: of its level topics, in ms.

    `view`: the sidecar follows the view. `ui`: it serves the dashboard, and `redrives` from there. `direct`: the
    service of a relay writes copies, dead letters and events by itself, as the Spark consumer does, not by posts.
    """

    names: Names
    topics: tuple[str, ...]
    delays: tuple[int, ...]
    mode: Literal["push", "pull", "relay"] = "push"
    broadcast: bool = False
    view: bool = False
    ui: bool = False
    redrives: bool = False
    direct: bool = False

    @property
    def levels(self) -> tuple[str, ...]:
        """The level topics."""
        return self.names.levels_of(self.delays, self.topics)

    @property
    def dlqs(self) -> tuple[str, ...]:
        """The dead letter topics."""
        return self.names.dlqs_of(self.topics)

    @property
    def own(self) -> tuple[str, ...]:
        """All topics of the group's own."""
        names = self.names
        return (*self.levels, names.ready, *self.dlqs, names.events, names.view, names.stats, names.policy)


READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
DESCRIBE, DESCRIBE_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS


def permissions_of(user: User, group: GroupShape) -> tuple[Permission, ...]:
    """The least rights of one of the group's users: topics first, each right once. Empty where it needs none."""
    return tuple(dict.fromkeys(RULES[user](group)))


def sidecar(group: GroupShape) -> Iterator[Permission]:
    """One sidecar, in the mode that the group is configured for."""
    if group.broadcast:
        yield from on_topics(group.topics, READ)
        return
    names, relay = group.names, group.mode == "relay"
    # The service reads them; the sidecar only looks whether they are there.
    yield from on_topics(group.topics, DESCRIBE if relay else READ)
    yield from on_topics(group.levels, READ, WRITE)
    yield from on_topics([names.ready], *((WRITE,) if relay else (READ, WRITE)))
    yield from on_topics([*group.dlqs, names.events], WRITE)
    # Each instance follows the policy, and tells there what it subscribes to.
    yield from on_topics([names.policy], READ, WRITE)
    if group.view:
        yield from following(names)
    yield from (on_group(name, READ) for name in ([] if relay else [names.group]) + [names.retry_group])
    for lane in ("retry", "post") if relay else ("main", "retry"):
        yield on_transactions(f"{names.group}-{lane}-")
    if group.ui:
        yield from ui(group)
    if group.redrives:
        yield from redriving(names)


def service(group: GroupShape) -> Iterator[Permission]:
    """The service: it meets Kafka in relay mode alone."""
    if group.mode != "relay":
        return
    names = group.names
    yield from on_topics([*group.topics, names.ready], READ)
    if group.direct:
        yield from on_topics([*group.levels, *group.dlqs, names.events], WRITE)
    yield on_group(names.group, READ)


def spark(group: GroupShape) -> Iterator[Permission]:
    """The view's job: events in, present states and sums out (contract §8). Spark's reader joins no group;
    how far it is is committed by another name."""
    names = group.names
    yield from on_topics([names.events], READ)
    yield from on_topics([names.view, names.stats], WRITE)
    yield on_group(names.view_group, READ)


def admin(group: GroupShape) -> Iterator[Permission]:
    """`topics`, `policy`, `dlq`, `audit`; never WRITE on a main topic."""
    names = group.names
    yield from on_topics(group.topics, READ, DESCRIBE_CONFIGS)
    yield from on_topics(group.own, CREATE, READ, DESCRIBE_CONFIGS)
    yield from on_topics([names.ready, names.events, names.policy], WRITE)
    yield from on_topics(group.dlqs, Operation.DELETE)
    yield from (on_group(name, DESCRIBE) for name in (names.group, names.retry_group))
    yield from redriving(names)


def ui(group: GroupShape) -> Iterator[Permission]:
    """Looking at what is in retry, at dead letters, at the policy, and at how far each lane has come."""
    names = group.names
    yield from following(names)
    yield from on_topics([names.events], READ)
    yield from on_topics([*group.dlqs, names.policy], READ, DESCRIBE_CONFIGS)
    yield from on_topics([*group.topics, *group.levels, names.ready], DESCRIBE)
    yield from (on_group(name, DESCRIBE) for name in (names.group, names.retry_group, names.redrive_group))


RULES = {User.SIDECAR: sidecar, User.SERVICE: service, User.SPARK: spark, User.ADMIN: admin, User.UI: ui}


def following(names: Names) -> Iterator[Permission]:
    """Reading the view: its settings say how long a row is kept, and the events how new it is."""
    yield from on_topics([names.view, names.stats], READ, DESCRIBE_CONFIGS)
    yield from on_topics([names.events], DESCRIBE_CONFIGS)
    yield on_group(names.view_group, DESCRIBE)


def redriving(names: Names) -> Iterator[Permission]:
    """Bringing dead letters back, for who may read them: copy, event and progress in one transaction."""
    yield from on_topics([names.ready, names.events], WRITE)
    yield on_group(names.redrive_group, READ)
    yield Permission(Resource.TRANSACTIONAL_ID, names.redrive_group, WRITE)


def on_topics(names: Iterable[str], *operations: Operation) -> Iterator[Permission]:
    """The operations on each of the topics."""
    yield from (Permission(Resource.TOPIC, name, operation) for name in names for operation in operations)


def on_group(name: str, operation: Operation) -> Permission:
    """An operation on a consumer group."""
    return Permission(Resource.GROUP, name, operation)


def on_transactions(prefix: str) -> Permission:
    """Writing transactions under every id that begins so: it ends with the instance's name."""
    return Permission(Resource.TRANSACTIONAL_ID, prefix, WRITE, prefixed=True)
