"""Hold the current transactional producer, replace it when it is unusable, and decide in which form it writes.

A producer that is unusable or stuck is replaced by a new one with the same transactional id. That ends what the old one
has under way. The callers know what a transaction means.

*The form* (`RecordForm`) follows what topics have refused. A topic's limit is on a batch as it is packed. So a copy may
be refused for its company (many small copies in a batch), or because it is not packed as its first copy was. And a
clock that is ahead gives times that a topic refuses. None of this is the record's fault: the next producer writes it in
another form.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from enum import Enum, auto
from itertools import chain
from math import inf

from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.core.commit_batch import Refusal
from reconsume.sidecar.kafka.clients import ClientCredentials, refuse
from reconsume.sidecar.kafka.committer.target_topics import KnownOutputs, Targets, TargetTopics
from reconsume.sidecar.kafka.committer.transaction import LOOK_LIMIT, CallTimeoutError, TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted

LEAST_BATCH = 1_024
"""Bytes of a batch at least. Kafka's own lower bound of `max.message.bytes` is in no use below."""
FIRST_STEP, LAST_STEP = 3_600_000, 90 * 86_400_000
"""ms by which the times of records are put back, at first and at most: the brokers' default takes an hour ahead."""
COMPRESSION = ("compression.type", "compression.codec")
STRONGEST = "zstd"
"""Packs as small as whatever the record's own producer used, or smaller. It costs 8 us of CPU for a record of 1 KB,
where all of a failed record costs some 70. So it is used only once a topic has refused a copy for its size."""


class Change(Enum):
    """What a producer does otherwise than the one before it."""

    SMALLER = auto()
    """Its batches are smaller."""
    PACKED = auto()
    """It packs them."""
    EARLIER = auto()
    """Its records have an earlier time."""


class RecordForm:
    """The form of one transactional id's records. Used by one thread. `config`: of its producer."""

    def __init__(self, config: Mapping[str, object], clock: Callable[[], float] = time.time) -> None:
        self._batch = int(str(config.get("batch.size", LEAST_BATCH)))
        self._may_compress = not any(name in config for name in COMPRESSION)
        self._clock, self._behind, self._ahead_at = clock, 0, 0.0
        self._more: dict[str, object] = {}

    def applied(self, config: Mapping[str, object]) -> dict[str, object]:
        """Return the configuration of the next producer."""
        return {**config, **self._more}

    def timestamp(self) -> int:
        """Return the time to write records with (epoch ms); 0: the client's own.

        A clock that was put back in the meantime is believed again.
        """
        if self._behind and self._clock() - time.monotonic() < self._ahead_at - self._behind / 2_000:
            self._behind = 0
        return int(self._clock() * 1_000) - self._behind if self._behind else 0

    def adapt(self, code: int, refusals: tuple[Refusal, ...]) -> Change | None:
        """Take in why a transaction was aborted: the error's code, and the copies that were refused.

        Returns what the next producer does otherwise; None if no other form is left.
        """
        if code == KafkaError.INVALID_TIMESTAMP:
            # A time that the service gave to an output says nothing of this machine's clock.
            timed = any(copy.timestamp for refusal in refusals for copy in refusal.entry.writes)
            return None if timed else self._step_back()
        sizes = [size for refusal in refusals if refusal.too_large for size in _sizes(refusal)]
        if not sizes:
            return None
        if max(sizes) < self._batch > LEAST_BATCH:
            self._batch = max(LEAST_BATCH, self._batch // 2)
            self._more["batch.size"] = self._batch
            return Change.SMALLER
        if self._may_compress:
            self._may_compress = False
            self._more["compression.type"] = STRONGEST
            return Change.PACKED
        return None

    def _step_back(self) -> Change | None:
        if self._behind >= LAST_STEP:
            return None
        self._behind = 2 * self._behind or FIRST_STEP
        self._ahead_at = self._clock() - time.monotonic()
        return Change.EARLIER


def _sizes(refusal: Refusal) -> list[int]:
    """Return the bytes of the entry's copies to the topic that refuses it."""
    topic = refusal.where.partition("[")[0]
    return [
        sum(len(content or b"") for content in (copy.key, copy.value, *chain.from_iterable(copy.headers)))
        for copy in refusal.entry.writes
        if copy.topic == topic
    ]


REBUILD_EVERY, REBUILD_MOST = 0.2, 5.0
"""Seconds between two tries to make a new producer while the cluster is unreachable, and at most where it refuses one.
A missing right on the transactional id takes an operator, and each try costs a client with its threads."""
IDS = 8
"""Transactional ids that a committer takes in turn. It takes the next one, and keeps it, when the last transaction of
an id may still have an effect: it cannot end because a partition has too few replicas in sync, or its offsets may come
late. By the time that an id's turn comes again, that is over. After a crash under another id than the first, which a
successor of the same name does not use, Kafka ends an open transaction after its timeout."""

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
        self.last_error = ""
        self.credentials = credentials
        self.targets = TargetTopics(self._look_up_topics, self.warn, outputs)
        self._config = config
        self._form = RecordForm(config)
        self._id_index = 0
        """The index of the transactional id in use, below IDS."""
        self._stopping = stopping

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

    def topics(self, wanted: Set[str]) -> frozenset[str] | None:
        """Return which of these topics are missing; None if Kafka does not tell of all. Blocks; for any thread."""
        topics = self._look_up_topics(sorted(wanted), inf)
        return None if topics is None or wanted - topics.states.keys() - topics.absent else topics.absent

    def partition_counts(self, wanted: Set[str]) -> dict[str, int]:
        """Return how many partitions these topics have, as far as Kafka tells. Blocks; for any thread."""
        topics = self._look_up_topics(sorted(wanted), inf)
        return {} if topics is None else {topic: len(states) for topic, states in topics.states.items()}

    def _look_up_topics(self, names: Sequence[str], within: float = LOOK_LIMIT) -> Targets | None:
        """Return what Kafka says of topics; None while there is no producer."""
        producer = self.producer  # another thread may replace it
        return None if producer is None else producer.look_up_topics(names, within)

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


def _cannot_end(failure: KafkaException | CallTimeoutError) -> bool:
    """Whether the id's last transaction is decided, but its markers cannot be written."""
    return isinstance(failure, KafkaException) and failure.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS


def _passes(failure: KafkaException | CallTimeoutError) -> bool:
    """Whether the cause may be over in a moment. Only a refusal that Kafka itself calls final is not."""
    return isinstance(failure, CallTimeoutError) or not failure.args[0].fatal()


def _retriable(failure: KafkaException | CallTimeoutError) -> bool:
    return isinstance(failure, KafkaException) and bool(failure.args[0].retriable())
