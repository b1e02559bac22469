"""The facts that an audit has of one record: its copies, its dead letters, its events, and the record itself.

This module has only values, their order, and what is known of the topics. The rules are in `rules.py`, the
reading from Kafka is in `reader.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from reconsume.sidecar.core.progress import Progress
from reconsume.topics.events import State
from reconsume.topics.names import Kind, Names
from reconsume.topics.partition import Partition
from reconsume.topics.position_ranges import BY_RESET, ResetRange, Resets
from reconsume.topics.reasons import shortened
from reconsume.topics.transitions import BY_OPERATOR

Number: TypeAlias = tuple[str, int]
"""A topic and a partition number."""
Series: TypeAlias = tuple[int, int]
"""The cycle and the redrives of one life of a record."""


def position_of(identity: str) -> tuple[str, int, int]:
    """Return the topic, partition and offset of an id."""
    topic, number, offset = identity.rsplit(":", 2)
    return topic, int(number), int(offset)


class FactKind(enum.IntEnum):
    """The kind of a record, for an audit."""

    COPY = 0
    """A copy on a level topic or on the ready topic."""
    DEAD = 1
    TOLD = 2
    """An event."""
    BAD = 3
    """A record on one of the group's own topics that breaks its form. Its id is its own position."""
    MAIN = 4
    """The record itself, on its main topic."""
    OUTPUT = 5
    """A record that the service has asked for with its verdict. `level` is its number in the answer."""


class Fact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One record on a topic, with the values that an audit needs. Times are epoch ms.

    `at` is the record's Kafka timestamp; for an event it is the event's own time. `reason` is the class; for BAD it is
    the whole sentence. `later`: the record arrived while the audit was reading. It may explain other records, and is
    not judged by what is missing. `digest` is that of key, value and own headers; it is empty if it cannot be known.
    `state` and `level` are those of an event. The `state` of a copy says that an operator edited it on a redrive.
    `parked`: it waits in a queue for a person. `postponed`: its service has put the attempt off since it was counted.
    """

    what: FactKind
    id: str
    redrives: int
    times: int
    topic: str
    partition: int
    offset: int
    at: int
    due: int = 0
    first_failed_at: int = 0
    timestamp: int = 0
    reason: str = ""
    later: bool = False
    digest: bytes = b""
    state: str = ""
    level: str | None = None
    parked: bool = False
    postponed: bool = False
    cycle: int = 0
    by_query: bool = False
    """Whether a Spark query has written it, which is known of events alone."""

    @property
    def by_hand(self) -> bool:
        """Whether it waits for a person, or tells of a person's decision: it counts no attempt of its own."""
        return self.parked or self.reason == BY_OPERATOR

    @property
    def by_reset(self) -> bool:
        """Whether it tells of the end of a copy that a reset has superseded."""
        return self.reason == BY_RESET

    @property
    def position(self) -> str:
        """The position of the record, `topic:partition:offset`."""
        return f"{self.topic}:{self.partition}:{self.offset}"


class Breach(enum.StrEnum):
    """The kinds of findings."""

    LOST = "lost"
    NO_COPY = "no-copy"
    NO_EVENT = "no-event"
    TWICE = "counted-twice"
    GAP = "gap"
    DEAD_TWICE = "dead-twice"
    ENDED_TWICE = "ended-twice"
    TORN = "torn"
    EARLY = "early"
    MISTOLD = "mistold"
    BAD_HEADER = "bad-header"
    BAD_EVENT = "bad-event"
    ALTERED = "altered"
    NO_RECORD = "no-record"
    OUTPUT_TORN = "output-torn"
    OUTPUT_TWICE = "output-twice"
    REPEATED = "repeated-post"
    """Not a fault of the sidecar: the service of a relay posted the same failure again."""

    UNKNOWN_CYCLE = "unknown-cycle"
    SUPERSEDED = "superseded"
    """A delivery in a cycle that a reset has ended before."""
    UNKNOWN_TOPIC = "unknown-topic"
    """Not a fault: another configuration of the group consumes its topic, as during a roll-out."""


NOTES = frozenset({Breach.REPEATED, Breach.UNKNOWN_TOPIC})
"""Kinds that are shown although they break no rule."""


class Finding(NamedTuple):
    """One violation of a rule, with the positions of the records that show it."""

    kind: Breach
    id: str
    redrives: int
    times: int
    text: str
    records: tuple[str, ...]


class Known(msgspec.Struct, frozen=True):
    """The period for which the topics are complete.

    `since`: by topic, the epoch ms from which on nothing is missing there. A topic without an entry is complete from
    its beginning. `until`: newer records may have companions that could not be read.
    """

    since: Mapping[str, int] = {}
    until: int = 2**63

    def from_(self, topics: Iterable[str]) -> int:
        """Return the epoch ms from which on nothing is missing in any of the topics."""
        return max((self.since.get(topic, 0) for topic in topics), default=0)


