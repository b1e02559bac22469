"""Run one audit: read the committed progress, then all records, then what arrived meanwhile.

The order prevents false alarms while the group is running. The first progress is read before the end offsets, so that
every record which follows from it is read. Records that arrive during the first look are read in a second one. Every
companion of a record of the first look is there by then. The progress that sources are compared with is read last.

What is read becomes facts (`parsing.py`) in a temporary file (`store.py`), by the id of their record. The rules
(`rules.py`) judge one record after another. What the topics do not show is said (`unknowns.py`). The command `audit`
calls this, on its one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from reconsume.sidecar.audit.facts import Finding, Known, Number, Terms, topics_of
from reconsume.sidecar.audit.parsing import fact_in, main_fact, only_postponed, output_fact
from reconsume.sidecar.audit.reader import CLIENT, AuditReader
from reconsume.sidecar.audit.rules import judge, judge_outputs
from reconsume.sidecar.audit.store import AuditStore, Table
from reconsume.sidecar.audit.unknowns import Horizon, Unknown, known_of, unknown_of
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.errors import BrokerError, ContractError
from reconsume.sidecar.group_policy.queries import progress_with_queries
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import Span, Topic
from reconsume.sidecar.kafka.policy_topic import read_present_resets
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import allowed_outputs_of
from reconsume.topics.names import Kind
from reconsume.topics.outputs import literal_start

OPEN_MS = 20_000
"""ms before a record that could not be read. Younger records may have companions in its transaction. Reconsume's
transactions end after 10 s."""
TOLD_EVERY = 5_000
"""Records between two reports of the progress."""
MOST_AT_ONCE = 500
"""Partitions of main topics that are compared at once. Each needs a database cursor."""

IN_FLIGHT_MS = 600_000
"""ms after a reset for which deliveries of earlier cycles may still end. A longer `deliver.timeout` makes it longer."""

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


class Survey(NamedTuple):
    """The group's topics that exist: by kind each with its delay in ms, and as the cluster describes them."""

    own: Mapping[Kind, Mapping[str, int]]
    topics: Mapping[str, Topic]
    is_relay: bool

    @property
    def waits(self) -> dict[str, int]:
        """Every topic where copies wait, with its delay in ms."""
        return {**self.own.get(Kind.LEVEL, {}), **self.own.get(Kind.ORDERED, {}), **self.own[Kind.READY]}

    @property
    def configs(self) -> dict[str, Mapping[str, str]]:
        """The settings of each topic."""
        return {name: topic.config for name, topic in self.topics.items()}

    @property
    def retries(self) -> list[Number]:
        """The partitions whose progress the retry lane commits; the service of a relay reads the ready topic."""
        return self.partitions(Kind.LEVEL) if self.is_relay else self.partitions(Kind.LEVEL, Kind.READY)

    def partitions(self, *kinds: Kind) -> list[Number]:
        """Return the partitions of the topics of these kinds."""
        names = (name for kind in kinds for name in self.own.get(kind, {}))
        return [partition for name in names for partition in self.topics[name].all_partitions]


def survey_of(settings: Settings, cluster: Cluster, there: Iterable[str]) -> Survey:
    """Return what to read of the topics that exist.

    Raises BrokerError, and ContractError if a required topic is missing, or if the group is a broadcast.
    """
    own = topics_of(settings.names, settings.topic_names, there)
    if settings.deliver.broadcast:
        raise ContractError("a broadcast retries nothing, and has no topics to audit")
    absent = [kind for kind in (Kind.EVENTS, Kind.READY, Kind.DLQ) if kind not in own]
    if absent:
        raise ContractError(f"the group has no {' and no '.join(absent)} topic; `{hint('topics apply')}` makes them")
    topics = cluster.find_topics(name for topics in own.values() for name in topics)
    return Survey(own, topics, settings.deliver.mode == "relay")


