"""Compare the view of a group with its level topics and dead letters, and write the events that it lacks.

The order of reading makes the comparison safe while the group runs. The view is read first, then the committed
progress, then the ends of the topics. So each record that waited when the progress was read is found waiting, in the
topic that it waits in or in the one that it was passed on to. A record that is not found has moved on since its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import msgspec
from confluent_kafka import Producer

from reconsume.sidecar.audit.facts import Fact, FactKind, Number
from reconsume.sidecar.audit.parsing import TopicRecord, copy_fact, only_postponed
from reconsume.sidecar.audit.reader import AuditKafka
from reconsume.sidecar.audit.scope import Survey, survey_of
from reconsume.sidecar.audit.store import AuditStore
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.kafka.client_config import teller_config
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.view.query import Filters, ViewQuery
from reconsume.sidecar.view.snapshot import looking
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view_repair.missing import WAITING, missing_event
from reconsume.topics.events import Event, encode_event
from reconsume.topics.names import Kind
from reconsume.topics.view_record import ViewRow

CLIENT = "reconsume-view-repair"
TOLD_EVERY = 5_000
"""Records between two reports of the progress."""
STALE_AFTER = 60_000
"""ms. With an older view, most of what it lacks is only unread."""
MOST_UNSENT = 1_000
"""Events in the producer's queue, so that a huge view does not fill the memory."""
NOTHING_DONE = Progress(0)
"""The progress of a partition for which none is committed."""

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with the current step, how much of it is done, and how much there is."""

_ROW = msgspec.json.Decoder(ViewRow)


class ViewRepair:
    """One comparison. A context manager. Raises BrokerError, ContractError, sqlite3.Error."""

    def __init__(self, settings: Settings, tell: Tell = lambda what, done, total: None) -> None:
        self.unread: list[str] = []
        """Partitions that could not be read to their ends: of their records nothing is said."""
        self._settings, self._tell = settings, tell
        self._stack = ExitStack()

    def __enter__(self) -> ViewRepair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def missing(self) -> Iterator[Event]:
        """Read everything, then yield the events that the view lacks.

        Raises ContractError if there is no view of Spark's, or if its job has not read the events of the last minute.
        """
        settings = self._settings
        if settings.view.source == "events":
            raise ContractError("the view is made from the events here (view.source), and has no rows to repair")
        look = self._stack.enter_context(looking(settings.kafka, settings.names, Source.SPARK))
        look.read_all(lambda read, total: self._tell("reading the view", read, total))
        began = wall()
        if began - look.as_of > STALE_AFTER:
            age = (began - look.as_of) // 1_000
            raise ContractError(f"the view is {age} s old: let the job of `reconsume view run` read all events first")
        store = self._stack.enter_context(AuditStore())
        with AuditKafka(settings.kafka, settings.names.retry_group) as kafka:
            self._collect(kafka, store)
        with look.questions() as ask:
            yield from self._of_copies(store, ask, began)
            if not self.unread:  # else a record that is not found may wait there
                yield from self._of_rows(store, ask, began)

    def _collect(self, kafka: AuditKafka, store: AuditStore) -> None:
        """Keep a fact of each copy that waits, and of each dead letter."""
        survey = survey_of(self._settings, kafka.topics())
        progress = kafka.progress(self._settings.names.retry_group, survey.retries, stable=False)
        marks = kafka.marks(partition for partition in survey.read if partition[0] not in survey.own[Kind.EVENTS])
        starts = {
            partition: max(mark.begin, progress.get(partition, NOTHING_DONE).next) for partition, mark in marks.items()
        }
        ends = {partition: max(mark.end, starts[partition]) for partition, mark in marks.items()}
        total = sum(ends.values()) - sum(starts.values())
        store.put(self._facts(self._counted(kafka.read(starts, ends), total), survey, progress))
        self.unread += [f"{topic}[{number}]" for topic, number in (*kafka.stuck, *kafka.overtaken)]
        store.arrange()

    def _counted(self, rows: Iterable[TopicRecord], total: int) -> Iterator[TopicRecord]:
        """Yield the records, and tell how many there were."""
        done = 0
        for done, row in enumerate(rows, 1):
            if done % TOLD_EVERY == 0:
                self._tell("reading level topics and dead letters", done, total)
            yield row
        self._tell("reading level topics and dead letters", done, total)

    def _facts(self, rows: Iterable[TopicRecord], survey: Survey, progress: dict[Number, Progress]) -> Iterator[Fact]:
        sources = frozenset(self._settings.topic_names)
        for row in rows:
            what = FactKind.DEAD if row.topic in survey.own[Kind.DLQ] else FactKind.COPY
            done = progress.get((row.topic, row.partition), NOTHING_DONE)
            if what is FactKind.COPY and done.covers(row.offset):
                continue
            fact = copy_fact(row, what, self._settings.group, sources, later=False)
            if fact.what is not FactKind.BAD and not only_postponed(row, fact):
                yield fact

    def _of_copies(self, store: AuditStore, ask: ViewQuery, began: int) -> Iterator[Event]:
        for facts in store.by_record():
            event = missing_event(row_of(ask, facts[0].id), facts, self._settings.names, began)
            if event is not None:
                yield event

    def _of_rows(self, store: AuditStore, ask: ViewQuery, began: int) -> Iterator[Event]:
        """Yield the commits of records that wait by their rows, and of which no copy is there."""
        for row in waiting_rows(ask):
            event = None if store.knows(row.id) else missing_event(row, (), self._settings.names, began)
            if event is not None:
                yield event

    def write(self, events: Iterable[Event]) -> None:
        """Write events to the group's events topic. Raises BrokerError if Kafka did not take one of them."""
        faults: list[str] = []
        topic = self._settings.names.events
        producer = Producer(
            {**teller_config(self._settings.kafka, CLIENT), "queue.buffering.max.messages": MOST_UNSENT}
        )
        for event in events:
            while len(producer) >= MOST_UNSENT:
                producer.poll(ANSWER_SECONDS)
            producer.produce(
                topic,
                encode_event(event),
                event.id.encode(),
                on_delivery=lambda error, _: faults.append(error.str()) if error is not None else None,
            )
        unsent = producer.flush(3 * ANSWER_SECONDS)
        if faults or unsent:
            why = faults[0] if faults else "Kafka does not answer"
            raise BrokerError(
                f"{len(faults) + unsent} events were not written to {topic}: {why}; run the command again"
            )


def row_of(ask: ViewQuery, identity: str) -> ViewRow | None:
    """Return a record's row of the view."""
    value = ask.message(identity)
    return None if value is None else _ROW.decode(value)


def waiting_rows(ask: ViewQuery) -> Iterator[ViewRow]:
    """Yield the rows of the records that wait, as the view has them."""
    for state in WAITING:
        yield from map(_ROW.decode, ask.every_message(Filters(state=state)))
