"""Read the view from Kafka into the local copy, one turn at a time. The caller provides the thread.

`ViewReader` follows the group's events, and with `view.source: spark` the rows that the Spark job writes. Every turn
takes a few records into the copy. Now and then it looks at the topics (new partitions, another retention, a topic that
was created again) and asks for their ends.

`as_of` is the time up to which the copy is complete: every event before it is in it. It is the moment at which the ends
were asked for, once the copy has reached them; with `spark` it is also no later than the oldest event that the job has
not read (`age.py`). It never goes back, except where a topic is another one now.

`looking` reads the view once, for a command: a temporary copy, which is removed at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import inf
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from reconsume.sidecar.clock import now
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.hints import absent, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster, CommittedOffsets, DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Offset, PartitionName, Topic, unled_text
from reconsume.sidecar.kafka.client_config import view_config, whole_fetches
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS, sentence_of
from reconsume.sidecar.kafka.policy_topic import NotesLog
from reconsume.sidecar.kafka.scan import MOST, UntilGap, next_messages
from reconsume.sidecar.operation import Report
from reconsume.sidecar.view.age import job_has_read_until
from reconsume.sidecar.view.copy import BOUND, ViewCopy, open_copy
from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.records import AT_ONCE, Gaps, RecordDecoder, begins_of, shortfall, sums_shortfall
from reconsume.sidecar.view.source import Source
from reconsume.topics.names import Kind, Names
from reconsume.topics.position_ranges import RESET
from reconsume.topics.specs import VIEW_RETENTION

SURVEY_EVERY = 60.0
"""Seconds between two looks at the topics."""
HURRY = 5.0
"""Seconds until the next look, while a topic is missing or cannot be read."""
CHECK_EVERY = 5.0
"""Seconds between two requests for the ends of the topics. While all is well, the copy is at most this old."""
FIRST_EVERY = 1.0
"""Seconds between these requests until `as_of` is known."""
EVENTS_TOGETHER = 2_000
"""Events of one turn. Each turn writes most pages of the file's indexes anew: with 500 an event costs a third more."""
ROOM_EVERY = 10.0
"""Seconds between two times that a copy near its bound makes room."""
SUMS_KEPT = 7 * 86_400_000
"""ms for which the sums of a minute are kept."""
BEING_READ = "the view is being read for the first time"
_LOG = logging.getLogger("reconsume.view")


class PartitionReader:
    """A consumer of partitions from given offsets, without a group.

    It fetches little at a time up to the first gap that an aborted transaction may have left, and whole pieces from
    there on (`kafka/scan.py`). Where a topic may have been deleted and created again, the consumer is replaced: no
    client that knows the former topic may ever read it (`consumer/client_watch.py`).
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self.positions: dict[PartitionName, int] = {}
        """The next offset of each partition that is read."""
        self._config = dict(config)
        self._consumer = make_client(Consumer, self._config)
        self._fetches_little = True
        self._gap: UntilGap | None = None
        self._has_read = False

    def assign(self, positions: Mapping[PartitionName, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        if self._has_read and positions:
            former, self._consumer = self._consumer, make_client(Consumer, self._config)
            former.close()
        self.positions = dict(positions)
        self._consumer.assign([TopicPartition(*partition, after) for partition, after in positions.items()])
        self._has_read |= bool(positions)

    def read(self, wait: float, most: int) -> Iterable[Message]:
        """Return what arrives within `wait` seconds, `most` messages at most. `moved` must be called after it."""
        messages = next_messages(self._consumer, wait, most)
        if not self._fetches_little:
            return messages
        self._gap = UntilGap(messages, self.positions)
        return self._gap

    def moved(self, positions: Mapping[PartitionName, int]) -> None:
        """Note the next offsets after what was read."""
        self.positions |= positions
        if self._gap is not None and self._gap.met:
            self._fetches_little, self._gap, self._config = False, None, whole_fetches(self._config)
            self.assign(self.positions)

    def stop(self) -> None:
        """Read nothing until it is assigned again."""
        self._consumer.unassign()
        self.positions = {}

    def close(self) -> None:
        self._consumer.close()


class Survey(NamedTuple):
    """What a look at the topics has found: the topics by name, the offset from which each partition is read, and how
    many older offsets are not read because no more events were asked for."""

    topics: Mapping[str, Topic]
    begins: Mapping[PartitionName, int]
    skipped: int


class Checked(NamedTuple):
    """Kafka's answers at a moment: up to when (epoch ms) all events are rows, and then the ends of what is read."""

    as_of: int
    ends: Mapping[PartitionName, int]


