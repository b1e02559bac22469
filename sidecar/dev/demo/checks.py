"""The rules for one record that compare the topics with what the service saw: nothing lost, each attempt delivered as
it is counted, nothing early, every byte kept (contract 1.1, 2.3, 3.4). Pure.

The topics are compared with each other by the rules of the audit. The rules for records that are retried in place are
in `verify_order.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reconsume.sidecar.dev.demo.lateness import lateness
from reconsume.sidecar.dev.demo.ledger import digest_of
from reconsume.sidecar.dev.demo.record_histories import RecordHistory, Row
from reconsume.topics.events import State

Check = Callable[[RecordHistory, Row], Iterator[str]]

WITHOUT_ANSWER = frozenset({"timeout", "connection-lost", "broken-answer", "lease-expired"})
"""Reasons of attempts that may not have reached the service, or that it may have committed although its answer was
lost."""


def lost(history: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if the record has no end: the service has not taken it, and it is not in the DLQ."""
    if history.committed or history.dead:
        return
    last = history.copies.get(history.retries)
    where = f"its last copy is {last[-1].position}, due {last[-1].due}" if last else "it has no copy"
    yield f"neither taken by the service nor in the DLQ; {where}"


def mistold(history: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if the events do not report the success of a retried record once, or report another success."""
    commits = history.told(State.COMMIT)
    if commits != int(history.retries > 0 and history.committed and not history.dead):
        yield f"{commits} events say COMMIT after {history.retries} retries"


def mistold_by_relay(history: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if an event reports a success. Only the service knows that it took a record."""
    if commits := history.told(State.COMMIT):
        yield f"{commits} events say COMMIT, which only the service can know"


def unmatched(history: RecordHistory, first: Row) -> Iterator[str]:
    """Yield a finding if the sidecar's counts contradict what the service saw."""
    for times in history.deliveries:
        if times > history.retries:
            yield f"retry {times} was delivered, and no copy counts it"
    for times, copies in history.copies.items():
        yield from unmatched_failure(history, times - 1, copies[0].reason)
    yield from unmatched_death(history, first)


def unmatched_death(history: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if the reason in the DLQ contradicts what the service saw."""
    for copy in history.dead:
        yield from unmatched_failure(history, copy.times, copy.reason)


def unmatched_failure(history: RecordHistory, times: int, reason: str) -> Iterator[str]:
    """Yield a finding if attempt `times` + 1 failed by `reason` as a copy says, and the service did not see it fail."""
    made = history.deliveries.get(times, [])
    if reason in WITHOUT_ANSWER:
        return
    if not made:
        yield f"attempt {times + 1} failed by {reason}, and never reached the service"
    elif all(delivery.verdict == "commit" for delivery in made):
        yield f"attempt {times + 1} failed by {reason}, and the service took it"


def changed(history: RecordHistory, first: Row) -> Iterator[str]:
    """Yield a finding if the service was given a value that differs by a byte."""
    digest = digest_of(first.value)
    if any(delivery.digest != digest for made in history.deliveries.values() for delivery in made):
        yield "the service was given another value"


def early(history: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if a retry is delivered before its due time, or before its level's delay is over."""
    for late in lateness(history):
        if late.after_level < 0:
            yield f"the retry that was due at {late.due} came {-late.after_level:.1f} ms early"


Checks = tuple[tuple[str, Check], ...]
CHECKS: Checks = (
    ("lost", lost),
    ("mistold", mistold),
    ("unmatched", unmatched),
    ("changed", changed),
    ("early", early),
)
"""The kinds of findings, and the check that finds each."""
RELAYED: Checks = tuple((kind, mistold_by_relay if check is mistold else check) for kind, check in CHECKS)
"""The same for a service that reads Kafka itself."""
