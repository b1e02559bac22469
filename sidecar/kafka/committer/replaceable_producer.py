"""Hold the current transactional producer and replace it when it is unusable; cache which topics exist.

A producer that is unusable or stuck is replaced by a new one with the same transactional id. That ends what the old one
has under way. The callers know what a transaction means.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from math import inf

from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.hints import ABSENT
from reconsume.sidecar.kafka.blocking_calls import CallTimeoutError
from reconsume.sidecar.kafka.committer.known_outputs import KnownOutputs
from reconsume.sidecar.kafka.committer.record_form import STRONGEST, Change, RecordForm
from reconsume.sidecar.kafka.committer.refusing_partitions import RefusingPartitions, RefusingTopics, State
from reconsume.sidecar.kafka.committer.transaction import TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted
from reconsume.sidecar.kafka.credentials.new_client import refuse
from reconsume.sidecar.kafka.credentials.registry import ClientCredentials
from reconsume.topics.transition_records import Copy

REBUILD_EVERY, REBUILD_MOST = 0.2, 5.0
"""Seconds between two tries to make a new producer while the cluster is unreachable, and at most where it refuses one.
A missing right on the transactional id takes an operator, and each try costs a client with its threads."""
IDS = 8
"""Transactional ids that a committer takes in turn. It takes the next one, and keeps it, when the last transaction of
an id may still have an effect: it cannot end because a partition has too few replicas in sync, or its offsets may come
late. By the time that an id's turn comes again, that is over. After a crash under another id than the first, which a
successor of the same name does not use, Kafka ends an open transaction after its timeout."""
LOOK_EVERY = 1.0
"""Seconds between two requests for the topics, for those that are missing or for all."""

_LOG = logging.getLogger("reconsume.committer")


class ReplaceableProducer:
    """Hold the usable producer of one transactional id, and make a new one when it is needed.

    One thread uses it, except `topics` and `take_credentials`. Once `stopping` is set it waits for no new producer.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        stopping: threading.Event,
        credentials: ClientCredentials,
        outputs: KnownOutputs | None = None,
    ) -> None:
        """`outputs`: knows the topics that records of the service go to; None: there are no such records."""
        self.producer: TransactionalProducer | None = None
        """The current producer. None before the first `replace`, and if it was stopped before there was one."""
        self.made = 0
        """How many producers were made."""
        self.replaced = 0
        """How many producers have been replaced."""
        self.partitions: dict[str, int] = {}
        """The number of partitions of each topic that a record was written to, by the last look at it."""
        self.refusing = RefusingPartitions()
        """The target partitions that refuse records."""
        self.denied = RefusingTopics()
        """The target topics that exist and refuse records."""
        self.last_error = ""
        self.credentials = credentials
        self._config, self._outputs = config, outputs
        self._form = RecordForm(config)
        self._id_index = 0
        """The index of the transactional id in use, below IDS."""
        self._stopping = stopping
        self._looked_at = -LOOK_EVERY
        self._named: Set[str] = frozenset()
        self._absent: Set[str] = frozenset()
        """The topics that did not exist at the last look at them."""

    def replace(self) -> None:
        """Make a new producer. The old one may have a call under way.

        The new epoch of the id fences all that may come late of the old one. But Kafka 3.9, which refuses late offsets,
        forgets those of the transaction that is open under the same producer id. Another transactional id has another
        producer id.
        """
        late_offsets = self.producer is not None and self.producer.doubtful and self.producer.sent_offsets
        self._make()
        if late_offsets:
            self._take_next_id()
            self._make()

    def _make(self) -> None:
        self._give_up()
        producer, pause = None, REBUILD_EVERY
        while not self._stopping.is_set():
            try:
                producer = producer or self._new()
                producer.prepare()
                self.producer = producer
                if self.credentials.apply_to(producer):
                    return
                self._give_up()  # newer ones came before there was a producer to take them (`take_credentials`)
                producer = None
            except (KafkaException, CallTimeoutError) as failure:
                self.warn("no-producer", "no producer yet, trying again: %s", failure)
                if _cannot_end(failure):
                    self._take_next_id()
                # Otherwise try the same producer again: an outage must not leave many of them behind.
                if producer and (not _retriable(failure) or _cannot_end(failure) or self.credentials.outdated):
                    producer.end()  # at once: it would go on requesting an id, beside all that come after it
                    producer = None
                pause = REBUILD_EVERY if _passes(failure) else min(2 * pause, REBUILD_MOST)
                self._stopping.wait(pause)
        if producer is not None:
            producer.end()

    def _new(self) -> TransactionalProducer:
        """Return a producer that is not ready yet. Raises KafkaException if the properties are refused."""
        try:
            made = TransactionalProducer(self.credentials.adopt(self._identified()))
        except KafkaException as failure:
            refuse(self.credentials, failure)
            raise
        self.credentials.refused = None
        self.made += 1
        made.timestamp = self._form.timestamp
        return made

    def adapt(self, aborted: Aborted) -> bool:
        """Return whether the next producer may write what Kafka has refused, because it writes in another form."""
        match self._form.adapt(aborted.record_code, aborted.refusals):
            case Change.SMALLER:
                text = "a topic refuses copies in one batch, so batches are smaller now: %s"
                self.warn("batches-smaller", text, aborted, about=aborted.about)
            case Change.PACKED:
                text = "a topic refuses a copy for its size, so copies are packed by %s now: %s"
                self.warn("copies-compressed", text, STRONGEST, aborted, about=aborted.about)
            case Change.EARLIER:
                text = (
                    "a topic refuses the time of this machine's clock, which is ahead of the brokers': copies get an "
                    "earlier time; synchronise the clocks: %s"
                )
                self.warn("clock-ahead", text, aborted, about=aborted.about)
            case _:
                return False
        return True

    def _give_up(self) -> None:
        old, self.producer = self.producer, None
        if old is not None:
            self.replaced += 1
            old.end()

    def usable(self) -> TransactionalProducer | None:
        """Return the producer for the next transaction, a new one where the old one must not be used any more.

        None if the thread is to stop.
        """
        if self.producer is not None and self.producer.doubtful:
            text = "a request of the last transaction may have been sent twice, so the producer is replaced"
            _LOG.info(text, extra={"event": "producer-renewed"})
            self.replace()
        return self.producer

    def _take_next_id(self) -> None:
        self._id_index = (self._id_index + 1) % IDS

    def _identified(self) -> dict[str, object]:
        """Return the configuration with the transactional id in use; the first of them is the plain id."""
        identity = (
            f"{self._config['transactional.id']}~{self._id_index}"
            if self._id_index
            else self._config["transactional.id"]
        )
        return {**self._form.applied(self._config), "transactional.id": identity}

    def take_credentials(self) -> bool:
        """Apply pending credentials, on any thread. False: the producer must be made again, by `refresh`.

        A password is applied at once, even during a call that waits for a connection.
        """
        producer = self.producer
        # A producer that is not ready is left alone: with a new password `init_transactions` waits for ever (2.16), so
        # `replace` makes another.
        return producer is None or self.credentials.apply_to(producer)

    def refresh(self) -> None:
        """Apply pending credentials between two transactions; replace the producer if they need a new one."""
        if self.producer is not None and not self.credentials.apply_to(self.producer):
            self.replace()

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

    def refresh_topics(self, names: Set[str] = frozenset(), *, anew: bool = False) -> None:
        """Ask Kafka for these topics, and those that refuse records, at most once a second unless `anew`.

        What was known stays as it is where Kafka does not answer: silence never means that a topic is missing.
        """
        if self.producer is None or (not anew and time.monotonic() - self._looked_at < LOOK_EVERY):
            return
        self._looked_at = time.monotonic()
        asked = names | self.refusing.topics
        outputs = {name for name in asked if self._outputs is not None and self._outputs.allowed.allows(name)}
        wanted, states = asked - outputs, self._output_states()
        known = self.partitions.keys() | self._absent
        targets = self.producer.look_up_topics([*sorted(wanted - known), *sorted(wanted & known)])
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
            self.refresh_topics({where.partition("[")[0] for _, where in abouts}, anew=True)
        for (about, where), reason in abouts.items():
            if about == "partition":
                self.refusing.refuse(where)
            elif about == "topic" and where in self.partitions:
                self.denied.refuse(where, reason)

    def topics(self, wanted: Set[str]) -> frozenset[str] | None:
        """Return which of these topics are missing; None if Kafka does not tell of all. Blocks; for any thread."""
        producer = self.producer
        targets = None if producer is None else producer.look_up_topics(sorted(wanted), inf)
        return None if targets is None or wanted - targets.states.keys() - targets.absent else targets.absent

    def partition_counts(self, wanted: Set[str]) -> dict[str, int]:
        """Return how many partitions these topics have, as far as Kafka tells. Blocks; for any thread."""
        producer = self.producer
        targets = None if producer is None else producer.look_up_topics(sorted(wanted), inf)
        return {} if targets is None else {topic: len(states) for topic, states in targets.states.items()}

    def answers(self) -> bool:
        """Whether the cluster answers. Blocks."""
        return self.producer is not None and self.producer.answers()

    def warn(self, event: str, text: str, *args: object, about: Collection[str] = ()) -> None:
        """Log a warning with the name of its event, and keep its text for `/status`.

        `about`: the partitions or topics that it names; the log counts them where it sums up a lasting cause.
        """
        self.last_error = text % args
        # Errors as text: a handler may keep what it is given, and an error holds the records of its transaction.
        said = [str(one) if isinstance(one, BaseException) else one for one in args]
        _LOG.warning(text, *said, extra={"event": event, "about": about})


def _topics_of_copies(entries: Iterable[SettledRecord]) -> set[str]:
    """Return the topics of what we write ourselves: copies and events, and no outputs."""
    return {copy.topic for entry in entries for copy in entry.own_writes}


def _cannot_end(failure: KafkaException | CallTimeoutError) -> bool:
    """Whether the id's last transaction is decided, but its markers cannot be written."""
    return isinstance(failure, KafkaException) and failure.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS


def _passes(failure: KafkaException | CallTimeoutError) -> bool:
    """Whether the cause may be over in a moment. Only a refusal that Kafka itself calls final is not."""
    return isinstance(failure, CallTimeoutError) or not failure.args[0].fatal()


def _retriable(failure: KafkaException | CallTimeoutError) -> bool:
    return isinstance(failure, KafkaException) and bool(failure.args[0].retriable())