class Timetable:
    """When (seconds of a steady clock) each piece of work that is not reading is due."""

    def __init__(self, check_every: float) -> None:
        self.check_every = check_every
        self.survey_at = self.check_at = self.note_at = self.room_at = AT_ONCE


class ViewReader:
    """Reads the view into a `copy`. Raises BrokerError, sqlite3.Error."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        names: Names,
        copy: ViewCopy,
        client: str,
        *,
        check_every: float = CHECK_EVERY,
        most: int | None = None,
        with_sums: bool = True,
    ) -> None:
        """`most`: the events to read at most, the newest; None for all, or with Spark's rows, of which the events are
        only the sums, for as many as a copy of events holds records. `with_sums`: False leaves out those events."""
        self.problem = BEING_READ
        """Why nothing is known of the view; empty once it was read to its end."""
        self.facts = copy.facts()
        """What is known of the copy, also what is not stored yet."""
        self.decoder = RecordDecoder(names, copy.source, self.facts.since, with_sums=with_sums)
        spark = copy.source is Source.SPARK
        self._names, self.copy = names, copy
        self._most = BOUND.records if most is None and spark else most
        self._cluster = Cluster(kafka, client)
        self._log = PartitionReader(view_config(kafka, names.retry_group, client))
        self._job = CommittedOffsets(self._cluster, names.view_group) if spark else None
        self._resets = NotesLog(self._cluster, names, RESET)
        self._unknown_resets = ""
        """Why it is not known what resets have superseded; empty if it is."""
        self._survey = Survey({}, {}, 0)
        self._checked: Checked | None = None
        self._times = Timetable(check_every)

    def close(self) -> None:
        self._log.close()
        if self._job is not None:
            self._job.close()

    def read_turn(self, wait: float) -> bool:
        """Take in what arrives within `wait` seconds, and check the topics when it is time. Return whether any came."""
        try:
            self._check_what_is_due()
            most = EVENTS_TOGETHER if self.copy.source is Source.EVENTS else MOST
            has_read = self._take_messages(self._log.read(wait, most))
        except KafkaException as failure:
            raise BrokerError(f"the view cannot be read: {sentence_of(failure)}") from failure
        self._update_completeness()
        return has_read

    def _check_what_is_due(self) -> None:
        moment, times = time.monotonic(), self._times
        if moment >= times.survey_at:
            times.survey_at = moment + SURVEY_EVERY
            self._look_at_topics()
        if moment >= times.check_at and self._log.positions:
            every = times.check_every
            times.check_at = moment + (min(FIRST_EVERY, every) if self.facts.as_of is None else every)
            self._ask_for_ends()

    def progress(self) -> tuple[int, int]:
        """Return how many offsets were read, and of how many. The two are equal once the end is reached."""
        ends, begins = {} if self._checked is None else self._checked.ends, self._survey.begins
        read = sum(after - begins[partition] for partition, after in self._log.positions.items())
        return read, sum(end - begins[partition] for partition, end in ends.items())

    @property
    def is_absent(self) -> bool:
        """Whether there is no view, or it was never written to; `problem` says which."""
        return self.problem not in ("", BEING_READ)

    @property
    def is_read(self) -> bool:
        """Whether everything is in the copy that was there at the last check, and its age is known."""
        return self._checked is not None and self._has_reached(self._checked.ends) and self.facts.as_of is not None

    @property
    def shortfall(self) -> str:
        """One sentence about what the copy lacks, beside what has left the topic; empty if nothing."""
        folds = self.copy.source is Source.EVENTS
        missing = self.copy.missing
        lacks = (shortfall(missing, self._survey.skipped if folds else 0), sums_shortfall(missing))
        events = self._survey.topics.get(self._names.events)
        unled = unled_text([events] if events is not None else [])
        return "; ".join(filter(None, [*lacks, unled, self._unknown_resets]))

    # --- looking around ----------------------------------------------------------------------------------------------

    def _look_at_topics(self) -> None:
        kinds, former = self.decoder.kinds, self._survey.topics
        topics = self._cluster.find_topics({*kinds, self._names.events})
        recreated = [name for name in kinds if name in topics and self.copy.identity(kinds[name]) != topics[name].id]
        for name in recreated:  # or of another cluster
            self._begin_anew(name, topics[name].id)
        self._survey = self._survey._replace(topics=topics)
        if recreated or not self._log.positions or _partitions(topics, kinds) != _partitions(former, kinds):
            self._assign(_partitions(topics, kinds))
        if self.decoder.rows_topic not in topics:
            self._times.survey_at = time.monotonic() + HURRY
            writer = f", and the Spark job of `{hint('view run')}` writes it" if self._job is not None else ""
            self.problem = absent([self.decoder.rows_topic]) + writer
        moment = now().wall_ms
        kept = VIEW_RETENTION if self._job is None else retention_of(topics.get(self._names.view))
        self.copy.drop_older(None if kept is None else moment - kept, moment - SUMS_KEPT)

    def _begin_anew(self, topic: str, identity: str) -> None:
        kind = self.decoder.kinds[topic]
        self.copy.begin_anew(kind, topic, identity)
        self.facts = self.copy.facts()
        if kind is Kind.EVENTS:
            self.decoder.gaps = Gaps(self.facts.since)

    def _assign(self, partitions: list[PartitionName]) -> None:
        """Continue where the copy ends. A copy that ends behind the topic holds records that Kafka has lost since."""
        self._checked, self._times.check_at = None, AT_ONCE
        spans = self._cluster.spans(partitions)
        stored = self.copy.positions()
        # Such a copy is discarded and the topic is read anew.
        for topic in {partition[0] for partition, span in spans.items() if stored.get(partition, 0) > span.end}:
            self._begin_anew(topic, self.copy.identity(self.decoder.kinds[topic]) or "")
            stored = self.copy.positions()
        events = {partition: span for partition, span in spans.items() if partition[0] == self._names.events}
        begins = {partition: span.begin for partition, span in spans.items()} | begins_of(events, self._most)
        skipped = sum(begin - spans[partition].begin for partition, begin in begins.items())
        self._survey = self._survey._replace(begins=begins, skipped=skipped)
        self.decoder.gaps.note_gaps({partition: begins[partition] for partition in events}, stored)
        self._log.assign({partition: max(begin, stored.get(partition, begin)) for partition, begin in begins.items()})

    def _look_at_resets(self) -> None:
        try:
            self._resets.read_on()
        except DeniedError as denied:
            self._unknown_resets = f"which records resets have had delivered again is not known: {denied}"
            return
        self.copy.supersede(self._resets.present_resets())

    def _ask_for_ends(self) -> None:
        self._look_at_resets()
        as_of = now().wall_ms
        topics, kinds = self._survey.topics, self.decoder.kinds
        if self._job is not None and self._names.view in topics:
            try:
                as_of = job_has_read_until(self._cluster, self._job, self._names, topics, self.facts.as_of or 0, as_of)
            except BrokerError as failure:
                if self.facts.as_of is None:
                    self.problem = f"how new Spark's view is cannot be told: {failure}"
                return
        # Asked last: the rows of every event that the job has reported as read lie before these ends.
        ends = self._cluster.offsets(_partitions(topics, kinds), Offset.END)
        self._checked = Checked(as_of, {partition: listed.offset for partition, listed in ends.items()})

    def _has_reached(self, ends: Mapping[PartitionName, int]) -> bool:
        return all(self._log.positions.get(partition, 0) >= end for partition, end in ends.items())

    def _update_completeness(self) -> None:
        """Update the time up to which the copy is complete."""
        checked, rows_topic = self._checked, self.decoder.rows_topic
        if checked is None or rows_topic not in self._survey.topics:
            return
        if not self._has_reached(checked.ends):
            self.problem = "" if self.facts.as_of is not None else BEING_READ
        elif self._job is not None and not any(end for (name, _), end in checked.ends.items() if name == rows_topic):
            self.problem = f"nothing was ever written to {rows_topic}: does the Spark job run?"
        else:
            self.problem = ""
            self.facts = self.facts._replace(as_of=max(checked.as_of, self.facts.as_of or 0))
            if time.monotonic() >= self._times.note_at:
                self._times.note_at = time.monotonic() + CHECK_EVERY
                self.copy.store_facts(self.facts)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _take_messages(self, messages: Iterable[Message]) -> bool:
        batch, errors = self.decoder.decode(messages)
        since = self.decoder.gaps.since
        moved = any(self._log.positions.get(partition) != after for partition, after in batch.moved.items())
        if moved or since > self.facts.since:  # an emptied partition moves nothing
            self.facts = self.facts._replace(since=since)
            self.copy.store_batch(batch, since)
            if self.copy.is_tight and time.monotonic() >= self._times.room_at:
                self._times.room_at = time.monotonic() + ROOM_EVERY
                self.copy.make_room()
        self._log.moved(batch.moved)
        for error in errors:
            self._stumble(error)
        return bool(batch.rows or batch.events)

    def _stumble(self, error: KafkaError) -> None:
        """Handle a read error: the topic is gone, or this user may not read it. Look at the topics again soon."""
        _LOG.warning("the view cannot be read: %s", error.str(), extra={"event": "view-unreadable"})
        if error.fatal():
            raise KafkaException(error)
        if not error.retriable():
            self._log.stop()
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._checked = None  # else the next look would say that all is well
            self.problem = f"the view cannot be read: {error.str()}"
            self._times.survey_at = time.monotonic() + HURRY


def _partitions(topics: Mapping[str, Topic], kinds: Mapping[str, Kind]) -> list[PartitionName]:
    """Return the partitions to read. The events of those that have a leader are read without the others."""
    wanted = [topic for name, topic in topics.items() if name in kinds]
    return [
        one for topic in wanted for one in (topic.led if kinds[topic.name] is Kind.EVENTS else topic.all_partitions)
    ]


def retention_of(topic: Topic | None) -> int | None:
    """Return after how many ms a topic deletes its records; None if never, or if there is no topic."""
    if topic is None or "delete" not in topic.config.get("cleanup.policy", ""):
        return None
    text = topic.config.get("retention.ms", "")
    return int(text) if text.isdecimal() else None


# --- reading once -----------------------------------------------------------------------------------------------------

POLL = 0.1
CLIENT = "reconsume-retries"


class ViewSnapshot(ViewReader):
    """The view while it is read once, for a command. `read_turn` continues the reading."""

    def read_all(self, report: Report) -> None:
        """Read to the end. Raises ContractError if there is no view, BrokerError if Kafka sends no more."""
        answered_at = time.monotonic()
        while not self.is_read:
            before = self.progress()
            self.read_turn(POLL)
            if self.is_absent:
                raise ContractError(self.problem)
            if self.progress() != before:
                answered_at = time.monotonic()
                report(*self.progress())
            elif time.monotonic() > answered_at + ANSWER_SECONDS:
                raise BrokerError(f"the view could not be read on for {ANSWER_SECONDS:.0f} s")

    @contextmanager
    def questions(self) -> Iterator[ViewQuery]:
        """Open the copy for queries."""
        with questions(self.copy.path, inf) as query:
            yield query


@contextmanager
def looking(
    kafka: Mapping[str, str], names: Names, source: Source, most: int | None = None, *, with_sums: bool = True
) -> Iterator[ViewSnapshot]:
    """Open the view in a temporary file, which is removed at the end. Raises ConfigError, BrokerError.

    `most` and `with_sums` are those of ViewReader.
    """
    with ExitStack() as opened:
        copy = open_copy(None, names.group, source)
        opened.callback(copy.close)
        look = ViewSnapshot(kafka, names, copy, CLIENT, most=most, with_sums=with_sums)
        opened.callback(look.close)
        yield look
