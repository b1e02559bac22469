"""Names on Kafka in both directions: group, delay and topic to a name, and a name back to its role (contract 3.1).

A name is matched exactly, never by a pattern. `billing-RETRY-.*` would also match the events, the view, the policy, and
every topic of a group with the name `billing-RETRY`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator

import msgspec

from reconsume.topics.durations import parse_duration, render_duration

TEMPLATES = ("{group}", "{topic}-{group}")
"""The prefixes that a configuration may choose. The second one is the TDMQ 2.9.2 form."""

LONGEST_NAME = 249
"""Characters. Kafka's limit: the name plus `-<partition>` must fit a directory name of 255 bytes."""
LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
DERIVED_GROUP = re.compile(r"(.+)-(RETRY(?:-VIEW)?|DLQ-REDRIVE|BROADCAST|SPARK-[a-zA-Z0-9._-]+)")
"""The names of consumer groups that a group derives from its own (`retry_group` and the like)."""
CONTROL_NAME = re.compile(r"(.+?)-(DLQ|(?:ORDERED|RETRY)(?=-|$)).*")
"""The names of groups whose topics could be those of another group: `billing-ORDERED-x` has the topic
`billing-ORDERED-x-RETRY`, which is also the queue topic of `billing` for its main topic `x-RETRY`."""
BY_PREFIX = re.compile(r"(.+?)-(main|retry|post)(?:-.*)?")
"""The names of groups whose transactional ids begin like those of a lane of another group."""


class LegalNames:
    """A container of every name that Kafka accepts for a topic."""

    def __contains__(self, name: object) -> bool:
        try:
            check_name(str(name))
        except ValueError:
            return False
        return True


LEGAL_NAMES = LegalNames()


class Kind(enum.StrEnum):
    """The purpose of a topic."""

    MAIN = "main"
    LEVEL = "level"
    ORDERED = "ordered"
    READY = "ready"
    DLQ = "dlq"
    EVENTS = "events"
    VIEW = "view"
    POLICY = "policy"


class Role(msgspec.Struct, frozen=True):
    """The meaning of a name: its kind, a level's delay in ms, and the source topic if the name contains it."""

    kind: Kind
    delay: int | None = None
    topic: str | None = None


class Names(msgspec.Struct, frozen=True):
    """All names of one group. `build_names` makes them and checks them."""

    group: str
    template: str = "{group}"

    def level(self, delay: int, topic: str) -> str:
        """Return the level topic where records of `topic` wait `delay` ms."""
        return f"{self.prefix(topic)}-RETRY-{render_duration(delay)}"

    def dlq(self, topic: str) -> str:
        """Return the dead-letter topic for records of `topic`."""
        return f"{self.prefix(topic)}-DLQ"

    def ordered(self, topic: str) -> str:
        """Return the queue topic where records of `topic` wait in the order of their keys."""
        return f"{topic}-{self.group}-ORDERED" if self.per_topic else f"{self.group}-ORDERED-{topic}"

    def prefix(self, topic: str) -> str:
        """Return the prefix of level topics and the DLQ. All other topics begin with the group alone."""
        return f"{topic}-{self.group}" if self.per_topic else self.group

    @property
    def per_topic(self) -> bool:
        """Whether every source topic has its own level topics and DLQ."""
        return self.template == "{topic}-{group}"

    @property
    def ready(self) -> str:
        """The topic of records that are due now."""
        return f"{self.group}-RETRY"

    @property
    def events(self) -> str:
        """The topic of state changes."""
        return f"{self.group}-RETRY-EVENTS"

    @property
    def view(self) -> str:
        """The compacted topic of present states."""
        return f"{self.group}-RETRY-VIEW"

    @property
    def policy(self) -> str:
        """The compacted topic of the group's policy."""
        return f"{self.group}-RETRY-POLICY"

    @property
    def retry_group(self) -> str:
        """The consumer group that reads the level topics and the ready topic."""
        return f"{self.group}-RETRY"

    @property
    def view_group(self) -> str:
        """The consumer group that holds the progress of the view's job on the events. It has no members."""
        return f"{self.group}-RETRY-VIEW"

    @property
    def redrive_group(self) -> str:
        """The consumer group that holds the progress of redrives."""
        return f"{self.group}-DLQ-REDRIVE"

    @property
    def own_groups(self) -> tuple[str, str, str, str]:
        """The consumer groups of the group, but for those of Spark queries."""
        return self.group, self.retry_group, self.redrive_group, self.view_group

    def spark_group(self, name: str) -> str:
        """Return the consumer group that holds the progress of the Spark query `name`. It has no members."""
        return f"{self.group}-SPARK-{name}"

    def levels_of(self, delays: Iterable[int], topics: Collection[str]) -> tuple[str, ...]:
        """Return the name of every level topic, sorted, each once."""
        return tuple(sorted({self.level(delay, topic) for delay in delays for topic in topics}))

    def dlqs_of(self, topics: Collection[str]) -> tuple[str, ...]:
        """Return the name of every dead-letter topic, sorted, each once."""
        return tuple(sorted({self.dlq(topic) for topic in topics}))

    def queues_of(self, topics: Collection[str]) -> dict[str, str]:
        """Return the main topic of each queue topic."""
        return {self.ordered(topic): topic for topic in topics}

    def role(self, name: str, topics: Collection[str]) -> Role | None:
        """Return the meaning of `name` for this group, whose main topics are `topics`.

        None if it is not one of its names.
        """
        kind = self._shared().get(name)
        if kind is not None:
            return Role(kind)
        if (main := self.queues_of(topics).get(name)) is not None:
            return Role(Kind.ORDERED, topic=main)
        return self._prefixed(name, topics) or (Role(Kind.MAIN, topic=name) if name in topics else None)

    def _shared(self) -> dict[str, Kind]:
        return {
            self.ready: Kind.READY,
            self.events: Kind.EVENTS,
            self.view: Kind.VIEW,
            self.policy: Kind.POLICY,
        }

    def _prefixed(self, name: str, topics: Collection[str]) -> Role | None:
        for topic in topics if self.per_topic else ("",):
            source = topic if self.per_topic else None
            if name == self.dlq(topic):
                return Role(Kind.DLQ, topic=source)
            delay = canonical_delay(name, f"{self.prefix(topic)}-RETRY-")
            if delay is not None:
                return Role(Kind.LEVEL, delay, source)
        return None

    def _all(self, topics: Collection[str], delays: Collection[int], *, ordered: bool) -> Iterator[str]:
        yield from topics
        yield from self._shared()
        yield from self.dlqs_of(topics)
        yield from self.levels_of(delays, topics)
        if ordered:
            yield from self.queues_of(topics)

    def check(self, topics: Collection[str], delays: Collection[int], *, ordered: bool = False) -> None:
        """Raise ValueError unless every name of the group is legal on Kafka and no main topic is one of its own.

        `ordered`: whether it has queue topics.
        """
        if self.template not in TEMPLATES:
            raise ValueError(f"{self.template[:60]!r} is not a prefix: write {' or '.join(TEMPLATES)}")
        check_name(self.group)
        for name in self._all(topics, delays, ordered=ordered):
            check_name(name)
        every = dict.fromkeys(self._all(topics, delays, ordered=ordered))
        for name, other in alike(every, every).items():
            raise ValueError(f"{name} and {other} {ALIKE}: one of them cannot exist")
        for topic in topics:
            role = self.role(topic, topics)
            if role is not None and role.kind is not Kind.MAIN:
                raise ValueError(f"{topic} cannot be a main topic: it is the {role.kind} topic of group {self.group}")


