"""Rights on Kafka: for each of a group's five users, the least set with which the user can work (contract 14.1).

Pure. A right that Kafka implies is not listed: READ, WRITE and DELETE imply DESCRIBE, and WRITE on any topic implies
IDEMPOTENT_WRITE on the cluster (KIP-679). So each right of a set is needed, and tests remove each one once. Names are
literal, except transactional ids and the private groups of Spark queries, whose names only the queries know: a prefix
`billing-RETRY` would also include the view and the policy.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from reconsume.topics.names import Names


class User(enum.StrEnum):
    """The Kafka users of a group. Each role should have a user of its own."""

    SIDECAR = "sidecar"
    SERVICE = "service"
    """The service itself. It reads Kafka only in relay mode."""
    SPARK = "spark"
    """The job of `reconsume view run`."""
    ADMIN = "admin"
    """The operator who creates topics, sets policies, redrives or purges dead letters, and ends the group."""
    UI = "ui"
    """A person who only reads, and changes nothing."""
    ONCALL = "oncall"
    """The person on call: reads all that commands read, and may hold, release and redrive. A role is a list of Kafka's
    rights and no fence: who may write to the policy topic may set a policy and settle by command, too."""


class Resource(enum.StrEnum):
    """The kind of object that a right is on."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Operation(enum.StrEnum):
    """The operation that a right allows, in Kafka's words."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"


class Permission(msgspec.Struct, frozen=True, order=True):
    """One right. `prefixed`: it is on every name that begins with `name`."""

    resource: Resource
    name: str
    operation: Operation
    prefixed: bool = False

    def __str__(self) -> str:
        """Return the right in words: `READ on topic orders`."""
        return f"{self.operation} on {self.resource} {self.name}{'*' if self.prefixed else ''}"


class GroupShape(msgspec.Struct, frozen=True):
    """The properties of a group that its users' rights depend on. `delays`: of its level topics, in ms.

    `view`: the sidecar follows the view. `source`: what it is made from (`view.source`). `ui`: the sidecar serves the
    dashboard. `redrives`: the dashboard can redrive. `direct`: the service of a relay writes copies, dead letters and
    events itself, as the Spark consumer does, and does not post them; it follows the policy. `removed`: level topics of
    main topics that left the configuration. `outputs`: the names of topics to which the service may have
    records written, none of them a glob. `ordered`: whether records wait in queue topics. `imported`: topics of other
    systems whose dead letters `dlq import --from` takes over.
    """

    names: Names
    topics: tuple[str, ...]
    delays: tuple[int, ...]
    mode: Literal["push", "pull", "relay", "spark"] = "push"
    broadcast: bool = False
    view: bool = False
    ui: bool = False
    redrives: bool = False
    direct: bool = False
    removed: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    source: Literal["events", "spark"] = "events"
    ordered: bool = False
    imported: tuple[str, ...] = ()

    @property
    def levels(self) -> tuple[str, ...]:
        return (*self.names.levels_of(self.delays, self.topics), *self.removed)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue topics."""
        return tuple(self.names.queues_of(self.topics)) if self.ordered else ()

    @property
    def dlqs(self) -> tuple[str, ...]:
        """The dead-letter topics."""
        return self.names.dlqs_of(self.topics)

    @property
    def own(self) -> tuple[str, ...]:
        """All topics that belong to the group, without the main topics."""
        names = self.names
        return (*self.levels, *self.queues, names.ready, *self.dlqs, names.events, *self.rows, names.policy)

    @property
    def rows(self) -> tuple[str, ...]:
        """The topic of the Spark job's rows. Without the job there is none."""
        return (self.names.view,) if self.source == "spark" else ()


READ, WRITE, CREATE = Operation.READ, Operation.WRITE, Operation.CREATE
DESCRIBE, DESCRIBE_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS


def permissions_of(user: User, group: GroupShape) -> tuple[Permission, ...]:
    """Return the least rights of one of the group's users, each right once. Empty if the user needs none."""
    return tuple(dict.fromkeys(RULES[user](group)))


