"""The Prometheus metrics of the queries of a process, by the names of the sidecar's, with a label `query`.

The alerts and the dashboard in `deploy/` read the same names. What they lack here are the labels `topic`, `level` and
`reason`: a batch is counted on the workers, and only sums reach the driver. One server serves an address for all
queries of the process, and lives as long as the process.

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

from reconsume.spark.consumer.handling import ODD_KINDS
from reconsume.spark.consumer.rules import Rules

if TYPE_CHECKING:
    from reconsume.spark.consumer.foreach import Counts

GAP = 5.0
"""Seconds after a batch in which the next one may begin without a sign that nothing waits."""
COUNTERS: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    # The name, its text, and the fields of Counts that it sums by the value of its label.
    "retries_scheduled": ("Retries written to Kafka.", "", {"": ("retry",)}),
    "dead_lettered": ("Records written to the DLQ.", "", {"": ("dead_letter", "refused")}),
    "hops": ("Records copied on to another level, still not due, or on hold.", "", {"": ("hop",)}),
    "passed_over": ("Records that the group's tags do not ask for.", "", {"": ("passed_over",)}),
    "bad_headers": ("Records whose headers are broken or unreadable.", "", {"": ("refused",)}),
    "deliveries": (
        "Deliveries that have ended.",
        "outcome",
        {"commit": ("commit",), "retry": ("retry",), "dead_letter": ("dead_letter",)},
    ),
}
FIELDS = frozenset(name for _, _, sums in COUNTERS.values() for names in sums.values() for name in names)

_LOCK = threading.Lock()
_SERVED: dict[str, Queries] = {}
"""What is served, by the address that was given."""


class QueryMetrics:
    """The metrics of one query. The driver's thread writes, and the server's threads read."""

    def __init__(self, rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._labels = {"group": rules.names.group, "query": rules.name}
        self._clock = clock
        self._sums: Counter[str] = Counter()
        self._odd: Counter[str] = Counter(dict.fromkeys(ODD_KINDS, 0))
        self._began: float | None = None
        """When the present batch began; None between two batches."""
        self._ended = float("-inf")
        self._waited, self._late = 0.0, 0.0
        """Of the last batch, in seconds."""

    def begins(self) -> None:
        """Note that a batch begins."""
        self._began = self._clock()

    def took(self, counts: Counts) -> None:
        """Count a batch that has ended."""
        self._sums.update({name: getattr(counts, name) for name in FIELDS})
        self._odd.update(counts.odd_kinds)
        self._waited, self._late = counts.waited_ms / 1000, counts.late_ms / 1000
        self._began, self._ended = None, self._clock()

    def families(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield self._gauge("info", "The query: always 1.", 1, version=_version())
        for name, (text, label, sums) in COUNTERS.items():
            yield self._counter(name, text, label, {value: self._sum(names) for value, names in sums.items()})
        yield self._counter("odd_verdicts", "What looks like a verdict and is none.", "kind", dict(self._odd))
        began, since = self._began, 0.0 if self._began is None else self._clock() - self._began
        is_over = began is None and self._clock() - self._ended > GAP
        ages = (0.0, 0.0) if is_over else (self._waited, self._late)
        text = "For how long the oldest record has waited that could be delivered."
        yield self._gauge("undelivered_seconds", text, max(ages[0], since))
        text = "How late the most overdue waiting retry is."
        yield self._gauge("overdue_seconds", text, max(ages[1], since if ages[1] else 0.0))

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self._sums[name] for name in names)

    def _counter(self, name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
        labels = [*self._labels, *([label] if label else [])]
        family = CounterMetricFamily(f"reconsume_{name}", text, labels=labels)
        for value, count in counts.items():
            family.add_metric([*self._labels.values(), *([value] if label else [])], count)
        return family

    def _gauge(self, name: str, text: str, amount: float, **more: str) -> Metric:
        labels = {**self._labels, **more}
        family = GaugeMetricFamily(f"reconsume_{name}", text, labels=list(labels))
        family.add_metric(list(labels.values()), amount)
        return family


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
        families: dict[str, Metric] = {}
        for query in list(self._queries.values()):
            for family in query.families():
                families.setdefault(family.name, family)
                if families[family.name] is not family:
                    families[family.name].samples.extend(family.samples)
        yield from families.values()

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
