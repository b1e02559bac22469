"""The check of a group that is ordered by key: each record in its turn, and retried in place (contract 5.1). Pure.

Retries in place write no copy and no event. Only the service's ledger shows them, and the DLQ shows their end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf

from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.dev.demo.checks import Checks, changed, lost, mistold, unmatched_death
from reconsume.sidecar.dev.demo.record_histories import Finding, RecordHistory, Row
from reconsume.topics.events import State

CLOCK_MS = 1.0
"""ms by which an interval may seem too short: one clock measures it in the sidecar, another in the service."""


def in_place_checks(rules: InPlace) -> Checks:
    """Return the checks that every record must pass."""
    return (
        ("lost", lost),
        ("miscounted", lambda history, first: miscounted(history, rules)),
        ("mistold", mistold),
        ("unmatched", unmatched_death),
        ("changed", changed),
        ("early", lambda history, first: early(history, rules)),
    )


def miscounted(history: RecordHistory, rules: InPlace) -> Iterator[str]:
    """Yield a finding if a retry has a copy or an event, if there are too many, or if the DLQ says fewer."""
    for times, copies in sorted(history.copies.items()):
        yield f"retry {times} was written to {copies[0].position}, and must be made in place"
    if told := history.told(State.WAITING_RETRY):
        yield f"{told} events tell of retries, which are made in place"
    last = max(history.deliveries, default=0)
    if rules.max_times is not None and last > rules.max_times:
        yield f"retry {last} was made, and {rules.max_times} are allowed"
    for copy in history.dead:
        if copy.times < last:
            yield f"the DLQ says {copy.times} retries, and retry {last} was made"
        if copy.times != rules.max_times and not was_refused(history, copy.times):
            yield f"it is in the DLQ after {copy.times} retries, and the service did not refuse it"


def was_refused(history: RecordHistory, times: int) -> bool:
    """Whether the service itself requested the DLQ, by its answer to attempt `times` + 1."""
    return any(delivery.verdict == "dead-letter" for delivery in history.deliveries.get(times, []))


def early(history: RecordHistory, rules: InPlace) -> Iterator[str]:
    """Yield a finding if two attempts are closer than the interval."""
    for times, after in pairwise(sorted(history.deliveries)):
        made, again = history.deliveries[times], history.deliveries[after]
        waited = min(one.at for one in again) - min(one.at if one.ended is None else one.ended for one in made)
        if waited < rules.interval_ms - CLOCK_MS:
            interval = f"the interval is {rules.interval_ms} ms"
            yield f"retry {after} came {waited:.1f} ms after retry {times} failed; {interval}"


Line = tuple[str, int, bytes]


def lines_of(histories: Iterable[RecordHistory]) -> dict[Line, list[RecordHistory]]:
    """Return the records that have an order to keep, in that order: one line per partition and key. A null key has
    none."""
    lines: dict[Line, list[RecordHistory]] = defaultdict(list)
    known = [(history, history.first) for history in histories if history.first is not None]
    for history, first in sorted(known, key=lambda pair: place_of(pair[1])):
        if first.key is not None:
            lines[first.topic, first.partition, first.key].append(history)
    return lines


def place_of(row: Row) -> tuple[str, int, int]:
    """Return topic, partition and offset."""
    return row.topic, row.partition, row.offset


def in_line(histories: Iterable[RecordHistory]) -> int:
    """Return the number of records that shared a line with others."""
    return sum(len(line) for line in lines_of(histories).values() if len(line) > 1)


def disorder(histories: Iterable[RecordHistory]) -> Iterator[Finding]:
    """Yield a finding if a record is delivered before an earlier one of its line has been taken or dead-lettered."""
    for line in lines_of(histories).values():
        last, until = "", -inf
        for history in line:
            came = first_delivery(history)
            if came < until:
                when = f"{until - came:.1f} ms before {last} had ended" if until < inf else f"and {last} never ended"
                yield Finding("disorder", history.id, f"it was delivered {when}, which stands before it")
            if (ended := ended_at(history)) > until:
                last, until = history.id, ended


def first_delivery(history: RecordHistory) -> float:
    """Return the time when it first reached the service, epoch ms; infinity if it never did."""
    return min((one.at for made in history.deliveries.values() for one in made), default=inf)


def ended_at(history: RecordHistory) -> float:
    """Return the time when it was first taken or written to the DLQ, epoch ms; infinity if it never was."""
    taken = [one.ended for made in history.deliveries.values() for one in made if one.verdict == "commit"]
    dead = [float(copy.at) for copy in history.dead]
    return min([*(at for at in taken if at is not None), *dead], default=inf)
