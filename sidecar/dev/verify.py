"""The check: nothing lost, each attempt counted once, nothing early, every byte kept (contract §1, §3, §7).

Pure over rows: full dumps of the topics (read_committed) and the service's ledger in, a frozen Report out. It trusts
neither side: what the topics say is held against what the service saw. A duplicate delivery is no fault, because
delivery is at least once; it is counted. Redriven records are not judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from sidecar.dev.accounts import Account, Books, Copy, Finding, Row, open_books
from sidecar.dev.ledger import Delivery, Outage, digest_of
from topics.events import State
from topics.headers import RETRY_TOPIC, Life, reason_class, without_ours
from topics.names import Names

WITHOUT_ANSWER = frozenset({"timeout", "connection-lost", "broken-answer"})
"""Reasons of attempts that the service may not have seen, or may have committed without being heard."""


class Spread(msgspec.Struct, frozen=True):
    """How late retries came, in ms, and how many were measured."""

    count: int = 0
    p50: float = 0
    p99: float = 0
    worst: float = 0


class Report(msgspec.Struct, frozen=True):
    """What was found. `deliveries[n]` is how many were made of attempt n + 1.

    `lateness` is counted from RETRY_DUE_AT, which counts from the failure. `release` is counted from when the level's
    delay was over too, so without the time that the copy needed to be written. `held_back` is the lateness of those
    that an outage kept waiting, which the other two leave out.
    """

    orders: int
    committed: int
    dead: int
    deliveries: tuple[int, ...]
    retries: int
    duplicates: int
    unseen: int
    lateness: Spread
    release: Spread
    held_back: Spread
    rows: int
    findings: tuple[Finding, ...]


def verify(
    rows: Sequence[Row],
    deliveries: Sequence[Delivery],
    names: Names,
    topics: Collection[str],
    outages: Sequence[Outage] = (),
) -> Report:
    """Judge a group by its topics and its service. Retries that an outage kept waiting have a lateness of their own."""
    books = open_books(rows, deliveries, names, topics)
    accounts = list(books.accounts.values())
    known = [account for account in accounts if account.first is not None]
    came = [late for account in known for late in lateness(account)]
    held_back = [late for late in came if in_outage(late, outages)]
    in_time = [late for late in came if not in_outage(late, outages)]
    return Report(
        orders=len(known),
        committed=sum(account.committed and not account.dead for account in known),
        dead=sum(bool(account.dead) for account in known),
        deliveries=by_attempt(accounts),
        retries=sum(len(account.copies) for account in known),
        duplicates=sum(len(made) - 1 for account in accounts for made in account.deliveries.values()),
        unseen=sum(times - 1 not in account.deliveries for account in known for times in account.copies),
        lateness=spread(late.after_due for late in in_time),
        release=spread(late.after_level for late in in_time),
        held_back=spread(late.after_due for late in held_back),
        rows=len(rows),
        findings=tuple(sorted(findings(books))),
    )


def findings(books: Books) -> Iterator[Finding]:
    """Everything that is not as it must be."""
    yield from books.unreadable
    for account in books.accounts.values():
        if account.first is None:
            yield Finding("unknown", account.id, "it is in no main topic, but was copied, told of or delivered")
            continue
        for kind, check in CHECKS:
            for text in check(account, account.first):
                yield Finding(kind, account.id, text)


def lost(account: Account, _first: Row) -> Iterator[str]:
    """Every record ends: taken by the service, or in the DLQ."""
    if account.committed or account.dead:
        return
    last = account.copies.get(account.retries)
    where = f"its last copy is {last[-1].row.place}, due {last[-1].life.due_at}" if last else "it has no copy"
    yield f"neither taken by the service nor in the DLQ; {where}"


def miscounted(account: Account, _first: Row) -> Iterator[str]:
    """Retries are numbered 1 to k, each counted once; the DLQ has a record once, with the retries it had."""
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
    """Whether these copies of one retry are one way through levels: same due time, each after the one before it."""
    if len({copy.life.due_at for copy in copies}) > 1:
        return False
    return all(after.row.timestamp >= before.row.timestamp + before.wait for before, after in pairwise(copies))


def mistold(account: Account, _first: Row) -> Iterator[str]:
    """The events tell the end of a record once, and only of one that has failed."""
    dead, commits = account.told(State.DLQ), account.told(State.COMMIT)
    if dead != len(account.dead):
        yield f"{dead} events say DLQ, and it is there {len(account.dead)} times"
    if commits != int(account.retries > 0 and account.committed and not account.dead):
        yield f"{commits} events say COMMIT after {account.retries} retries"


def unmatched(account: Account, _first: Row) -> Iterator[str]:
    """What the sidecar counted is what the service saw."""
    for times in account.deliveries:
        if times > account.retries:
            yield f"retry {times} was delivered, and no copy counts it"
    failures = [(times - 1, copies[0].life) for times, copies in account.copies.items()]
    failures += [(copy.life.times, copy.life) for copy in account.dead]
    for times, life in failures:
        yield from _unmatched_failure(account, times, life)


def _unmatched_failure(account: Account, times: int, life: Life) -> Iterator[str]:
    reason = reason_class(life.reason)
    made = account.deliveries.get(times, [])
    if reason in WITHOUT_ANSWER:
        return
    if not made:
        yield f"attempt {times + 1} failed by {reason}, and never reached the service"
    elif all(delivery.verdict == "commit" for delivery in made):
        yield f"attempt {times + 1} failed by {reason}, and the service took it"


def changed(account: Account, first: Row) -> Iterator[str]:
    """Key, value and the record's own headers are byte for byte as they were, in every copy and every delivery."""
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


