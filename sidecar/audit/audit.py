"""Run one audit: read the committed progress, then all records, then what arrived meanwhile.

The order prevents false alarms while the group is running. The first progress is read before the end offsets, so that
every record which follows from it is read. Records that arrive during the first look are read in a second one. Every
companion of a record of the first look is there by then. The progress that sources are compared with is read last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.audit.copy_rules import judge
from reconsume.sidecar.audit.facts import Finding, Known, Number, Terms
from reconsume.sidecar.audit.output_rules import judge_outputs
from reconsume.sidecar.audit.outputs import OutputReading
from reconsume.sidecar.audit.parsing import TopicRecord, fact_in, main_fact, only_postponed
from reconsume.sidecar.audit.reader import AuditKafka
from reconsume.sidecar.audit.scope import Survey, survey_of, terms_of
from reconsume.sidecar.audit.store import AuditStore
from reconsume.sidecar.audit.unknowns import Horizon, Unknown, known_of, unknown_of
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.settings import Settings
from reconsume.topics.names import Kind

OPEN_MS = 20_000
"""ms before a record that could not be read. Younger records may have companions in its transaction. Reconsume's
transactions end after 10 s."""
TOLD_EVERY = 5_000
"""Records between two reports of the progress."""
MOST_AT_ONCE = 500
"""Partitions of main topics that are compared at once. Each needs a database cursor."""

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with the current step, how much of it is done, and how much there is."""


class AuditRequest(NamedTuple):
    """The options of an audit.

    `since`: epoch ms from which on records are read; None: from the beginning. `slack`: ms that clocks may differ.
    `compare`: whether copies are compared with the main topics' records. `outputs`: whether the topics of
    `deliver.outputs` are read.
    """

    since: int | None = None
    slack: int = 500
    compare: bool = True
    outputs: bool = True


