"""The Prometheus metrics of the queries of a process, by the names of the sidecar's, with a label `query`.

The alerts and the dashboard in `deploy/` read the same names and labels. Only the ages are without labels: a batch has
one. One server serves an address for all queries of the process, and lives as long as the process.

A batch whose copies were all written by a try before counts as deliveries alone, because that try has counted the
copies.

`undelivered_seconds` and `overdue_seconds` are those of the oldest record of the last batch, as it was read, or the
time since the present batch began, whichever is greater: so a batch that gets no further is seen. GAP after a batch
nothing waits, unless the next one has begun. That a query has ended is seen by its absence.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reconsume.spark.consumer.handling import ODD_KINDS, OTHER, level_of
from reconsume.spark.consumer.rules import Rules
from reconsume.topics.durations import render_duration

if TYPE_CHECKING:
    from reconsume.spark.consumer.foreach import Counts
    from reconsume.spark.consumer.workers import Tally

GAP = 5.0
"""Seconds after a batch in which the next one may begin without a sign that nothing waits."""
COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "deliveries": ("Deliveries that have ended.", ("topic", "level", "outcome")),
    "retries_scheduled": ("Retries written to Kafka.", ("topic", "level")),
    "dead_lettered": ("Records written to the DLQ.", ("topic", "reason")),
    "hops": ("Records copied on to another level, still not due, or on hold.", ()),
    "passed_over": ("Records that the group's tags do not ask for.", ("topic",)),
    "bad_headers": ("Records whose headers are broken or unreadable.", ()),
    "odd_verdicts": ("What looks like a verdict and is none.", ("kind",)),
}
"""The text and the own labels of each counter."""
LABELS = ("group", "query")
UNDELIVERED = "For how long the oldest record has waited that could be delivered."
OVERDUE = "How late the most overdue waiting retry is."
HANDLED = ("commit", "retry", "dead_letter")
"""The outcomes of deliveries."""

_LOCK = threading.Lock()
_SERVED: dict[str, Queries] = {}
"""What is served, by the address that was given."""


class QueryMetrics:
    """The metrics of one query. The driver's thread writes, and the server's threads read."""

    def __init__(self, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._rules = rules
        self.counts: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in COUNTERS}
        """The counts by the values of the own labels. Those that are known begin with 0."""
        for topic in rules.topics:
            self.counts["deliveries"].update({(topic, "main", outcome): 0 for outcome in HANDLED})
            self.counts["retries_scheduled"].update({(topic, render_duration(delay)): 0 for delay in rules.delays})
            self.counts["dead_lettered"][topic, OTHER] = self.counts["passed_over"][topic,] = 0
        self.counts["odd_verdicts"].update({(kind,): 0 for kind in ODD_KINDS})
        self.counts["hops"][()] = self.counts["bad_headers"][()] = 0
        self._began: float | None = None
        """When the present batch began; None between two batches."""
        self._ended = float("-inf")
        self._waited, self._late = 0.0, 0.0
        """Of the last batch, in seconds."""

    def begins(self) -> None:
        """Note that a batch begins."""
        self._began = self._clock()

    def took(self, counts: Counts, tallies: Iterable[Tally]) -> None:
        """Count a batch that has ended."""
        is_repeated = counts.repeated > 0 and not counts.writes
        for tally in tallies:
            level = level_of(tally.topic, self._rules)
            for (outcome, topic, detail), number in tally.outcomes.items():
                if outcome in HANDLED:
                    self.counts["deliveries"][topic, level, outcome] += number
                if not is_repeated:
                    self._count(outcome, topic, detail, number)
        self.counts["odd_verdicts"].update({(kind,): number for kind, number in counts.odd_kinds.items()})
        self._waited, self._late = counts.waited_ms / 1000, counts.late_ms / 1000
        self._began, self._ended = None, self._clock()

    def _count(self, outcome: str, topic: str, detail: str, number: int) -> None:
        match outcome:
            case "retry":
                self.counts["retries_scheduled"][topic, detail] += number
            case "dead_letter":
                self.counts["dead_lettered"][topic, detail] += number
            case "refused":
                self.counts["dead_lettered"][topic, detail] += number
                self.counts["bad_headers"][()] += number
            case "hop":
                self.counts["hops"][()] += number
            case "passed_over":
                self.counts["passed_over"][topic,] += number

    def ages(self) -> tuple[float, float]:
        """Return for how long the oldest record has waited, and how late the latest retry is, in seconds."""
        began, since = self._began, 0.0 if self._began is None else self._clock() - self._began
        is_over = began is None and self._clock() - self._ended > GAP
        waited, late = (0.0, 0.0) if is_over else (self._waited, self._late)
        return max(waited, since), max(late, since if late else 0.0)


class Queries(Collector):
    """The queries of one address, by group and name."""

    def __init__(self) -> None:
        self.port = 0
        self._queries: dict[tuple[str, str], QueryMetrics] = {}

    def of(self, rules: Rules) -> QueryMetrics:
        """Return the metrics of a query; a query that is started again goes on with its own."""
        return self._queries.setdefault((rules.names.group, rules.name), QueryMetrics(rules))

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each name, with the samples of all queries."""
        queries = list(self._queries.items())
        for name, (text, labels) in COUNTERS.items():
            counter = CounterMetricFamily(f"reconsume_{name}", text, labels=[*LABELS, *labels])
            for query, metrics in queries:
                for values, count in list(metrics.counts[name].items()):  # the driver may add one meanwhile
                    counter.add_metric([*query, *values], count)
            yield counter
        info = GaugeMetricFamily("reconsume_info", "The query: always 1.", labels=[*LABELS, "version"])
        waited = GaugeMetricFamily("reconsume_undelivered_seconds", UNDELIVERED, labels=LABELS)
        late = GaugeMetricFamily("reconsume_overdue_seconds", OVERDUE, labels=LABELS)
        for query, metrics in queries:
            info.add_metric([*query, _version()], 1)
            for family, age in zip((waited, late), metrics.ages(), strict=True):
                family.add_metric(query, age)
        yield from (info, waited, late)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry would collect once to learn the names."""
        return ()


def metrics_at(address: str, rules: Rules) -> QueryMetrics:
    """Return the metrics of a query, and serve them at an address, `host:port`, for as long as the process lives.

    All queries of a process that name one address share its server. Raises ValueError if the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"metrics: must be host:port, like 127.0.0.1:9405, and it is {address[:60]}")
    with _LOCK:
        queries = _SERVED.get(address)
        if queries is None:
            queries = Queries()
            registry = CollectorRegistry(auto_describe=False)
            registry.register(queries)
            try:
                server, _ = start_http_server(int(port), host.strip("[]"), registry)
            except OSError as error:
                raise ValueError(f"metrics: cannot listen on {address}: {error.strerror or error}") from None
            queries.port = server.server_port
            _SERVED[address] = queries
    return queries.of(rules)


def _version() -> str:
    try:
        return version("reconsume")
    except PackageNotFoundError:  # from an archive for a cluster
        return "unknown"