def early(account: Account, _first: Row) -> Iterator[str]:
    """No retry is delivered before its due time, nor before its level is over."""
    for late in lateness(account):
        if late.after_level < 0:
            yield f"the retry that was due at {late.due} came {-late.after_level:.1f} ms early"


Check = Callable[[Account, Row], Iterator[str]]
CHECKS: tuple[tuple[str, Check], ...] = (
    ("lost", lost),
    ("miscounted", miscounted),
    ("mistold", mistold),
    ("unmatched", unmatched),
    ("changed", changed),
    ("early", early),
)
"""The kinds of findings, and what finds them."""


class Late(NamedTuple):
    """How late one retry came: when it was due (epoch ms), and the ms to its first delivery, from then and from when
    its level was over too."""

    due: int
    after_due: float
    after_level: float


def lateness(account: Account) -> Iterator[Late]:
    """Each retry that was delivered."""
    for times, made in account.deliveries.items():
        for copy in account.copies.get(times, [])[-1:]:
            at = min(delivery.at for delivery in made)
            yield Late(copy.life.due_at, at - copy.life.due_at, at - released_at(copy))


def released_at(copy: Copy) -> int:
    """When the last copy of a retry may be delivered at the earliest, epoch ms (contract §4)."""
    return max(copy.life.due_at, copy.row.timestamp + copy.wait)


def spread(values: Iterable[float]) -> Spread:
    """The middle, the 99th of a hundred, and the worst."""
    ordered = sorted(values)
    if not ordered:
        return Spread()
    last = len(ordered) - 1
    return Spread(len(ordered), ordered[last // 2], ordered[round(last * 0.99)], ordered[-1])


def by_attempt(accounts: Iterable[Account]) -> tuple[int, ...]:
    """How many deliveries were made of the first attempt, the second, and so on."""
    counts: dict[int, int] = {}
    for account in accounts:
        for times, made in account.deliveries.items():
            counts[times] = counts.get(times, 0) + len(made)
    return tuple(counts.get(times, 0) for times in range(max(counts, default=-1) + 1))


def in_outage(late: Late, outages: Iterable[Outage]) -> bool:
    """Whether the service was down at some time between the due time and the delivery."""
    return any(late.due <= outage.ended and late.due + late.after_due >= outage.began for outage in outages)
