"""Read the view from Kafka into the local copy, one turn at a time, in either form. The caller provides the thread.

`as_of` is the time up to which the copy is complete: every event before it is in the copy. At the end of the Spark
job's view this is the time up to which the job has read the events (`age`); at the end of the events it is now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.clock import now
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, Topic, unled_text
from reconsume.sidecar.kafka.client_config import view_config, whole_fetches
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.few_messages import next_messages
from reconsume.sidecar.kafka.gaps import UntilGap
from reconsume.sidecar.view.forms import Form, PositionsAnswer
from reconsume.sidecar.view.intake import Intake, begins_of, shortfall
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import Facts, ViewStore
from reconsume.sidecar.view.tables import Item
from reconsume.topics.names import Kind, Names

SURVEY_EVERY = 60.0
"""Seconds between two looks at the topics: for new partitions, a changed retention, a topic that was created again."""
HURRY = 5.0
"""Seconds until the next look, while a topic is missing or cannot be read."""
CHECK_EVERY = 5.0
"""Seconds between two requests for the ends of the topics. While all is well, the copy is at most this old."""
AT_ONCE = -1e9
FIRST_EVERY_S = 1.0  # seconds between these requests until `as_of` is known
BEING_READ = "the view is being read for the first time"
_LOG = logging.getLogger("reconsume.view")


class Checked(NamedTuple):
    """Kafka's answers at a moment (epoch ms): first about the events, then the ends of the topics that are read."""

    at: int
    ends: Mapping[PartitionName, int]
    events: PositionsAnswer