def terms_of(settings: Settings, survey: Survey, known: Known, ask: AuditRequest) -> Terms:
    """Return the terms of the group, without its progress and the offsets of its main topics."""
    return Terms(
        names=settings.names,
        delays=survey.waits,
        dlqs=frozenset(survey.own[Kind.DLQ]),
        known=known,
        slack=ask.slack,
        relay=survey.is_relay,
        in_memory=settings.deliver.order != "none",
        foreign=bool(settings.retry.understand),
        compacted=frozenset(name for name, config in survey.configs.items() if "compact" in config["cleanup.policy"]),
        mains=frozenset(settings.topic_names),
        drains=settings.drains,
        compare=ask.compare,
        in_flight=max(IN_FLIGHT_MS, 2 * settings.deliver.timeout),
    )


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
        self._cluster = Cluster(settings.kafka, CLIENT)
        self._stack = ExitStack()

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def findings(self) -> Iterator[Finding]:
        """Read the topics, then yield all findings."""
        store = self._stack.enter_context(AuditStore())
        terms = self._collect(store)
        total = store.count()
        for facts in store.by_record():
            self.judged_records += 1
            if self.judged_records % TOLD_EVERY == 0:
                self._tell("judging", self.judged_records, total)
            yield from judge(facts, terms)
        for outputs in store.by_record(Table.OUTPUT):
            yield from judge_outputs(outputs, store.facts_of(outputs[0].id), terms)
        self.unknown += [Unknown(f"of {identity} only a part was looked at: it is a flood") for identity in store.cut]

    def _collect(self, store: AuditStore) -> Terms:
        """Read everything, in the order that the module docstring explains. Return the terms to judge by."""
        settings, ask, cluster, began = self._settings, self._ask, self._cluster, now().wall_ms
        survey = survey_of(settings, cluster, there := cluster.topic_names())
        before = self._progress(survey, stable=False)
        service = cluster.progress(settings.names.group, () if survey.is_relay else survey.partitions(Kind.READY))
        reader = self._stack.enter_context(AuditReader(settings.kafka, settings.names.retry_group))
        read = survey.partitions(Kind.LEVEL, Kind.ORDERED, Kind.READY, Kind.DLQ, Kind.EVENTS)
        whole = cluster.spans(read, committed=False)
        first = cluster.spans_since(whole, ask.since, committed=False)
        self._take("reading", reader, store, survey, first, later=False)
        if ask.outputs:
            self._read_outputs(store, there)
        if not reader.stuck:
            ends = cluster.spans(read, committed=False)
            later = {partition: Span(span.end, ends[partition].end) for partition, span in first.items()}
            self._take("reading what came meanwhile", reader, store, survey, later, later=True)
        self._tell("arranging", 0, 0)
        store.arrange()
        mains = self._compare(reader, store, survey) if ask.compare else {}
        after = self._last_progress(survey)
        # Behind the progress: what a reset has moved is noted with it.
        resets = read_present_resets(cluster, settings.names)
        if self.read and not survey.is_relay:
            own = cluster.progress(settings.names.group, survey.partitions(Kind.MAIN))
            self.unknown += position_moved(own)
        horizon = Horizon(whole, first, reader.seen, reader.overtaken, ask.since, began)
        since = known_of(horizon, survey.configs, survey.own[Kind.DLQ])
        self.unknown += unknown_of(horizon, since, survey.retries, before, store, mains, reader.stuck)
        terms = terms_of(settings, survey, Known(since, complete_until(reader)), ask)
        begins = {partition: span.begin for partition, span in mains.items()}
        return replace(terms, before=before, after=after, service=service, begins=begins, resets=resets)

    def _progress(self, survey: Survey, *, stable: bool) -> dict[Number, Progress]:
        """Return the progress of both lanes, and of Spark queries; the service of a relay keeps that of its main topics
        itself."""
        names = self._settings.names
        own = None if survey.is_relay else names.group
        mains = survey.partitions(Kind.MAIN, *(() if survey.is_relay else (Kind.ORDERED,)))
        main = progress_with_queries(self._cluster, names, own, mains, stable=stable)
        retries = progress_with_queries(self._cluster, names, names.retry_group, survey.retries, stable=stable)
        return main | retries

    def _last_progress(self, survey: Survey) -> dict[Number, Progress]:
        try:
            return self._progress(survey, stable=True)
        except BrokerError as fault:
            self.unknown.append(Unknown(f"whether sources are done is not known: {fault}"))
            return {}

    # --- reading -----------------------------------------------------------------------------------------------------

    def _take(
        self,
        what: str,
        reader: AuditReader,
        store: AuditStore,
        survey: Survey,
        spans: Mapping[Number, Span],
        *,
        later: bool,
    ) -> None:
        """Read the spans and keep the facts."""
        kinds = {name: kind for kind, topics in survey.own.items() for name in topics}
        group, sources = self._settings.group, frozenset((*self._settings.topic_names, *survey.waits))
        records = reader.read(spans, report=partial(self._tell, what))
        facts = ((record, fact_in(record, kinds[record.topic], group, sources, later)) for record in records)
        self.read += store.put(fact for record, fact in facts if not only_postponed(record, fact))

    def _read_outputs(self, store: AuditStore, there: Iterable[str]) -> None:
        """Read the outputs up to now: what explains them lies below the ends that are asked for after it.

        With a reader of its own: what cannot be read is unknown, and a transaction of another program that hangs in an
        output topic hides nothing of the group's own topics.
        """
        settings, allowed = self._settings, allowed_outputs_of(self._settings)
        for name in settings.deliver.outputs:
            if name not in there and literal_start(name) == name:
                text = f"{name} of deliver.outputs is not there, or may not be read: its outputs are not known"
                self.unknown.append(Unknown(text))
        names = [] if allowed is None else [name for name in there if allowed.allows(name)]
        if not names:
            return
        try:
            with AuditReader(settings.kafka, settings.names.retry_group) as reader:
                topics = self._cluster.existing(names).values()
                partitions = [partition for topic in topics for partition in topic.all_partitions]
                whole = self._cluster.spans(partitions, committed=False)
                spans = self._cluster.spans_since(whole, self._ask.since, committed=False)
                records = reader.read(spans, report=partial(self._tell, "reading outputs"))
                facts = (output_fact(record, settings.group, settings.topic_names) for record in records)
                self.outputs += store.put(filter(None, facts), Table.OUTPUT)
        except BrokerError as fault:
            self.unknown.append(Unknown(f"the outputs of the service are not known: {fault}"))
            return
        for (topic, number), offset in reader.stuck.items():
            text = "a transaction that does not end holds back outputs"
            self.unknown.append(Unknown(text, (f"{topic}:{number}:{offset}",)))

    def _compare(self, reader: AuditReader, store: AuditStore, survey: Survey) -> dict[Number, Span]:
        """Read the main-topic records that copies and events refer to. Return where the partitions begin and end."""
        there = set(survey.partitions(Kind.MAIN))
        referred = store.want(survey.own.get(Kind.MAIN, {}))
        wanted = {partition: span for partition, span in referred.items() if partition in there}
        marks = self._cluster.spans(wanted, committed=False)
        spans = {
            partition: Span(max(marks[partition].begin, first), min(marks[partition].end, last + 1))
            for partition, (first, last) in wanted.items()
        }
        partitions = tuple(spans)
        for start in range(0, len(partitions), MOST_AT_ONCE):
            some = partitions[start : start + MOST_AT_ONCE]
            offsets = {partition: store.wanted(partition) for partition in some}
            report = partial(self._tell, "comparing with the main topics")
            records = reader.read({partition: spans[partition] for partition in some}, offsets, report)
            self.read += store.put(map(main_fact, records))
        return marks


def position_moved(progress: Mapping[Number, Progress]) -> list[Unknown]:
    """Return that another tool has set positions of main topics, which shows until an instance has committed there."""
    moved = {source: own.next for source, own in progress.items() if not own.ours}
    if not moved:
        return []
    text = "another tool has set the position (position-moved): its records may be delivered again, and counted twice"
    return [Unknown(text, tuple(f"{topic}:{number}:{at}" for (topic, number), at in sorted(moved.items())))]


def complete_until(reader: AuditReader) -> int:
    """Return the epoch ms from which on a record may have companions behind an open transaction."""
    last = [reader.seen[partition].last if partition in reader.seen else 0 for partition in reader.stuck]
    return min(last) - OPEN_MS if last else 2**63
