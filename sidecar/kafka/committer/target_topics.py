"""What Kafka says of the topics that are written to: which exist, how wide they are, and which refuse records.

Kafka adds all partitions to a transaction, or none. So a transaction with a topic that is missing or may not be
written, or with a partition that refuses records, would only wait and fail, and with it all records beside that one. It
is known before the transaction begins which records have to wait (`TargetTopics.missing_targets`). Topics are asked for
by name, at most once a second, and silence never means that one is missing.

A transaction that has included a partition with too few replicas in sync cannot end before these are back. Its marker
is refused too. Meanwhile Kafka answers CONCURRENT_TRANSACTIONS for the transactional id (Kafka 4.3, measured). So such
a partition is tried again only when its leader or its replicas have changed, or after TRY_EVERY.

*Topics of outputs* (`KnownOutputs`, contract 1.12). A service chooses them, or echoes names that somebody else has
chosen. Looking such a name up costs a request, and a response may have a thousand of them. So a thread of its own lists
the topics that `deliver.outputs` allows: before the first delivery, every `LIST_EVERY` seconds, and sooner, but at most
every `SOONEST` seconds, after a response named a topic that is not in the list. An output to such a topic is refused
when the response is read, and the committer takes the partitions of output topics from this list. The list is as large
as the topics that exist and are allowed, whatever names come. It is replaced as a whole: the event loop (`fault`) and
the committers (`states`) read it without a lock. Where Kafka does not answer, the list stays as it is.

`TargetTopics` and what it has are used on the committer's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from reconsume.sidecar.background import ContextThread
from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.errors import named_topics
from reconsume.sidecar.observability.thread_watch import FOLLOWER_LIMIT, StopRequest, WatchedThread
from reconsume.topics.outputs import AllowedOutputs
from reconsume.topics.transition_records import Copy

TRY_EVERY = 30.0
"""Seconds after which an unchanged partition is tried again: an operator may have lowered `min.insync.replicas`."""
NO_LEADER = -1
TRY_TOPIC_EVERY = 3.0
"""Seconds after which a topic that refused records is tried again: a right that is given shows in no other way. Each
try costs a transaction, and often a producer."""


class State(NamedTuple):
    """The state of a partition in the cluster: the node that leads it, and the number of replicas in sync."""

    leader: int
    in_sync: int


class Targets(NamedTuple):
    """What Kafka says of topics: the partitions of those that exist, and the names of those that do not."""

    states: dict[str, list[State]]
    absent: frozenset[str]


class RefusingTopics:
    """The topics that exist and refuse records, each with the reason; used by one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusing: dict[str, tuple[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._refusing)

    def refuse(self, topic: str, reason: str) -> None:
        """Remember that a topic refused records a moment ago."""
        self._refusing[topic] = reason, self._clock() + TRY_TOPIC_EVERY

    def why(self, topic: str) -> str:
        """Return why the topic refuses records; empty if it is not known to, or is to be tried again.

        The topic is forgotten when it is to be tried again.
        """
        reason, until = self._refusing.get(topic, ("", 0.0))
        if reason and self._clock() >= until:
            del self._refusing[topic]
            return ""
        return reason


class RefusingPartitions:
    """The partitions that refuse records, by topic and number; used by one thread."""

    def __init__(self) -> None:
        self.known: dict[str, list[State]] = {}
        """Every topic's partitions at the last look."""
        self._refusing: dict[str, dict[int, tuple[State | None, float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._refusing)

    @property
    def topics(self) -> frozenset[str]:
        """The topics with partitions that refuse records."""
        return frozenset(self._refusing)

    def refuse(self, where: str) -> None:
        """Remember that a partition, `topic[number]`, refused records a moment ago."""
        topic, _, number = where.rstrip("]").rpartition("[")
        if number.isdigit():
            state = self._state(topic, int(number))
            self._refusing.setdefault(topic, {})[int(number)] = (state, time.monotonic() + TRY_EVERY)

    def looked(self, known: Mapping[str, list[State]], absent: Collection[str] = ()) -> None:
        """Take in the present state of partitions; forget those that may take records again, or are gone."""
        self.known = {topic: states for topic, states in known.items() if topic not in absent}
        for topic, refusing in list(self._refusing.items()):
            kept = {number: seen for number, seen in refusing.items() if self._still(topic, number, seen)}
            self._refusing[topic] = kept
            if not kept:
                del self._refusing[topic]

    def refuses(self, copy: Copy) -> str:
        """Return the partition that a copy goes to if it refuses records; else an empty string."""
        refusing = self._refusing.get(copy.topic)
        if refusing is None or copy.topic not in self.known:
            return ""
        count = len(self.known[copy.topic])
        by_key = copy.key is not None and not copy.scattered
        number = murmur2_partition(copy.key or b"", count) if by_key else copy.spread % count
        return f"{copy.topic}[{number}]" if number in refusing else ""

    def _state(self, topic: str, number: int) -> State | None:
        states = self.known.get(topic, [])
        return states[number] if number < len(states) else None

    def _still(self, topic: str, number: int, seen: tuple[State | None, float]) -> bool:
        state, until = self._state(topic, number), seen[1]
        if state is None:
            return False  # it does not exist any more: a missing topic is reported in another way
        return state.leader == NO_LEADER or (state == seen[0] and time.monotonic() < until)


def murmur2_partition(key: bytes, count: int) -> int:
    """Return the partition of a key by the partitioner `murmur2_random`, as in the Java client."""
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    mixed, length = 0x5BD1E995, len(data)
    digest = 0x9747B28C ^ length
    whole = length & ~3
    for index in range(0, whole, 4):
        word = int.from_bytes(data[index : index + 4], "little") * mixed & 0xFFFFFFFF
        word = (word ^ word >> 24) * mixed & 0xFFFFFFFF
        digest = (digest * mixed & 0xFFFFFFFF) ^ word
    if length > whole:
        digest = (digest ^ int.from_bytes(data[whole:], "little")) * mixed & 0xFFFFFFFF
    digest = (digest ^ digest >> 13) * mixed & 0xFFFFFFFF
    return digest ^ digest >> 15


LIST_EVERY = 45.0
"""Seconds between two looks. A topic that is created is known within 60 s, with the look itself."""
SOONEST = 5.0
"""Seconds between two looks at least, whatever a service names: a list of a large cluster takes seconds."""
LIST_AGAIN = 1.0
"""Seconds until the next look while Kafka has not answered yet: nothing is delivered before it has."""
ANSWER_WITHIN = 20.0
"""Seconds for an answer. A cluster of 200 000 partitions has taken six."""

_LOG = logging.getLogger("reconsume.outputs")


class KnownOutputs(ContextThread):
    """The thread that lists the topics for outputs; tells what a service may write to (`topics.outputs.OutputTopics`).

    A client is made for each look: one that stayed would cost threads and connections for a request in 45 seconds.
    """

    def __init__(self, allowed: AllowedOutputs, kafka: Mapping[str, str], registry: CredentialRegistry) -> None:
        super().__init__("outputs")
        self.allowed = allowed
        self.states: Mapping[str, list[State]] = {}
        """The partitions of each topic that exists and is allowed, as of the last look."""
        self.listed = threading.Event()
        """Set once Kafka has answered."""
        self._kafka, self._registry = kafka, registry
        self._stopping, self._wanted = StopRequest(), threading.Event()

    def fault(self, topic: str, partition: int | None) -> str:
        """Return why no record may be written to a topic, or to this partition of it; empty if one may.

        A topic or partition that is not known brings the next look forward.
        """
        if why := self.allowed.fault(topic, partition):
            return why
        states = self.states.get(topic)
        if states is not None and (partition is None or partition < len(states)):
            return ""
        self.look_soon()
        if states is None:
            return f"topic {topic} does not exist, or the sidecar's user may not see it"
        return f"topic {topic} has no partition {partition}"

    def look_soon(self) -> None:
        """Bring the next look forward, for any thread."""
        self._wanted.set()

    def stop(self) -> None:
        """End soon; returns at once."""
        self._stopping.set()
        self._wanted.set()

    def watched(self) -> list[WatchedThread]:
        """Return this thread, for `/livez`."""
        return [WatchedThread(self.name, self, lambda: self._stopping.turned_at, FOLLOWER_LIMIT)]

    def do_work(self) -> None:
        """Look at the topics until stopped."""
        while not self._stopping.is_set():
            self._look()
            if self._stopping.wait(SOONEST if self.listed.is_set() else LIST_AGAIN):
                return
            if self.listed.is_set():
                self._wanted.wait(LIST_EVERY - SOONEST)
            self._wanted.clear()

    def _look(self) -> None:
        """Replace the list by what exists now. Without an answer it stays."""
        properties = {**self._registry.with_newest(self._kafka), "allow.auto.create.topics": "false"}
        try:
            described = self._describe(Connection(properties, "reconsume-outputs").client)
        except (KafkaException, ConfigError) as fault:
            text = "the topics of deliver.outputs are not listed; the list before stays in force: %s"
            _LOG.warning(text, fault, extra={"event": "outputs-unlisted"})
            return
        self.states = {
            name: [State(partition.leader, len(partition.isrs)) for _, partition in sorted(topic.partitions.items())]
            for name, topic in described
            if topic.error is None and self.allowed.allows(name)
        }
        self.listed.set()

    def _describe(self, client: Any) -> Iterable[tuple[str, Any]]:
        """Return Kafka's descriptions: of all topics where there is a glob, otherwise of each name."""
        if self.allowed.has_glob:
            return dict(client.list_topics(timeout=ANSWER_WITHIN).topics).items()
        named = named_topics(client, self.allowed.names, ANSWER_WITHIN)
        if unknown := set(self.allowed.names) - named.described.keys() - named.absent:
            text = "Kafka does not describe the topics of deliver.outputs: %s"
            raise ConfigError([text % ", ".join(sorted(unknown))])
        return named.described.items()


LOOK_EVERY = 1.0
"""Seconds between two requests for the topics, for those that are missing or for all."""


class TargetTopics:
    """The topics that one committer writes to.

    `look_up`: asks Kafka for topics; None while it cannot be asked. `warn`: logs a warning, with its event. `outputs`:
    knows the topics that records of the service go to; None: there are no such records.
    """

    def __init__(
        self,
        look_up: Callable[[Sequence[str]], Targets | None],
        warn: Callable[[str, str, str], None],
        outputs: KnownOutputs | None = None,
    ) -> None:
        self.refusing = RefusingPartitions()
        """The target partitions, and which of them refuse records."""
        self.denied = RefusingTopics()
        """The target topics that exist and refuse records."""
        self._look_up, self.warn, self._outputs = look_up, warn, outputs
        self._looked_at = -LOOK_EVERY
        self._named: Set[str] = frozenset()
        self._absent: Set[str] = frozenset()
        """The topics that did not exist at the last look at them."""

    @property
    def partitions(self) -> Mapping[str, int]:
        """The number of partitions of each target topic, by the last look at it."""
        return {topic: len(states) for topic, states in self.refusing.known.items()}

    def look_up_unlisted(self, entries: Sequence[SettledRecord]) -> bool:
        """Ask Kafka for the topics of these entries' copies that are not known yet; return whether some still are not.

        Nothing can be written to those yet. Topics of outputs are never asked for: their service chose the names.
        """
        wanted = _topics_of_copies(entries)
        if wanted <= self.refusing.known.keys() | self._absent:
            return False
        self.refresh_topics(wanted)
        return not wanted <= self.refusing.known.keys() | self._absent

    def look_up_missing(self, wanted: Set[str]) -> Set[str]:
        """Ask Kafka for the wanted topics that are not known to exist; return and name those that are missing.

        A transaction with them would only wait and fail.
        """
        if wanted <= self.refusing.known.keys():
            return frozenset()
        self.refresh_topics(wanted - self.refusing.known.keys())
        missing = wanted & self._absent
        if missing - self._named:  # one warning for each topic, not at every try
            self.warn(
                "copies-wait",
                "records wait for topics that are missing, or not for this user to see: %s",
                ", ".join(sorted(missing)),
            )
        self._named = (self._named | missing) - self.refusing.known.keys()
        return missing

    def refresh_topics(self, names: Set[str] = frozenset(), *, at_once: bool = False) -> None:
        """Ask Kafka for these topics, and those that refuse records, at most once a second unless `at_once`.

        What was known stays as it is where Kafka does not answer: silence never means that a topic is missing.
        """
        now = time.monotonic()
        if not at_once and now - self._looked_at < LOOK_EVERY:
            return
        asked = names | self.refusing.topics
        outputs = {name for name in asked if self._outputs is not None and self._outputs.allowed.allows(name)}
        wanted, states = asked - outputs, self._output_states()
        known = self.refusing.known.keys() | self._absent
        targets = self._look_up([*sorted(wanted - known), *sorted(wanted & known)])
        if targets is None:
            return
        self._looked_at = now
        if unknown := wanted - known - targets.states.keys() - targets.absent:
            self.warn("topics-unlisted", "Kafka does not tell of the topics yet: %s", ", ".join(sorted(unknown)))
        self._absent = (self._absent - targets.states.keys()) | targets.absent
        absent_topics = targets.absent | (outputs - states.keys())
        self.refusing.looked({**self.refusing.known, **targets.states, **states}, absent_topics)

    def missing_targets(self, entries: Sequence[SettledRecord]) -> tuple[Refusal, ...]:
        """Return a refusal for each entry with which a transaction would only wait and fail.

        Its topic does not exist or refused records a moment ago, or its partition did and has not changed since.
        """
        wanted = _topics_of_copies(entries)
        if self.refusing:
            # Before the topics are looked up: the transaction goes by the same list.
            self.refresh_topics(wanted)
        missing = self.look_up_missing(wanted)
        refusals = [
            Refusal(entry, "topic", f"topic {copy.topic} is {ABSENT}", copy.topic)
            for entry in (entries if missing else ())
            for copy in entry.own_writes
            if copy.topic in missing
        ]
        exact = [(entry, copy) for entry in entries for copy in entry.own_writes if copy.exact]
        if narrow := [(entry, copy) for entry, copy in exact if self._lacks_partition(copy)]:
            self.refresh_topics({copy.topic for _, copy in narrow})
            refusals += [
                Refusal(entry, "topic", f"topic {copy.topic} has no partition {copy.spread}", copy.topic)
                for entry, copy in narrow
                if self._lacks_partition(copy)
            ]
        refusals += self._missing_outputs(entries)
        if self.denied:
            why = {copy.topic: self.denied.why(copy.topic) for entry in entries for copy in entry.writes}
            refusals += [
                Refusal(entry, "topic", why[copy.topic], copy.topic)
                for entry in entries
                for copy in entry.writes
                if why[copy.topic]
            ]
        if self.refusing:
            where = [(entry, self.refusing.refuses(copy)) for entry in entries for copy in entry.writes]
            refusals += [Refusal(entry, "partition", f"{name} takes no records", name) for entry, name in where if name]
        return tuple(refusals)

    def fault_of_notes(self, notes: Sequence[Copy]) -> str:
        """Return why notes cannot be written, as one sentence; empty if they can: their topic needs a second partition,
        which is theirs alone."""
        topic, number = notes[0].topic, notes[0].spread
        if self.partitions.get(topic, 0) <= number:
            is_known = topic in self.refusing.known or topic in self._absent
            self.refresh_topics({topic}, at_once=not is_known)
        if topic in self._absent:
            return f"topic {topic} is {ABSENT}"
        if topic not in self.refusing.known:
            return f"Kafka does not tell of topic {topic} yet"
        if self.partitions[topic] <= number:
            return f"topic {topic} has no partition {number}: `{hint('topics apply')}` adds it"
        return ""

    def _missing_outputs(self, entries: Sequence[SettledRecord]) -> Iterator[Refusal]:
        """Yield a refusal for each output whose topic or partition was there when its response was read, and is gone.

        The transaction goes by the partitions that are taken over here.
        """
        outputs = [(entry, copy) for entry in entries if entry.outputs for copy in entry.output_writes]
        states = self._output_states() if outputs else {}
        existing = {copy.topic: states[copy.topic] for _, copy in outputs if copy.topic in states}
        self.refusing.known |= existing
        for entry, copy in outputs:
            if copy.topic not in existing:
                yield Refusal(entry, "topic", f"topic {copy.topic} is missing", copy.topic)
            elif copy.exact and self._lacks_partition(copy):
                yield Refusal(entry, "topic", f"topic {copy.topic} has no partition {copy.spread}", copy.topic)

    def _output_states(self) -> Mapping[str, list[State]]:
        return {} if self._outputs is None else self._outputs.states

    def _lacks_partition(self, copy: Copy) -> bool:
        """Return whether an exact copy is for a partition that its topic does not have."""
        states = self.refusing.known.get(copy.topic)
        return states is not None and copy.spread >= len(states)

    def refused(self, refusals: Iterable[Refusal]) -> None:
        """Take in why a transaction was aborted.

        A topic may have been deleted or may not be written, or a partition may refuse records.
        """
        abouts = {(refusal.about, refusal.where): refusal.reason for refusal in refusals}
        if any(about != "record" for about, _ in abouts):
            if self._outputs is not None:
                self._outputs.look_soon()
            self.refresh_topics({where.partition("[")[0] for _, where in abouts}, at_once=True)
        for (about, where), reason in abouts.items():
            if about == "partition":
                self.refusing.refuse(where)
            elif about == "topic" and where in self.refusing.known:
                self.denied.refuse(where, reason)


def _topics_of_copies(entries: Iterable[SettledRecord]) -> set[str]:
    """Return the topics of what we write ourselves: copies and events, and no outputs."""
    return {copy.topic for entry in entries for copy in entry.own_writes}
