"""What Kafka says of the topics that a committer writes to: which exist, how wide they are, and which refuse records.

A transaction with a topic that is missing, or with a partition that refuses records, would only wait and fail, and with
it all records beside that one. So it is known before the transaction begins which records have to wait
(`missing_targets`). Topics are asked for by name, at most once a second, and silence never means that one is missing.
Topics of outputs are not asked for here, as their service chose the names: `known_outputs.py` lists them.

Used on the committer's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.committer.known_outputs import KnownOutputs
from reconsume.sidecar.kafka.committer.refusing_partitions import RefusingPartitions, RefusingTopics, State
from reconsume.sidecar.kafka.committer.transaction import Targets
from reconsume.topics.transition_records import Copy

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
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic that a record was written to, by the last look at it."""
        self.refusing = RefusingPartitions()
        """The target partitions that refuse records."""
        self.denied = RefusingTopics()
        """The target topics that exist and refuse records."""
        self._look_up, self.warn, self._outputs = look_up, warn, outputs
        self._looked_at = -LOOK_EVERY
        self._named: Set[str] = frozenset()
        self._absent: Set[str] = frozenset()
        """The topics that did not exist at the last look at them."""

    def look_up_unlisted(self, entries: Sequence[SettledRecord]) -> bool:
        """Ask Kafka for the topics of these entries' copies that are not known yet; return whether some still are not.

        Nothing can be written to those yet. Topics of outputs are never asked for: their service chose the names.
        """
        wanted = _topics_of_copies(entries)
        if wanted <= self.partitions.keys() | self._absent:
            return False
        self.refresh_topics(wanted)
        return not wanted <= self.partitions.keys() | self._absent

    def look_up_missing(self, wanted: Set[str]) -> Set[str]:
        """Ask Kafka for the wanted topics that are not known to exist; return and name those that are missing.

        A transaction with them would only wait and fail.
        """
        if wanted <= self.partitions.keys():
            return frozenset()
        self.refresh_topics(wanted - self.partitions.keys())
        missing = wanted & self._absent
        if missing - self._named:  # one warning for each topic, not at every try
            self.warn(
                "copies-wait",
                "records wait for topics that are missing, or not for this user to see: %s",
                ", ".join(sorted(missing)),
            )
        self._named = (self._named | missing) - self.partitions.keys()
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
        known = self.partitions.keys() | self._absent
        targets = self._look_up([*sorted(wanted - known), *sorted(wanted & known)])
        if targets is None:
            return
        self._looked_at = now
        if unknown := wanted - known - targets.states.keys() - targets.absent:
            self.warn("topics-unlisted", "Kafka does not tell of the topics yet: %s", ", ".join(sorted(unknown)))
        self._absent = (self._absent - targets.states.keys()) | targets.absent
        self.partitions |= {name: len(states) for name, states in targets.states.items()}
        for name in targets.absent:
            self.partitions.pop(name, None)
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
            is_known = topic in self.partitions or topic in self._absent
            self.refresh_topics({topic}, at_once=not is_known)
        if topic in self._absent:
            return f"topic {topic} is {ABSENT}"
        if topic not in self.partitions:
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
        self.partitions |= {topic: len(partitions) for topic, partitions in existing.items()}
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
        return copy.spread >= self.partitions.get(copy.topic, copy.spread + 1)

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
            elif about == "topic" and where in self.partitions:
                self.denied.refuse(where, reason)


def _topics_of_copies(entries: Iterable[SettledRecord]) -> set[str]:
    """Return the topics of what we write ourselves: copies and events, and no outputs."""
    return {copy.topic for entry in entries for copy in entry.own_writes}
