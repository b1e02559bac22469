"""The metrics (contract 12.10), read at scrape time from the plain counts that the core keeps.

Each series states the group itself, so that no scrape has to guess it from the names of pods; only
`reconsume_build_info`, about the process, does not. Only transactions are counted here. No code in the path of a
record knows Prometheus. Labels come only from the configuration and from closed families, never from ids, keys,
offsets or a service's answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.facts import LaneFacts
from reconsume.sidecar.core.outcome import OUTCOME_NAMES
from reconsume.sidecar.core.pace.pace import Cause, State
from reconsume.sidecar.core.reasons import NotDelivered, NotFetched, Reason
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.observability.metric_builders import Labels, added, counter, gauge, histogram, singly
from reconsume.sidecar.observability.metric_sources import Sources
from reconsume.sidecar.release import Release

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TRANSACTION_RESULTS = ("committed", "aborted", "unknown", "refused", "fenced")
ODD_KINDS = (
    "header",
    "unknown-word",
    "not-json",
    "encoded",
    "too-long",
    "unknown-id",
    "no-id",
    "delay",
    "expires",
    "html",
    "accepted",
)
"""The kinds of `reconsume_odd_verdicts_total`; each starts at 0. A test compares them with those of the push client."""
REASONS = frozenset(
    {
        "timeout",
        "broken-answer",
        "connection-lost",
        "unreadable-verdict",
        "missing-verdict",
        "retry-asked",
        "lease-expired",
        "released",
        "nacked",
        "postponed",
        "dead-letter-asked",
        "bad-header",
        "headers-unreadable",
        "crashed-service",
        "unknown-topic",
    }
)
_HTTP_REASON = re.compile(r"http-[1-9]([0-9]{2}|xx)")


def scraper(*groups: Sources) -> Callable[[], bytes]:
    """Return a function that gives the present metrics of these groups as Prometheus text. It must be called on the
    event loop."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector([_GroupFamilies(sources) for sources in groups], groups[0].release))
    return lambda: generate_latest(registry)


def bounded_reason(reason: str) -> str:
    """Return the reason's class as a label: one of our own reasons, `http-NNN`, or `other`."""
    return reason if reason in REASONS or _HTTP_REASON.fullmatch(reason) is not None else "other"