ALIKE = "differ only by `.` and `_`, which Kafka takes for the same"


def alike(names: Iterable[str], there: Iterable[str]) -> dict[str, str]:
    """Return the names that Kafka refuses to create while another topic is there, each with that topic.

    They differ only by `.` and `_`, which are the same in the names of Kafka's metrics.
    """
    spelled: dict[str, set[str]] = {}
    for name in there:
        spelled.setdefault(name.replace(".", "_"), set()).add(name)
    others = {name: min(spelled.get(name.replace(".", "_"), set()) - {name}, default="") for name in names}
    return {name: other for name, other in others.items() if other}


def build_names(
    group: str, topics: Collection[str], delays: Collection[int], template: str = "{group}", *, ordered: bool = False
) -> Names:
    """Return the names of a group, checked for these main topics and delays (ms). `ordered`: as in `Names.check`.

    Raises ValueError if one is not legal.
    """
    names = Names(group, template)
    names.check(topics, delays, ordered=ordered)
    return names


def group_fault(group: str) -> str:
    """Return why a group's name may not stand beside another group; empty if it may.

    It is none that another group derives from its own name: for the consumer group of its retries (`billing-RETRY`),
    for its topics (`billing-DLQ`), or for its transactional ids, on which rights are given by prefix
    (`billing-main-*`).
    """
    if (derived := DERIVED_GROUP.fullmatch(group)) is not None:
        return f"must not end in -{derived[2]}: the group {derived[1]} uses that name for itself"
    if (shared := CONTROL_NAME.fullmatch(group)) is not None:
        other, ending = shared[1], shared[2]
        return f"must not contain -{ending}: the topics of the group {other} have such names, and would be shared"
    if (reached := BY_PREFIX.fullmatch(group)) is not None:
        other, lane = reached[1], reached[2]
        return (
            f"must not contain -{lane}-: rights of the group {other} are on {other}-{lane}-*, and would reach this one"
        )
    return ""


def check_name(name: str) -> None:
    """Raise ValueError unless Kafka accepts `name` for a topic.

    A name has 1 to 249 characters of `[a-zA-Z0-9._-]`, and is not `.` or `..`.
    """
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{name[:40]!r}… has {len(name)} characters, and Kafka takes at most {LONGEST_NAME}")
    if name in (".", "..") or LEGAL.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a name for Kafka: only letters of ASCII, digits and . _ - are")


def canonical_delay(name: str, prefix: str) -> int | None:
    """Return the delay in ms that follows `prefix` in `name`. None unless it has our spelling exactly.

    `billing-RETRY-60s` is not `billing-RETRY-1m`: it is a topic of another owner.
    """
    if not name.startswith(prefix):
        return None
    text = name[len(prefix) :]
    try:
        delay = parse_duration(text)
    except ValueError:
        return None
    return delay if render_duration(delay) == text and delay > 0 else None