class Terms(msgspec.Struct, frozen=True):
    """The terms by which a group is judged.

    `delays`: every topic where copies wait, with its delay in ms (0 for the ready topic). `before` and `after`: the
    committed progress before and after the topics were read. `slack`: ms that clocks may differ. `relay`: whether the
    service reads Kafka itself. `in_memory`: whether retries may be counted in memory alone (ordered). `foreign`:
    whether counts of other systems are continued. `begins`: the first offset that each main partition still has.
    `compacted`: main topics with gaps.
    """

    names: Names
    delays: Mapping[str, int]
    dlqs: frozenset[str]
    before: Mapping[Number, Progress] = {}
    after: Mapping[Number, Progress] = {}
    known: Known = Known()
    slack: int = 500
    relay: bool = False
    in_memory: bool = False
    foreign: bool = False
    begins: Mapping[Number, int] = {}
    compacted: frozenset[str] = frozenset()
    mains: frozenset[str] = frozenset()
    """The main topics. If empty, any topic may be one."""
    drains: Mapping[str, str] = {}
    """The main topic of each drained topic."""
    compare: bool = True
    """Whether the main topics were read."""
    resets: Resets = {}
    """What resets of positions have left, of the topics as they are now."""
    in_flight: int = 600_000
    """ms after a reset for which deliveries of earlier cycles may still end."""
    service: Mapping[Number, Progress] = {}
    """The progress of the main group on the ready topic: what the service itself has read there, in a former time as a
    relay. Empty for a relay, whose sidecar commits nothing there."""

    def covered(self, topic: str, partition: int, offset: int, *, after: bool = False) -> bool | None:
        """Whether the committed progress says that a record is done; None if there is no progress."""
        progress = (self.after if after else self.before).get((topic, partition))
        return None if progress is None else progress.covers(offset)

    def reset_of(self, history: RecordHistory) -> ResetRange | None:
        """Return the first reset that is known to have superseded a life; None if none has."""
        topic, number, offset = history.origin
        known = self.resets.get(Partition(topic, number))
        ranges = () if known is None else known.ranges
        later = [one for one in ranges if one.start <= offset < one.end and one.cycle > history.cycle]
        return min(later, key=lambda one: one.cycle, default=None)

    def read_by_service(self, copy: Fact) -> bool:
        """Whether the service itself took a copy from the ready topic, in a former time as a relay."""
        progress = self.service.get((copy.topic, copy.partition))
        return progress is not None and progress.covers(copy.offset)

    def release(self, copy: Fact) -> int:
        """Return when a copy's wait in its level ends, epoch ms."""
        return copy.at + self.delays.get(copy.topic, 0)

    def sees(self, fact: Fact, since: int) -> bool:
        """Whether what follows from a fact must have been read, if nothing is missing from `since` on (epoch ms)."""
        return since <= fact.at < self.known.until and not fact.later

    def complete_since(self) -> int:
        """Return the epoch ms from which on every copy and every event is there."""
        return self.known.from_([*self.delays, self.names.events])


class RecordHistory(NamedTuple):
    """One life of one record (id, cycle and redrives). All facts are in the order of their times."""

    id: str
    cycle: int
    redrives: int
    copies: tuple[Fact, ...]
    dead: tuple[Fact, ...]
    told: tuple[Fact, ...]
    bad: tuple[Fact, ...]
    main: Fact | None

    @property
    def origin(self) -> tuple[str, int, int]:
        """The topic, partition and offset of the record itself."""
        return position_of(self.id)

    def tells(self, *states: State) -> list[Fact]:
        """Return the events with one of these states."""
        return [fact for fact in self.told if fact.state in states]

    def counted(self, *states: State) -> list[Fact]:
        """Return the events with one of these states that wait for no person, and tell of no person's decision."""
        return [fact for fact in self.tells(*states) if not fact.by_hand]

    def never_had(self, *states: State) -> bool:
        """Return whether no event has one of these states, and no person has decided anything."""
        return not self.tells(*states) and self.counted(*State) == self.tells(*State)

    def by_times(self) -> dict[int, list[Fact]]:
        """Return the copies by their retry count, in rising order."""
        found: dict[int, list[Fact]] = {}
        for copy in self.copies:
            found.setdefault(copy.times, []).append(copy)
        return dict(sorted(found.items()))

    def began(self) -> int:
        """Return when this life began, by its first failure or its redrive (epoch ms); 0 if that is not known."""
        if self.redrives:
            return min((fact.at for fact in (*self.tells(State.REDRIVEN), *self.copies) if fact.times == 0), default=0)
        return min((fact.first_failed_at for fact in (*self.copies, *self.dead, *self.told)), default=0)

    def finding(self, kind: Breach, times: int, text: str, *facts: Fact) -> Finding:
        """Return a finding about this life. `text` may hold untrusted input, and is made printable."""
        return Finding(kind, self.id, self.redrives, times, shortened(text), tuple(fact.position for fact in facts))


def histories_of(facts: Iterable[Fact]) -> list[RecordHistory]:
    """Return the lives of one record, from all facts with its id."""
    by_series: dict[Series, dict[FactKind, list[Fact]]] = {}
    main: Fact | None = None
    for fact in facts:
        if fact.what is FactKind.MAIN:
            main = fact
        else:
            by_series.setdefault((fact.cycle, fact.redrives), {}).setdefault(fact.what, []).append(fact)
    return [_history(series, by_kind, main) for series, by_kind in sorted(by_series.items())]


def _history(series: Series, by_kind: Mapping[FactKind, list[Fact]], main: Fact | None) -> RecordHistory:
    copies, dead, told, bad = (
        tuple(sorted(by_kind.get(what, ()), key=lambda fact: (fact.at, fact.topic, fact.partition, fact.offset)))
        for what in (FactKind.COPY, FactKind.DEAD, FactKind.TOLD, FactKind.BAD)
    )
    identity = next(fact.id for facts in (copies, dead, told, bad) for fact in facts)
    return RecordHistory(identity, *series, copies, dead, told, bad, main)


def topics_of(names: Names, mains: Iterable[str], there: Iterable[str]) -> dict[Kind, dict[str, int]]:
    """Return the group's topics among those that are there, each with its delay in ms (0 except for levels)."""
    mains = tuple(mains)
    found: dict[Kind, dict[str, int]] = {}
    for name in there:
        role = names.role(name, mains)
        if role is not None:
            found.setdefault(role.kind, {})[name] = role.delay or 0
    return found