def sidecar(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights of one sidecar, in the mode that the group is configured for. In mode spark there is none."""
    if group.mode == "spark":
        return
    if group.broadcast:
        yield from on_topics(group.topics, READ)
        return
    names, relay = group.names, group.mode == "relay"
    # In relay mode the service reads them, and the sidecar only checks that they exist.
    yield from on_topics(group.topics, DESCRIBE if relay else READ)
    yield from on_topics([*group.levels, *group.queues], READ, WRITE)
    yield from on_topics([names.ready], *((WRITE,) if relay else (READ, WRITE)))
    yield from on_topics([*group.dlqs, names.events], WRITE)
    # Each instance follows the policy, and publishes its subscription there.
    yield from on_topics([names.policy], READ, WRITE)
    yield from on_topics(group.outputs, WRITE)
    if group.view:
        yield from following(group)
    yield from (on_group(name, READ) for name in ([] if relay else [names.group]) + [names.retry_group])
    for lane in ("retry", "post") if relay else ("main", "retry"):
        yield on_transactions(f"{names.group}-{lane}-")
    if group.ui:
        yield from ui(group)
    if group.redrives:
        yield from redriving(names)


def service(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights of the service, which uses Kafka only in relay mode, or of the queries of mode spark."""
    names = group.names
    if group.mode == "spark":
        yield from query(group, gated=True)
    elif group.mode == "relay":
        yield from on_topics([*group.topics, names.ready], READ)
        if group.direct:
            yield from query(group, gated=False)
        yield on_group(names.group, READ)


def query(group: GroupShape, *, gated: bool) -> Iterator[Permission]:
    """Yield the rights of the Spark queries that consume the group. `gated`: they read the level topics themselves.

    A start without progress reads the events, and asks for the progress of others.
    """
    names = group.names
    yield from on_topics([*group.topics, names.ready], READ)
    yield from on_topics(group.levels, WRITE, *((READ, DESCRIBE_CONFIGS) if gated else ()))
    yield from on_topics(group.dlqs, WRITE)
    yield from on_topics([names.events, names.policy], READ, WRITE)
    yield from (on_group(name, DESCRIBE) for name in ((names.group, names.retry_group) if gated else ()))
    yield from consuming(names)


def spark(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights of the view's job: it reads events, and writes present states (contract 11.6).

    Spark's reader joins no group. Its progress is committed under another name. A group without the job has no user for
    it.
    """
    if not group.rows:
        return
    names = group.names
    yield from on_topics([names.events], READ)
    yield from on_topics([names.view], WRITE)
    yield on_group(names.view_group, READ)


def admin(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights for `topics`, `policy`, `dlq`, `audit` and `group delete`.

    WRITE on a main topic is never among them.
    """
    names = group.names
    yield from on_topics(group.topics, READ, DESCRIBE_CONFIGS)
    yield from on_topics(group.own, CREATE, READ, DESCRIBE_CONFIGS, Operation.ALTER, Operation.DELETE)
    yield from on_topics([*group.queues, names.ready, names.events, names.policy], WRITE)
    yield from on_topics(group.outputs, READ)  # for `audit`; `topics check` only looks whether they are there
    if group.imported:
        yield from on_topics(group.imported, READ)
        yield from on_topics(group.dlqs, WRITE)
    groups = (names.group, names.retry_group, names.redrive_group, *((names.view_group,) if group.rows else ()))
    yield from (on_group(name, Operation.DELETE) for name in groups)  # it carries DESCRIBE
    if group.mode == "spark" or group.direct:
        yield Permission(Resource.GROUP, names.spark_group(""), Operation.DELETE, prefixed=True)
    yield from redriving(names)


def ui(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights to search what is not done, and to read the policy and the progress of each lane."""
    names = group.names
    yield from following(group)
    yield from on_topics([names.events], READ)
    yield from on_topics([*group.dlqs, names.policy], READ, DESCRIBE_CONFIGS)
    # A search reads what is not done wherever it is.
    yield from on_topics([*group.topics, *group.levels, *group.queues, names.ready], READ)
    yield from (on_group(name, DESCRIBE) for name in (names.group, names.retry_group, names.redrive_group))


def oncall(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights for each command that reads, and to hold, release and redrive."""
    names = group.names
    yield from on_topics([*group.topics, *group.own], READ, DESCRIBE_CONFIGS)
    yield from on_topics(group.outputs, READ)  # for `audit`
    yield from on_topics([*group.queues, names.policy], WRITE)
    yield from (on_group(name, DESCRIBE) for name in (names.group, names.retry_group))
    if group.rows:
        yield on_group(names.view_group, DESCRIBE)
    yield from redriving(names)


RULES = {
    User.SIDECAR: sidecar,
    User.SERVICE: service,
    User.SPARK: spark,
    User.ADMIN: admin,
    User.UI: ui,
    User.ONCALL: oncall,
}
PEOPLE = frozenset({User.ADMIN, User.UI, User.ONCALL})
"""The roles of people, who need not stand next to a service."""


def following(group: GroupShape) -> Iterator[Permission]:
    """Yield the rights to read the view: the events, which the sums count, and the rows of the Spark job.

    The settings of its topics say how long a row is kept, and the events topic says how new the view is.
    """
    names = group.names
    yield from on_topics([names.events, *group.rows], READ, DESCRIBE_CONFIGS)
    if group.rows:
        yield on_group(names.view_group, DESCRIBE)


def consuming(names: Names) -> Iterator[Permission]:
    """Yield the rights of each Spark query to its private group, and to the transactions that commit its progress."""
    yield Permission(Resource.GROUP, names.spark_group(""), READ, prefixed=True)
    yield on_transactions(names.spark_group(""))


def redriving(names: Names) -> Iterator[Permission]:
    """Yield the rights to redrive dead letters, for a user who may read them.

    The copy, the event and the progress are written in one transaction.
    """
    yield from on_topics([names.ready, names.events], WRITE)
    yield on_group(names.redrive_group, READ)
    yield Permission(Resource.TRANSACTIONAL_ID, names.redrive_group, WRITE)


def on_topics(names: Iterable[str], *operations: Operation) -> Iterator[Permission]:
    """Yield one right for each operation on each of the topics."""
    yield from (Permission(Resource.TOPIC, name, operation) for name in names for operation in operations)


def on_group(name: str, operation: Operation) -> Permission:
    """Return the right to an operation on a consumer group."""
    return Permission(Resource.GROUP, name, operation)


def on_transactions(prefix: str) -> Permission:
    """Return the right to transactions under every id with this prefix. An id ends with the instance's name."""
    return Permission(Resource.TRANSACTIONAL_ID, prefix, WRITE, prefixed=True)