class ViewReader:
    """A consumer of all partitions, without a group. Raises KafkaException, BrokerError, sqlite3.Error."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        names: Names,
        store: ViewStore,
        form: Form,
        client: str,
        check_every: float = CHECK_EVERY,
        most: int | None = None,
    ) -> None:
        """`most`: how many events to read at most, the newest; None for all. It closes the form."""
        self.problem = BEING_READ
        """Why nothing is known of the view; empty once it was read to its end."""
        self.took = 0.0
        """CPU seconds of this thread that the records of the last turn took."""
        self._names, self._store, self._form, self._check_every = names, store, form, check_every
        self._intake = Intake(store, form)
        self._most, self._skipped = most, 0
        self._cluster = Cluster(kafka)
        self._config = view_config(kafka, names.retry_group, client)
        self._small = form.source is Source.EVENTS
        self._consumer = make_client(Consumer, self._config)
        self._has_read = False
        """Whether the consumer was ever told to read something."""
        self._topics: Mapping[str, Topic] = {}
        self._begins: Mapping[PartitionName, int] = {}
        self._positions: dict[PartitionName, int] = {}
        self._checked: Checked | None = None
        self._known_until = 0  # epoch ms up to which all is known to be read; an estimate is none
        self._survey_at = self._check_at = AT_ONCE
        self._noted, self._note_at = self.facts, AT_ONCE

    def close(self) -> None:
        self._consumer.close()
        self._form.close()

    def turn(self, wait: float) -> list[Item]:
        """Take in the records that arrive within `wait` seconds, and return the good ones. Check the topics when it is
        time."""
        moment = time.monotonic()
        if moment >= self._survey_at:
            self._survey_at = moment + SURVEY_EVERY
            self._survey()
        if moment >= self._check_at and self._positions:
            every = self._check_every
            self._check_at = moment + (min(FIRST_EVERY_S, every) if self.facts.as_of is None else every)
            self._check()
        began = time.thread_time()
        messages = next_messages(self._consumer, wait, self._intake.batch_size)
        items = self._take_small(messages) if self._small else self._take(messages)
        self.took = time.thread_time() - began
        self._judge()
        return items

    def progress(self) -> tuple[int, int]:
        """Return how many offsets were read, and of how many. The two are equal once the end is reached."""
        ends = {} if self._checked is None else self._checked.ends
        read = sum(after - self._begins[partition] for partition, after in self._positions.items())
        return read, sum(end - self._begins[partition] for partition, end in ends.items())

    @property
    def absent(self) -> bool:
        """Whether there is no view, or it was never written to; `problem` says which."""
        return self.problem not in ("", BEING_READ)

    @property
    def caught_up(self) -> bool:
        """Whether everything is read that was there at the last check."""
        return self._checked is not None and self._at_end(self._checked.ends)

    @property
    def source(self) -> Source:
        """What the copy is made from."""
        return self._form.source

    @property
    def path(self) -> Path:
        """The file of the copy."""
        return self._store.path

    @property
    def facts(self) -> Facts:
        """What is known of the copy."""
        return self._intake.facts

    @property
    def bad(self) -> Mapping[Kind, int]:
        """The number of records that were skipped, by kind."""
        return self._intake.bad

    @property
    def shortfall(self) -> str:
        """One sentence about what the copy lacks, beside what has left the topic; empty if nothing."""
        if self._form.source is not Source.EVENTS:
            return ""
        events = [topic for name, topic in self._topics.items() if name in self._form.kinds]
        return "; ".join(filter(None, [shortfall(self._store.missing, self._skipped), unled_text(events)]))

    # --- looking around ----------------------------------------------------------------------------------------------

    def _survey(self) -> None:
        kinds = self._form.kinds
        topics = self._cluster.find({*kinds, self._names.events})
        # Deleted and created again, or of another cluster.
        recreated = [name for name in kinds if name in topics and self._store.identity(kinds[name]) != topics[name].id]
        for name in recreated:
            self._clear(name, topics[name].id)
        if (
            recreated
            or self._partitions(topics, topics) != self._partitions(self._topics, topics)
            or not self._positions
        ):
            self._assign(self._partitions(topics, kinds))
        self._topics = topics
        if self._form.main not in topics:
            self._survey_at = time.monotonic() + HURRY
            self.problem = self._form.missing
        for kind, retention in self._form.kept(topics).items():
            self._store.drop_older(kind, now().wall_ms - retention)

    def _clear(self, topic: str, identity: str) -> None:
        self._store.begin_anew(self._form.kinds[topic], topic, identity)
        self._intake.begin_anew()
        self._noted, self._known_until = self.facts, 0

    def _partitions(self, topics: Mapping[str, Topic], names: Collection[str]) -> list[PartitionName]:
        """Return the partitions to read. The events of those that have a leader are read without the others."""
        led = self._form.source is Source.EVENTS
        wanted = [topic for name, topic in topics.items() if name in names]
        return [partition for topic in wanted for partition in (topic.led if led else topic.all_partitions)]

    def _assign(self, partitions: list[PartitionName]) -> None:
        """Continue where the copy ends. A copy that ends behind the topic holds records that Kafka has lost since."""
        self._checked, self._check_at = None, AT_ONCE
        spans = self._cluster.spans(partitions)
        stored = self._store.positions()
        # Such a copy is discarded and the topic is read anew.
        for topic in {partition[0] for partition, span in spans.items() if stored.get(partition, 0) > span.end}:
            self._clear(topic, self._store.identity(self._form.kinds[topic]) or "")
            stored = self._store.positions()
        self._begins = begins_of(spans, self._most if self._form.source is Source.EVENTS else None)
        self._skipped = sum(begin - spans[partition].begin for partition, begin in self._begins.items())
        self._intake.gaps.find(self._begins, stored)
        self._positions = {
            partition: max(begin, stored.get(partition, begin)) for partition, begin in self._begins.items()
        }
        if self._has_read and self._positions:
            # A topic of them may have been deleted and created again: no client that knows the former one may ever
            # read it (`consumer/client_watch.py`).
            self._renew_consumer()
        else:
            self._begin_reading()

    def _begin_reading(self) -> None:
        self._consumer.assign([TopicPartition(*partition, after) for partition, after in self._positions.items()])
        self._has_read |= bool(self._positions)

    def _renew_consumer(self) -> None:
        former, self._consumer = self._consumer, make_client(Consumer, self._config)
        former.close()
        self._begin_reading()

    def _check(self) -> None:
        asked_at = now().wall_ms
        answer = self._form.positions(self._cluster, self._topics, self._known_until, asked_at)
        # Requested last: the rows of every event that the job has reported as read lie before these ends.
        ends = self._cluster.offsets(self._partitions(self._topics, self._form.kinds), Offset.END)
        self._checked = Checked(asked_at, {partition: listed.offset for partition, listed in ends.items()}, answer)

    def _at_end(self, ends: Mapping[PartitionName, int]) -> bool:
        return all(self._positions.get(partition, 0) >= end for partition, end in ends.items())

    def _judge(self) -> None:
        """Update the time up to which the copy is complete. It goes back only from an estimate."""
        checked = self._checked
        if checked is None or self._form.main not in self._topics:
            return
        ends = {partition: end for partition, end in checked.ends.items() if partition[0] == self._form.main}
        if not self._at_end(ends):
            self.problem = "" if self.facts.as_of is not None else BEING_READ
        elif self._form.empty and not any(ends.values()):
            self.problem = self._form.empty
        else:
            self.problem = ""
            as_of = checked.events.complete_until(checked.at, self.facts.newest)
            if checked.events.read_until is None:
                as_of = max(as_of, self.facts.as_of or 0)
            else:
                as_of = self._known_until = max(as_of, self._known_until)
            self._intake.facts = self.facts._replace(as_of=as_of)
        if self.facts != self._noted and time.monotonic() >= self._note_at:
            self._note_at = time.monotonic() + CHECK_EVERY
            self._store.note(self.facts)
            self._noted = self.facts

    # --- reading -----------------------------------------------------------------------------------------------------

    def _take_small(self, messages: Iterable[Message]) -> list[Item]:
        taken = UntilGap(messages, self._positions)
        items = self._take(taken)
        if taken.met:
            self._small, self._config = False, whole_fetches(self._config)
            self._renew_consumer()
        return items

    def _take(self, messages: Iterable[Message]) -> list[Item]:
        batch = self._intake.read(messages)
        items = batch.items
        moved = any(self._positions.get(partition) != after for partition, after in batch.moved.items())
        if moved or self._intake.gaps.since > self.facts.since:  # an emptied partition moves nothing
            items = self._intake.keep(batch)
            self._positions |= batch.moved
        for error in batch.errors:
            self._stumble(error)
        return items

    def _stumble(self, error: KafkaError) -> None:
        """Handle a read error: the topic is gone, or this user may not read it. Look at the topics again soon."""
        _LOG.warning("the view cannot be read: %s", error.str(), extra={"event": "view-unreadable"})
        if error.fatal():
            raise KafkaException(error)
        if not error.retriable():
            self._consumer.unassign()
            self._positions = {}
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._checked = None  # else the next look would say that all is well
            self.problem = f"the view cannot be read: {error.str()}"
            self._survey_at = time.monotonic() + HURRY
