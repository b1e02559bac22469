"""The rules for one record, each by itself: nothing lost, each attempt counted once, nothing early, every byte kept
(contract §1, §3, §7). Pure.

The rules for records that are retried in place are in `verify_order.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from sidecar.dev.demo.lateness import lateness
from sidecar.dev.demo.ledger import digest_of
from sidecar.dev.demo.record_histories import Copy, RecordHistory, Row
from topics.events import State
from topics.headers import RETRY_TOPIC, RetryState, without_ours
from topics.reasons import reason_class

Check = Callable[[RecordHistory, Row], Iterator[str]]

WITHOUT_ANSWER = frozenset({"timeout", "connection-lost", "broken-answer", "lease-expired"})
"""Reasons of attempts that may not have reached the service, or that it may have committed although its answer was
lost."""


def lost(account: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if the record has no end: the service has not taken it, and it is not in the DLQ."""
    if account.committed or account.dead:
        return
    last = account.copies.get(account.retries)
    where = f"its last copy is {last[-1].row.place}, due {last[-1].life.due_at}" if last else "it has no copy"
    yield f"neither taken by the service nor in the DLQ; {where}"


def miscounted(account: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if retries 1 to k are not each counted once. The DLQ may have the record once, with the
    retries it had."""
    for times in range(1, account.retries + 1):
        if times not in account.copies:
            yield f"retry {times} is missing, though there is a retry {account.retries}"
    if 0 in account.copies:
        yield "it has a copy that counts no retry"
    for times, copies in sorted(account.copies.items()):
        told = account.told(State.WAITING_RETRY, times)
        if told != 1:
            yield f"retry {times} is told of by {told} events"
        if not is_one_way(copies):
            yield f"retry {times} was written twice: {', '.join(copy.row.place for copy in copies)}"
    if len(account.dead) > 1:
        yield f"it is {len(account.dead)} times in the DLQ"
    for copy in account.dead:
        if copy.life.times != account.retries:
            yield f"the DLQ says {copy.life.times} retries, and there were {account.retries}"


def is_one_way(copies: Sequence[Copy]) -> bool:
    """Whether these copies of one retry are one path through levels: one due time, and each written after the
    previous delay."""
    if len({copy.life.due_at for copy in copies}) > 1:
        return False
    return all(after.row.timestamp >= before.row.timestamp + before.wait for before, after in pairwise(copies))


def mistold(account: RecordHistory, first: Row) -> Iterator[str]:
    """Yield a finding if the events do not report the end of a record once, or report success of one that never
    failed."""
    yield from mistold_death(account, first)
    commits = account.told(State.COMMIT)
    if commits != int(account.retries > 0 and account.committed and not account.dead):
        yield f"{commits} events say COMMIT after {account.retries} retries"


def mistold_by_relay(account: RecordHistory, first: Row) -> Iterator[str]:
    """Yield findings like `mistold`. Only the service knows that it took a record, so no event may report it."""
    yield from mistold_death(account, first)
    if commits := account.told(State.COMMIT):
        yield f"{commits} events say COMMIT, which only the service can know"


def mistold_death(account: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if there is not one event for each time that the record is in the DLQ."""
    dead = account.told(State.DLQ)
    if dead != len(account.dead):
        yield f"{dead} events say DLQ, and it is there {len(account.dead)} times"


def unmatched(account: RecordHistory, first: Row) -> Iterator[str]:
    """Yield a finding if the sidecar's counts contradict what the service saw."""
    for times in account.deliveries:
        if times > account.retries:
            yield f"retry {times} was delivered, and no copy counts it"
    for times, copies in account.copies.items():
        yield from unmatched_failure(account, times - 1, copies[0].life)
    yield from unmatched_death(account, first)


def unmatched_death(account: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if the reason in the DLQ contradicts what the service saw."""
    for copy in account.dead:
        yield from unmatched_failure(account, copy.life.times, copy.life)


def unmatched_failure(account: RecordHistory, times: int, life: RetryState) -> Iterator[str]:
    """Yield a finding if attempt `times` + 1 failed according to `life`, and the service did not see it fail."""
    reason = reason_class(life.reason)
    made = account.deliveries.get(times, [])
    if reason in WITHOUT_ANSWER:
        return
    if not made:
        yield f"attempt {times + 1} failed by {reason}, and never reached the service"
    elif all(delivery.verdict == "commit" for delivery in made):
        yield f"attempt {times + 1} failed by {reason}, and the service took it"


def changed(account: RecordHistory, first: Row) -> Iterator[str]:
    """Yield a finding if key, value or the record's own headers differ by a byte, in any copy or delivery."""
    own = without_ours(list(first.headers))
    for copy in account.written():
        same = {
            "key": copy.row.key == first.key,
            "value": copy.row.value == first.value,
            "headers": without_ours(list(copy.row.headers)) == own,
            "REAL_TOPIC": copy.life.topic == first.topic,
            "RETRY_REAL_TIMESTAMP": copy.life.timestamp == first.timestamp,
            "RETRY_TOPIC": (RETRY_TOPIC, copy.row.topic.encode()) in copy.row.headers,
        }
        if wrong := [name for name, is_same in same.items() if not is_same]:
            yield f"{copy.row.place} has another {', '.join(wrong)}"
    digest = digest_of(first.value)
    if any(delivery.digest != digest for made in account.deliveries.values() for delivery in made):
        yield "the service was given another value"


def early(account: RecordHistory, _first: Row) -> Iterator[str]:
    """Yield a finding if a retry is delivered before its due time, or before its level's delay is over."""
    for late in lateness(account):
        if late.after_level < 0:
            yield f"the retry that was due at {late.due} came {-late.after_level:.1f} ms early"


Checks = tuple[tuple[str, Check], ...]
CHECKS: Checks = (
    ("lost", lost),
    ("miscounted", miscounted),
    ("mistold", mistold),
    ("unmatched", unmatched),
    ("changed", changed),
    ("early", early),
)
"""The kinds of findings, and the check that finds each."""
RELAYED: Checks = tuple((kind, mistold_by_relay if check is mistold else check) for kind, check in CHECKS)
"""The same for a service that reads Kafka itself."""