class _Collector(Collector):
    """Read the sources of all groups at each scrape. A family has the samples of all of them."""

    def __init__(self, groups: Sequence[_GroupFamilies], release: Release) -> None:
        self._groups, self._release = groups, release

    def describe(self) -> Iterable[Metric]:
        """Return nothing: without this, the registry would collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for families in zip(*(group.families() for group in self._groups), strict=True):
            families[0].samples = [sample for family in families for sample in family.samples]
            yield families[0]
        yield gauge("build_info", "What runs: always 1.", self._release._fields, {tuple(self._release): 1})


class _GroupFamilies:
    """The families of one group, always the same ones. They are in the order of docs/metrics.md."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lanes = [source.lane for source in sources.lanes]

    def families(self) -> Iterator[Metric]:
        """Yield what is known of the group, with its name in each sample."""
        for family in self._families():
            for sample in family.samples:
                sample.labels["group"] = self._sources.group
            yield family

    def _families(self) -> Iterator[Metric]:
        sources, lanes, meter = self._sources, self._lanes, self._sources.transactions
        moment = sources.now()
        facts = [lane.shown.facts(moment) for lane in lanes]
        waits = {
            partition: wait
            for source, known in zip(sources.lanes, facts, strict=True)
            for partition, wait in source.ages.waits(known, moment).items()
        }
        yield self._deliveries()
        yield histogram("delivery_duration_seconds", "How long deliveries took.", [sources.deliveries])
        yield gauge("in_flight", "Deliveries that are out.", (), {(): sources.dispatcher.in_flight})
        retries = added((lane.counters.retries for lane in lanes), {})
        yield counter("retries_scheduled", "Retries written to Kafka.", ("topic", "level"), retries)
        yield self._dead_letters()
        yield gauge("buffered_records", "Records that wait in memory.", ("level",), self._buffered(facts))
        yield gauge(
            "overdue_seconds", "How late the most overdue waiting retry is.", ("level",), self._overdue(facts, waits)
        )
        late = [lane.counters.lateness for lane in lanes]
        yield histogram("lateness_seconds", "How late retries were delivered.", late, unit=1000)
        results = added([dict(meter.results)], dict.fromkeys(TRANSACTION_RESULTS, 0))
        yield counter("transactions", "Tries to commit a batch, by result.", ("result",), singly(results))
        yield histogram("transaction_duration_seconds", "How long transactions took.", [meter.durations])
        yield gauge("progress_lag", "Offsets not done up to the log's end.", ("topic", "partition"), self._lag(facts))
        to_deliver = {
            (source.topic, str(source.number)): one.reset_left.records
            for known in facts
            for source, one in known.partitions.items()
            if one.reset_left is not None
        }
        text = "Records that a reset has to deliver again, at most; none without."
        yield gauge("reset_left", text, ("topic", "partition"), to_deliver)
        yield gauge(
            "undelivered_seconds",
            "For how long the oldest record has waited that could be delivered.",
            ("topic", "partition"),
            {(topic, str(number)): wait.waited_ms / 1000 for (topic, number), wait in waits.items()},
        )
        reasons = _by_reason(NotDelivered, (wait.reason for wait in waits.values()))
        text = "Partitions whose oldest waiting record is not delivered, by why."
        yield gauge("not_delivered_partitions", text, ("reason",), singly(reasons))
        reasons = _by_reason(NotFetched, (wait.not_fetched for wait in waits.values()))
        yield gauge("not_fetched_partitions", "Partitions that are not fetched, by why.", ("reason",), singly(reasons))
        released = {
            (source.topic, str(source.number)): max(0, moment.steady_ms - since_ms) / 1000
            for known in facts
            for source, since_ms in known.released_since.items()
        }
        text = "For how long a partition that a rebalance takes away has waited for its deliveries."
        yield gauge("hand_over_seconds", text, ("topic", "partition"), released)
        yield from self._keys(facts)
        yield from self._pace()
        yield from self._holds(facts)
        yield from self._rare(facts)
        identity = {"version": sources.release.version, "mode": sources.mode, **dict(sources.labels)}
        text = "The group, and who it belongs to: always 1."
        yield gauge("info", text, tuple(identity), {tuple(identity.values()): 1})

    def _deliveries(self) -> Metric:
        zeros = {(topic, "main", outcome): 0 for topic in self._sources.topics for outcome in OUTCOME_NAMES}
        counts = added((lane.counters.deliveries for lane in self._lanes), zeros)
        return counter("deliveries", "Deliveries that have ended.", ("topic", "level", "outcome"), counts)

    def _dead_letters(self) -> Metric:
        counts: Counter[Labels] = Counter()
        for lane in self._lanes:
            for (topic, reason), count in lane.counters.dead_letters.items():
                counts[topic, bounded_reason(reason)] += count
        return counter("dead_lettered", "Records written to the DLQ.", ("topic", "reason"), counts)

    def _lag(self, facts: Sequence[LaneFacts]) -> dict[Labels, float]:
        """Return the offsets of each partition that are not done.

        They are an upper bound on records: transaction markers count as offsets too.
        """
        lags: dict[Labels, float] = {}
        for source, known in zip(self._sources.lanes, facts, strict=True):
            ends = source.ends()
            for partition, facts_of in known.partitions.items():
                if partition in ends:
                    lags[partition.topic, str(partition.number)] = max(0, ends[partition] - facts_of.first)
        return lags

    def _buffered(self, facts: Sequence[LaneFacts]) -> dict[Labels, float]:
        """Return, by level, how many fetched records wait.

        They wait for their time, for a place in flight, or for a topic that takes their failures.
        """
        counts = dict.fromkeys(("main", *self._sources.levels), 0)
        for partition in chain.from_iterable(known.partitions.values() for known in facts):
            counts[partition.kind.level] = counts.get(partition.kind.level, 0) + partition.counts.waiting
        return singly(counts)

    def _overdue(self, facts: Sequence[LaneFacts], waits: Mapping[Partition, Wait]) -> dict[Labels, float]:
        """Return, by level, for how long its oldest record has waited in the owned partitions."""
        worst = dict.fromkeys(self._sources.levels, 0.0)
        for source, partition in (item for known in facts for item in known.partitions.items()):
            if not partition.is_main:
                level = partition.kind.level
                worst[level] = max(worst.get(level, 0.0), waits[source].waited_ms / 1000)
        return singly(worst)

    def _keys(self, facts: Sequence[LaneFacts]) -> Iterator[Metric]:
        """Yield what waits in the queues of ordered records, by main topic; no samples without queues."""
        queued = any(lane.queues is not None for lane in self._lanes)
        known_topics = self._sources.topics if queued else ()
        blocked, behind, parked, fill = (dict.fromkeys(known_topics, 0.0) for _ in range(4))
        for (topic, _), queue in (item for known in facts for item in known.queues.items()):
            blocked[topic] = blocked.get(topic, 0) + queue.blocked_keys
            behind[topic] = behind.get(topic, 0) + queue.behind_records
            parked[topic] = parked.get(topic, 0) + queue.parked_keys
            fill[topic] = max(fill.get(topic, 0), queue.fill)
        for partition in (partition for known in facts for partition in known.partitions.values()):
            if partition.counts.blocking:
                blocked[partition.source.topic] = blocked.get(partition.source.topic, 0) + partition.counts.blocking
        text = "Keys of which a record waits in the queue topic, or has failed in place for 10 s or three times."
        yield gauge("blocked_keys", text, ("topic",), singly(blocked))
        yield gauge("behind_records", "Records that wait behind one of their key.", ("topic",), singly(behind))
        yield gauge("parked_keys", "Keys whose first record waits for a person.", ("topic",), singly(parked))
        yield gauge("queue_fill_ratio", "Of what may wait in a queue, the fullest one.", ("topic",), singly(fill))

    def _pace(self) -> Iterator[Metric]:
        pace = self._sources.dispatcher.pace
        present = {str(state): int(state is pace.state.shown) for state in State if state is state.shown}
        yield gauge("pace", "1 for the present state.", ("state",), singly(present))
        outage = {str(cause): int(cause is pace.cause) for cause in Cause}
        yield gauge("outage", "1 while there is an outage of this cause.", ("cause",), singly(outage))
        entered = {str(state): pace.changes[state] for state in State}
        yield counter(
            "pace_changes",
            "How often each state was entered. An outage counts once, each of its probes as probing.",
            ("state",),
            singly(entered),
        )
        in_flight = self._sources.dispatcher.concurrency
        yield gauge("concurrency_limit", "Requests that may be in flight at most.", (), {(): in_flight.limit})
        limits = self._sources.dispatcher.limit_facts()
        waits = {(facts.limit, facts.topic or ""): int(facts.waits) for facts in limits}
        yield gauge("limit_waiting", "1 while records wait for a limit.", ("limit", "topic"), waits)

    def _holds(self, facts: Sequence[LaneFacts]) -> Iterator[Metric]:
        since, now_ms = self._sources.holds_since(), self._sources.now().wall_ms
        oldest_s = max(0, now_ms - min(since, default=now_ms)) / 1000
        yield gauge("holds", "Holds of an operator that this instance obeys.", (), {(): len(since)})
        yield gauge("oldest_hold_seconds", "For how long the oldest of them has been in force.", (), {(): oldest_s})
        on_hold = dict.fromkeys(("main", *self._sources.levels), 0)
        for partition in chain.from_iterable(known.partitions.values() for known in facts):
            level = partition.kind.level
            on_hold[level] = on_hold.get(level, 0) + partition.counts.on_hold
        yield gauge(
            "on_hold_records", "Records that were read and that a hold keeps back.", ("level",), singly(on_hold)
        )

    def _rare(self, facts: Sequence[LaneFacts]) -> Iterator[Metric]:
        sources, all_counters = self._sources.lanes, [lane.counters for lane in self._lanes]
        # The consumers' threads write these. Copying a dict is one step under the interpreter's lock.
        rebalances = added((dict(source.rebalances) for source in sources), {"assigned": 0, "revoked": 0, "lost": 0})
        yield counter("rebalances", "Rebalances.", ("kind",), singly(rebalances))
        replaced = added((dict(source.replaced) for source in sources), {"overtaken": 0, "unknown": 0, "cut-off": 0})
        yield counter("clients_replaced", "Consumers' clients that were of no more use.", ("kind",), singly(replaced))
        restarts = singly(self._sources.restarts())
        yield counter("restarts_in_place", "Restarts of the process in place.", ("reason",), restarts)
        fenced = sum(counters.fenced_answers for counters in all_counters) + self._sources.late_verdicts()
        yield counter("fenced_answers", "Answers that came too late to count.", (), {(): fenced})
        lost = added((known.records_lost for known in facts), dict.fromkeys(self._sources.topics, 0))
        yield counter("records_lost", "Records that were gone before they were read.", ("topic",), singly(lost))
        unread = sum(source.unread_progress() for source in sources)
        yield counter("unread_progress", "Partitions taken up without their done records.", (), {(): unread})
        misplaced = sum(source.misplaced_progress() for source in sources)
        yield counter("misplaced_progress", "Partitions whose progress was made elsewhere.", (), {(): misplaced})
        bad = sum(counters.bad_headers for counters in all_counters)
        yield counter("bad_headers", "Records whose headers are broken or unreadable.", (), {(): bad})
        odd = sum(counters.odd_requests for counters in all_counters)
        yield counter("odd_requests", "Retries that asked for a delay or level out of bounds.", (), {(): odd})
        kinds = dict.fromkeys(ODD_KINDS, 0) | dict(self._sources.odd_verdicts())
        yield counter("odd_verdicts", "What looks like a verdict and is none.", ("kind",), singly(kinds))
        deaths = self._sources.service_deaths()
        yield counter("service_deaths", "Deaths of the service while it had records.", (), {(): deaths})
        passed = added((counters.passed_over for counters in all_counters), dict.fromkeys(self._sources.topics, 0))
        yield counter("passed_over", "Records that the group's tags do not ask for.", ("topic",), singly(passed))
        refused = sum(one.counts.refused for known in facts for one in known.partitions.values())
        yield gauge("refused_records", "Settled records whose copy or event Kafka refuses.", (), {(): refused})
        hops = sum(counters.hops for counters in all_counters)
        yield counter("hops", "Records copied on to another level, still not due.", (), {(): hops})
        forwarded = sum(counters.forwarded for counters in all_counters)
        bad_policies = self._sources.bad_policy_records()
        yield counter("bad_policy_records", "Records of the policy topic passed over.", (), {(): bad_policies})
        differ = int(self._sources.instances_differ())
        yield gauge(
            "instances_differ",
            "1 while live instances are configured differently.",
            (),
            {(): differ},
        )
        removed = self._sources.removed_levels()
        yield gauge("removed_levels", "Levels outside the configuration that hold retries.", (), {(): removed})
        lag, bad_rows = (
            self._sources.view_lag(),
            {"view": 0, "events": 0, **self._sources.bad_view_records()},
        )
        yield gauge("view_lag_seconds", "How old the local copy of the view is.", (), {} if lag is None else {(): lag})
        yield counter(
            "bad_view_records", "Records of the view, sums and events passed over.", ("kind",), singly(bad_rows)
        )
        yield counter("forwarded", "Due records moved to the ready topic (relay).", (), {(): forwarded})
        waiting = self._sources.waiting()
        yield gauge("waiting_seconds", "How long it waits for its service, outside the group.", (), {(): waiting})
        errors = {"connection": 0, "sidecar": 0, **self._sources.loop_errors()}
        yield counter("loop_errors", "Uncaught exceptions on the event loop.", ("scope",), singly(errors))


def _by_reason(reasons: type[Reason], shown: Iterable[Reason | None]) -> dict[str, int]:
    """Count the reasons of partitions; those that none has are 0."""
    return {**{str(reason): 0 for reason in reasons}, **Counter(str(reason) for reason in shown if reason is not None)}