class Audit:
    """One audit. A context manager; `findings` does the work, and the other attributes are complete after it.

    Raises BrokerError, ContractError, sqlite3.Error, OSError.
    """

    def __init__(self, settings: Settings, ask: AuditRequest, tell: Tell = lambda what, done, total: None) -> None:
        self.read = 0
        """The number of records that were read and kept, or compared."""
        self.judged_records = 0
        """The number of records that have ever failed and of which something is left."""
        self.outputs = 0
        """The number of outputs that were read."""
        self.unknown: list[Unknown] = []
        """Facts that cannot be known, one sentence each. If there are any, the audit is incomplete."""
        self._settings, self._ask, self._tell = settings, ask, tell
        self._sources = frozenset[str]()
        self._stack = ExitStack()

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def findings(self) -> Iterator[Finding]:
        """Read the topics, then yield all findings."""
        names = self._settings.names
        kafka = self._stack.enter_context(AuditKafka(self._settings.kafka, names.retry_group))
        store = self._stack.enter_context(AuditStore())
        terms = self._collect(kafka, store)
        total = store.count()
        for facts in store.by_record():
            self.judged_records += 1
            if self.judged_records % 5_000 == 0:
                self._tell("judging", self.judged_records, total)
            yield from judge(facts, terms)
        for outputs in store.outputs_by_record():
            yield from judge_outputs(outputs, store.facts_of(outputs[0].id), terms)
        self.unknown += [Unknown(f"of {identity} only a part was looked at: it is a flood") for identity in store.cut]

    # --- what is committed -------------------------------------------------------------------------------------------

    def _progress(self, kafka: AuditKafka, survey: Survey, *, stable: bool) -> dict[Number, Progress]:
        names = self._settings.names
        main = kafka.progress(names.group, survey.mains, stable=stable)
        return main | kafka.progress(names.retry_group, survey.retries, stable=stable)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _collect(self, kafka: AuditKafka, store: AuditStore) -> Terms:
        """Read everything, in the order that the module docstring explains. Return the terms to judge by."""
        survey = survey_of(settings := self._settings, kafka.topics())
        self._sources = frozenset((*settings.topic_names, *survey.waits))
        began = now().wall_ms
        before = self._progress(kafka, survey, stable=False)
        service = kafka.progress(settings.names.group, survey.ready, stable=False)
        first = kafka.marks(survey.read)
        starts = kafka.starts(first, self._ask.since)
        ends = {partition: mark.end for partition, mark in first.items()}
        self._take("reading", kafka, store, survey, starts, ends, later=False)
        if self._ask.outputs:
            self._read_outputs(store, survey)
        last = {partition: mark.end for partition, mark in kafka.marks(survey.read).items()}
        if not kafka.stuck:
            self._take("reading what came meanwhile", kafka, store, survey, ends, last, later=True)
        self._tell("arranging", 0, 0)
        store.arrange()
        mains = self._compare(kafka, store, survey) if self._ask.compare else {}
        after = self._last_progress(kafka, survey)
        horizon = Horizon(first, starts, kafka.seen, kafka.overtaken, self._ask.since, began)
        there = Cluster(settings.kafka).find({topic for topic, _ in (*survey.read, *mains)})
        configs = {name: found.config for name, found in there.items()}
        since = known_of(horizon, configs, survey.own[Kind.DLQ])
        self.unknown += unknown_of(horizon, since, survey.retries, before, store, mains, kafka.stuck)
        terms = terms_of(settings, survey, self._ask.slack, Known(since, until(kafka)))
        compacted = frozenset(name for name, config in configs.items() if "compact" in config["cleanup.policy"])
        begins = {partition: mark.begin for partition, mark in mains.items()}
        progress = {"before": before, "after": after, "service": service}
        return replace(terms, **progress, begins=begins, compacted=compacted, compare=self._ask.compare)

    def _read_outputs(self, store: AuditStore, survey: Survey) -> None:
        """Read the outputs up to now: what explains them lies below the ends that are asked for after it."""
        reading = OutputReading(self._settings, self._ask.since, self._tell)
        reading.run(dict(survey.partitions), store)
        self.outputs = reading.count
        self.unknown += reading.unknown

    def _last_progress(self, kafka: AuditKafka, survey: Survey) -> dict[Number, Progress]:
        try:
            return self._progress(kafka, survey, stable=True)
        except BrokerError as fault:
            self.unknown.append(Unknown(f"whether sources are done is not known: {fault}"))
            return {}

    def _take(
        self,
        what: str,
        kafka: AuditKafka,
        store: AuditStore,
        survey: Survey,
        starts: Mapping[Number, int],
        ends: Mapping[Number, int],
        *,
        later: bool,
    ) -> None:
        """Read from `starts` to `ends` and keep the facts."""
        kinds = {name: kind for kind, topics in survey.own.items() for name in topics}
        total = sum(max(0, end - starts[partition]) for partition, end in ends.items())
        rows = self._counted(what, kafka.read(starts, ends), total)
        facts = ((row, fact_in(row, kinds[row.topic], self._settings.group, self._sources, later)) for row in rows)
        store.put(fact for row, fact in facts if not only_postponed(row, fact))

    def _compare(self, kafka: AuditKafka, store: AuditStore, survey: Survey) -> dict[Number, Span]:
        """Read the main-topic records that copies and events refer to. Return where the partitions begin and end."""
        topics = survey.own.get(Kind.MAIN, {})
        spans = {
            partition: span
            for partition, span in store.want(topics).items()
            if partition[1] < survey.partitions[partition[0]]
        }
        marks = kafka.marks(spans)
        total = sum(last - first + 1 for first, last in spans.values())
        compared = self.read
        for chunk in chunks(tuple(spans), MOST_AT_ONCE):
            starts = {partition: max(marks[partition].begin, spans[partition][0]) for partition in chunk}
            ends = {partition: min(marks[partition].end, spans[partition][1] + 1) for partition in chunk}
            rows = kafka.read(starts, ends, {partition: store.wanted(partition) for partition in chunk})
            store.put(map(main_fact, self._counted("comparing with the main topics", rows, total, compared)))
        return marks

    def _counted(
        self, what: str, rows: Iterable[TopicRecord], total: int, before: int | None = None
    ) -> Iterator[TopicRecord]:
        """Yield the records, and tell how many there were. `before`: how many were read when this step began."""
        before = self.read if before is None else before
        for row in rows:
            self.read += 1
            if (self.read - before) % TOLD_EVERY == 0:
                self._tell(what, self.read - before, total)
            yield row
        self._tell(what, self.read - before, total)


def chunks(items: tuple[Number, ...], size: int) -> Iterator[tuple[Number, ...]]:
    """Return the items in groups of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))


def until(kafka: AuditKafka) -> int:
    """Return the epoch ms from which on a record may have companions behind an open transaction."""
    last = [kafka.seen[partition].last if partition in kafka.seen else 0 for partition in kafka.stuck]
    return min(last) - OPEN_MS if last else 2**63


def tallied(findings: Iterable[Finding], counts: Counter[str]) -> Iterator[Finding]:
    """Yield the findings, and count each by its kind as it passes."""
    for finding in findings:
        counts[finding.kind] += 1
        yield finding
