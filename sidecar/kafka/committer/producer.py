"""The one producer of a transactional id that is fit for use, and what it knows of the cluster's topics.

A producer that is spent or stuck is replaced here by a new one of the same id, which ends whatever the old one has
under way. What a transaction means is the callers' business.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set

from confluent_kafka import KafkaError, KafkaException

from sidecar.core.commit_batch import Refusal, SettledRecord
from sidecar.kafka.blocking_calls import CallTimeoutError
from sidecar.kafka.committer.refusing_partitions import RefusingPartitions
from sidecar.kafka.committer.transaction import TransactionalProducer
from sidecar.kafka.credentials.registry import ClientCredentials

REBUILD_EVERY = 0.2
"""Seconds between tries to make a new producer while the cluster is away."""
SLOTS = 8
"""Transactional ids that are used in turn. A transaction that included a partition with too few replicas in sync cannot
end before these are back, and keeps its id that long. Its fate is decided by then; the committed progress tells it."""
LOOK_EVERY = 1.0
"""Seconds between looks for topics that are missing, or all that there are."""

_LOG = logging.getLogger("reconsume.committer")


class ReplaceableProducer:
    """Used by one thread, but for `topics` and `take_keys`. Once `stopping` is set no new producer is waited for."""

    def __init__(self, config: Mapping[str, object], stopping: threading.Event, credentials: ClientCredentials) -> None:
        self.producer: TransactionalProducer | None = None
        """None before the first `renew`, and when stopped before there was one."""
        self.partitions: dict[str, int] = {}
        """How many each topic has, of the topics that were there at the last look."""
        self.places = RefusingPartitions()
        """Partitions that take no records."""
        self.last_error = ""
        self.credentials = credentials
        self._config = config
        self._slot = 0
        """Which of its transactional ids it uses: another one while a transaction of this one cannot end."""
        self._stopping = stopping
        self._abandoned: list[TransactionalProducer] = []
        """Producers with a call under way: kept until that comes back, because to destroy one may block for ever."""
        self._looked_at = -LOOK_EVERY
        self._named: Set[str] = frozenset()

    def replace(self) -> None:
        """Make a new producer; the old one may have a call under way."""
        producer = None
        if self.producer is not None:
            self._abandoned.append(self.producer)
        self.producer = None
        self._clear_away()
        while not self._stopping.is_set():
            try:
                producer = producer or TransactionalProducer(self.credentials.adopt(self._identified()))
                producer.prepare()
                self.producer = producer
                return
            except (KafkaException, CallTimeoutError) as failure:
                self.warn("no-producer", "no producer yet: %s", failure)
                if _cannot_end(failure):
                    self._slot = (self._slot + 1) % SLOTS
                # Else the same one again: an outage must not leave a row of them behind.
                if not _retriable(failure) or _cannot_end(failure) or self.credentials.outdated:
                    self._abandoned += [] if producer is None else [producer]
                    producer = None
                    self._clear_away()  # at once: it would go on asking for an id, beside all that come after it
                self._stopping.wait(REBUILD_EVERY)

    def _identified(self) -> dict[str, object]:
        """The configuration with the transactional id of today's slot; the first slot's is the plain one."""
        identity = (
            f"{self._config['transactional.id']}~{self._slot}" if self._slot else self._config["transactional.id"]
        )
        return {**self._config, "transactional.id": identity}

    def _clear_away(self) -> None:
        """Destroy the abandoned producers that have no call under way: each has 5 threads and 0.35 MB."""
        idle = [producer for producer in self._abandoned if producer.idle]
        self._abandoned = [producer for producer in self._abandoned if not producer.idle]
        while idle:
            threading.Thread(target=_destroy, args=([idle.pop()],), name="producer-end", daemon=True).start()

    def take_credentials(self) -> bool:
        """Take what is offered, on any thread: a password at once, even under a call that waits for a connection.

        False: the producer must be made anew, by `refresh`. One that is not ready is left alone: with a new password
        `init_transactions` goes on waiting for ever (2.16), so `renew` makes another.
        """
        producer = self.producer
        return producer is None or self.credentials.apply_to(producer)

    def refresh(self) -> None:
        """Go on with the keys that are offered, between two transactions."""
        if self.producer is not None and not self.credentials.apply_to(self.producer):
            self.replace()

    def missing(self, wanted: Set[str]) -> Set[str]:
        """Which of the topics do not exist: a transaction with them would only wait and fail."""
        if wanted <= self.partitions.keys():
            return frozenset()
        self.refresh_topics()
        missing = wanted - self.partitions.keys()
        if missing - self._named:  # each once, not at every try
            self.warn("copies-wait", "records wait for topics that are missing: %s", ", ".join(sorted(missing)))
        self._named = (self._named | missing) - self.partitions.keys()
        return missing

    def refresh_topics(self, *, anew: bool = False) -> None:
        """Ask which topics there are, at most once a second unless `anew`; what is known stays if Kafka is silent."""
        if self.producer is None or (not anew and time.monotonic() - self._looked_at < LOOK_EVERY):
            return
        self._looked_at = time.monotonic()
        try:
            found = self.producer.places()
            self.partitions = {name: len(states) for name, states in found.items()}
            self.places.looked(found)
        except KafkaException as failure:
            self.warn("topics-unlisted", "cannot list the topics: %s", failure)

    def missing_targets(self, entries: Sequence[SettledRecord]) -> tuple[Refusal, ...]:
        """Entries that a transaction would only wait for and fail with: their topics do not exist, or their partitions
        took no records a while ago and have not changed since."""
        missing = self.missing({copy.topic for entry in entries for copy in entry.writes})
        found = [
            Refusal(entry, "topic", f"topic {copy.topic} is missing", copy.topic)
            for entry in (entries if missing else ())
            for copy in entry.writes
            if copy.topic in missing
        ]
        if self.places:
            self.refresh_topics()
            where = [(entry, self.places.refuses(copy)) for entry in entries for copy in entry.writes]
            found += [Refusal(entry, "place", f"{place} takes no records", place) for entry, place in where if place]
        return tuple(found)

    def refused(self, refusals: Iterable[Refusal]) -> None:
        """Take in why a transaction was aborted: a topic may have been deleted, a partition may take no records."""
        abouts = {(refusal.about, refusal.where) for refusal in refusals}
        if any(about != "record" for about, _ in abouts):
            self.refresh_topics(anew=True)  # what is known of the other topics stays, they go on
        for about, where in abouts:
            if about == "place":
                self.places.refuse(where)

    def topics(self) -> frozenset[str] | None:
        """The topics that the cluster has; None when it does not say. Blocks; for any thread."""
        producer = self.producer
        try:
            return None if producer is None else frozenset(producer.partitions())
        except KafkaException as failure:
            self.warn("topics-unlisted", "cannot list the topics: %s", failure)
            return None

    def warn(self, event: str, text: str, *args: object) -> None:
        """Log it under the name of its kind, and keep it for `/status`."""
        self.last_error = text % args
        _LOG.warning(text, *args, extra={"event": event})


def _destroy(last: list[TransactionalProducer]) -> None:
    """Drop the last reference to a producer, on a thread of its own: the client then waits for its own threads."""
    last.pop().end()


def _cannot_end(failure: KafkaException | CallTimeoutError) -> bool:
    """Whether the id's last transaction is decided, and its markers cannot be written."""
    return isinstance(failure, KafkaException) and failure.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS


def _retriable(failure: KafkaException | CallTimeoutError) -> bool:
    return isinstance(failure, KafkaException) and bool(failure.args[0].retriable())
