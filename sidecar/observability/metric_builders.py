"""Turn plain counts into Prometheus families. Only their form is here; `metrics.py` decides what is counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from reconsume.sidecar.core.counters import Histogram

PREFIX = "reconsume_"
K = TypeVar("K", bound=Hashable)
Labels = tuple[str, ...]
L = TypeVar("L", bound=Labels)


def counter(name: str, text: str, labels: Sequence[str], counts: Mapping[L, float]) -> Metric:
    """Return a counter. The exposition adds `_total` to its name."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def gauge(name: str, text: str, labels: Sequence[str], amounts: Mapping[L, float]) -> Metric:
    """Return a gauge."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, amount in amounts.items():
        family.add_metric(values, amount)
    return family


def histogram(name: str, text: str, histograms: Sequence[Histogram], unit: int = 1) -> Metric:
    """Return a histogram in seconds of distributions with equal bounds.

    `unit`: how many units of the distributions make a second.
    """
    family = HistogramMetricFamily(PREFIX + name, text)
    edges = [floatToGoString(bound) for bound in (*(bound / unit for bound in histograms[0].bounds), inf)]  # type: ignore[no-untyped-call]
    counts = accumulate(map(sum, zip(*(one.counts for one in histograms), strict=True)))
    family.add_metric([], list(zip(edges, counts, strict=True)), sum(one.total for one in histograms) / unit)
    return family


def added(counts_of: Iterable[Mapping[K, int]], start: Mapping[K, int]) -> dict[K, int]:
    """Return the sums of counts by key, beginning with `start`."""
    sums = dict(start)
    for counts in counts_of:
        for key, count in counts.items():
            sums[key] = sums.get(key, 0) + count
    return sums


def singly(counts: Mapping[str, float]) -> dict[Labels, float]:
    """Return counts by the value of one label as counts by labels."""
    return {(value,): count for value, count in counts.items()}
