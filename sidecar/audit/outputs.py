"""Read the topics of `deliver.outputs` for an audit.

They are other programs' topics too, so only what the group itself has stamped is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from reconsume.sidecar.audit.facts import Fact, FactKind
from reconsume.sidecar.audit.parsing import TopicRecord
from reconsume.sidecar.audit.reader import AuditKafka
from reconsume.sidecar.audit.scope import partition_numbers
from reconsume.sidecar.audit.store import AuditStore
from reconsume.sidecar.audit.unknowns import Unknown
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import allowed_outputs_of
from reconsume.topics.outputs import literal_start, output_of

TOLD_EVERY = 5_000
"""Records between two reports of the progress."""


def output_topics(settings: Settings, there: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that are there and may have outputs of the group."""
    topics = allowed_outputs_of(settings)
    if topics is None:
        return ()
    return tuple(name for name in there if topics.allows(name))


def unseen(settings: Settings, there: Collection[str]) -> Iterator[Unknown]:
    """Yield what is unknown of each topic that is named and is not there, or may not be seen."""
    for name in settings.deliver.outputs:
        if name not in there and literal_start(name) == name:
            yield Unknown(f"{name} of deliver.outputs is not there, or may not be read: its outputs are not known")


def output_fact(row: TopicRecord, group: str, sources: Collection[str]) -> Fact | None:
    """Return the fact of an output of the group for a record of one of the topics `sources`; None for any other."""
    stamp = output_of(row.headers or [])
    if stamp is None or stamp.group != group or stamp.id.rsplit(":", 2)[0] not in sources:
        return None
    position = row.topic, row.partition, row.offset, row.timestamp
    cycle, redrives, times = stamp.attempt
    return Fact(FactKind.OUTPUT, stamp.id, redrives, times, *position, level=str(stamp.number), cycle=cycle)


class OutputReading:
    """Reads the outputs of a group into the store. It has a reader of its own: a transaction of another program that
    hangs in an output topic hides nothing of the group's own topics."""

    def __init__(self, settings: Settings, since: int | None, tell: Callable[[str, int, int], None]) -> None:
        """`since`: epoch ms from which on records are read; None: from the beginning."""
        self.count = 0
        """The outputs of the group that were read."""
        self.unknown: list[Unknown] = []
        self._settings, self._since, self._tell = settings, since, tell

    def run(self, there: dict[str, int], store: AuditStore) -> None:
        """Read the topics up to where they end now. `there`: all topics, with their numbers of partitions.

        What cannot be read is unknown, and hides nothing of the group's own topics.
        """
        self.unknown += unseen(self._settings, there)
        topics = output_topics(self._settings, there)
        if not topics:
            return
        try:
            with AuditKafka(self._settings.kafka, self._settings.names.retry_group) as kafka:
                self._read(kafka, there, topics, store)
        except BrokerError as fault:
            self.unknown.append(Unknown(f"the outputs of the service are not known: {fault}"))

    def _read(self, kafka: AuditKafka, there: dict[str, int], topics: Iterable[str], store: AuditStore) -> None:
        marks = kafka.marks(partition_numbers(there, topics))
        starts = kafka.starts(marks, self._since)
        ends = {partition: mark.end for partition, mark in marks.items()}
        total = sum(max(0, end - starts[partition]) for partition, end in ends.items())
        store.put_outputs(self._facts(kafka.read(starts, ends), total))
        for (topic, number), offset in kafka.stuck.items():
            text = "a transaction that does not end holds back outputs"
            self.unknown.append(Unknown(text, (f"{topic}:{number}:{offset}",)))

    def _facts(self, rows: Iterable[TopicRecord], total: int) -> Iterator[Fact]:
        group, sources = self._settings.group, frozenset(self._settings.topic_names)
        for done, row in enumerate(rows, 1):
            if done % TOLD_EVERY == 0:
                self._tell("reading outputs", done, total)
            fact = output_fact(row, group, sources)
            if fact is not None:
                self.count += 1
                yield fact
