"""Watch what an operator must know within minutes: failures, new dead letters, and partitions that stand.

Every ten seconds, on the event loop, it compares the counters of the lanes with those of five and fifteen minutes ago.
The heartbeat carries these sums (`topics/instance_sums.py`), and `doctor` adds them up for all instances. A partition
that stands is logged once, and once when that is over: because something of it was delivered, or because an operator
or a rate keeps its oldest record back now. While nothing is delivered because of an outage, and for a
minute after it, no partition is newly logged: the outage has its own message, and explains them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.ages import LONG_ALONE, Age, Wait, stalled
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.reasons import NotDelivered
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.printable import plural
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.in_place_told import bounded as bounded_heads
from reconsume.topics.instance_sums import (
    DEAD_LETTERS_MS,
    FAILURES_MS,
    InstanceSums,
    TopicDeadLetters,
    TopicFailures,
    TopicLag,
    bounded,
    top,
)

EVERY = 10.0
"""Seconds between two looks, as between two looks at the ends of the logs."""
ATTEMPTS = frozenset({"commit", "retry", "dead_letter", "timeout", "broken_answer"})
"""Outcomes of deliveries that are attempts (contract 1.6)."""
BEFORE = 60_000
"""ms that lie between the two ages whose difference tells whether a lag grows."""
GROWTH = 30_000
"""ms by which it grows at least."""
FEW, BAD_SHARE = 20, 0.1
"""With fewer attempts no share is judged; from this share of failures on an operator should know."""

ANSWERS_WITHIN = 1.0
"""Seconds that `refresh` waits for the loop."""
BLOCKED_EVERY = 2.0
"""Seconds between two looks at blocked keys, of a group with an order."""
BLOCKED_LOG_EVERY = 60_000
MOST_LOGGED = 5
"""ms between two lines about blocked keys, and how many of the oldest each names."""
DELIVERED = "delivered"

Pair = tuple[str, str]

_LOG = logging.getLogger("reconsume.signals")


class _Snapshot(NamedTuple):
    """The counters at a steady time (ms)."""

    at_ms: int
    attempts: Counter[str]
    failures: Counter[Pair]
    dead_letters: Counter[Pair]
    oldest: Mapping[str, int]


class Judged(NamedTuple):
    """What an operator should hear of soon after it changes.

    `fails`: much fails. `dies`: there are new dead letters. `waits` and `retried` change when the age of the oldest
    record, from a minute on, and the number of records that are retried in place double or halve. `named`: the ids of
    those of which the heartbeat tells. `parks`: a key is parked.
    """

    fails: bool = False
    dies: bool = False
    waits: int = 0
    retried: int = 0
    named: frozenset[str] = frozenset()
    parks: bool = False


class BlockedKeys(NamedTuple):
    """How many keys are blocked (contract 5.8). `named`: the records that block theirs and are retried in place; the
    others wait in a queue topic, which has them."""

    keys: int = 0
    named: Sequence[InPlaceTold] = ()


class Signals:
    """The sums of one instance. Used on the event loop, but for `refresh`, `news` and what can be read.

    `waits`: what the oldest record of each partition waits for. `topics`: the main topics.
    `is_away`: whether an outage keeps every record from being delivered. `retried`: how many records are retried in
    place, for any thread. `blocked`: what blocks its key; None in a group without an order. `parked`: how many keys are
    parked.
    """

    def __init__(
        self,
        lanes: Sequence[LaneCounters],
        waits: Callable[[], Mapping[Partition, Wait]],
        topics: Iterable[str],
        is_away: Callable[[], bool] = lambda: False,
        retried: Callable[[], int] = lambda: 0,
        blocked: Callable[[], BlockedKeys] | None = None,
        parked: Callable[[], int] = lambda: 0,
    ) -> None:
        self.sums = InstanceSums(now().wall_ms)
        self.in_place: tuple[InPlaceTold, ...] = ()
        """The records that block their key and are retried in place, as the heartbeat names them."""
        self.blocks = False
        """Whether a key is blocked; any thread may read it."""
        self.retried = retried
        """Returns how many records are retried in place."""
        self._lanes, self._waits, self._blocked, self._topics = lanes, waits, blocked, frozenset(topics)
        self._parked = parked
        self._judged = Judged()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stalls, self._blocked_log = StallLog(is_away), BlockedLog()
        self._snapshots: deque[_Snapshot] = deque([self._snapshot(now(), {})])

    async def follow(self) -> NoReturn:
        """Look every ten seconds, and at blocked keys every two, without end."""
        self._loop = asyncio.get_running_loop()
        every = EVERY if self._blocked is None else BLOCKED_EVERY
        while True:
            for _ in range(round(EVERY / every)):
                await asyncio.sleep(every)
                self.look_for_blocked(now())
            self.look_at_lanes(now())

    def look_for_blocked(self, moment: Now) -> None:
        """Note what blocks its key, and log it."""
        if self._blocked is not None:
            blocked = self._blocked()
            self.blocks, self.in_place = blocked.keys > 0, bounded_heads(blocked.named)
            self._blocked_log.log_blocked(blocked, moment.steady_ms)

    def look_at_lanes(self, moment: Now) -> None:
        """Make the sums, and log which partitions stand, and which do not any more."""
        waits = self._waits()
        self._stalls.log_stalls(waits, moment.steady_ms)
        self._snapshots.append(self._sum_up(waits, moment))
        while len(self._snapshots) > 1 and self._snapshots[1].at_ms <= moment.steady_ms - DEAD_LETTERS_MS:
            self._snapshots.popleft()

    def refresh(self) -> None:
        """Make the sums of now, so that a heartbeat says nothing from before its cause. For any thread but the loop's.

        A loop that does not answer in `ANSWERS_WITHIN` leaves those of the last look.
        """
        done, loop = threading.Event(), self._loop

        def make_sums() -> None:
            self._sum_up(self._waits(), now())
            done.set()

        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(make_sums)
                done.wait(ANSWERS_WITHIN)

    def news(self) -> Judged:
        """Return what the heartbeat should carry soon after it changes. For any thread."""
        return self._judged._replace(retried=self.retried().bit_length())

    def _sum_up(self, waits: Mapping[Partition, Wait], moment: Now) -> _Snapshot:
        """Make the sums, and return the counters that they are of."""
        mains = {source: wait for source, wait in waits.items() if source.topic in self._topics}
        present = self._snapshot(moment, _oldest_by_topic(mains))
        failures = self._failures(present, self._before(moment.steady_ms - FAILURES_MS))
        before = self._before(moment.steady_ms - DEAD_LETTERS_MS)
        dead = _by_topic(present.dead_letters - before.dead_letters)
        letters = [TopicDeadLetters(topic, top(reasons.items())) for topic, reasons in dead.items()]
        self.sums = bounded(moment.wall_ms, failures, letters, self._lag(mains, moment), self._parked())
        bad = any(one.attempts >= FEW and one.failed >= BAD_SHARE * one.attempts for one in failures)
        self.look_for_blocked(moment)
        oldest_ms = max((wait.waited_ms for wait in mains.values()), default=0)
        named = frozenset(one.id for one in self.in_place)
        self._judged = Judged(bad, bool(letters), (oldest_ms // LONG_ALONE).bit_length(), named=named)
        self._judged = self._judged._replace(parks=self.sums.parked > 0)
        return present

    def _snapshot(self, moment: Now, oldest: Mapping[str, int]) -> _Snapshot:
        attempts, failures, dead = Counter[str](), Counter[Pair](), Counter[Pair]()
        for counters in self._lanes:
            for (topic, _, outcome), count in counters.deliveries.items():
                attempts[topic] += count if outcome in ATTEMPTS else 0
            failures.update(counters.failures.by_cause)
            dead.update(counters.dead_letters)
        return _Snapshot(moment.steady_ms, attempts, failures, dead, oldest)

    def _before(self, steady_ms: int) -> _Snapshot:
        """Return the newest snapshot that is not younger than asked; the oldest one if all are."""
        return next((one for one in reversed(self._snapshots) if one.at_ms <= steady_ms), self._snapshots[0])

    def _failures(self, present: _Snapshot, before: _Snapshot) -> list[TopicFailures]:
        attempts, failed = present.attempts - before.attempts, _by_topic(present.failures - before.failures)
        return [
            TopicFailures(topic, count, failed[topic].total(), top(failed[topic].items()))
            for topic, count in attempts.items()
        ]

    def _lag(self, mains: Mapping[Partition, Wait], moment: Now) -> list[TopicLag]:
        by_topic = defaultdict[str, list[Age]](list)
        for source, wait in mains.items():
            by_topic[source.topic].append(Age(source, wait.waited_ms))
        before = self._before(moment.steady_ms - BEFORE).oldest
        lags = []
        for topic, ages in by_topic.items():
            first, *others = sorted(ages, key=lambda age: -age.waited_ms)
            grows = topic in before and first.waited_ms - before[topic] > GROWTH
            second = others[0].waited_ms if others else None
            why = mains[first.source].reason if first.waited_ms else None
            lags.append(TopicLag(topic, first.source.number, first.waited_ms, second, grows, str(why or "")))
        return lags


class BlockedLog:
    """Log once a minute that keys are blocked, and once that none is any more."""

    def __init__(self) -> None:
        self._keys = 0
        """How many there were at the last line."""
        self._log_at_ms = 0
        """When the next line is due (steady ms), if keys are blocked."""

    def log_blocked(self, blocked: BlockedKeys, steady_ms: int) -> None:
        """Log what is blocked at a steady time (ms)."""
        if blocked.keys and steady_ms >= self._log_at_ms:
            oldest = sorted(blocked.named, key=lambda one: one.since)[:MOST_LOGGED]
            extra = {"event": "keys-blocked", "keys": blocked.keys, "oldest": [one.id for one in oldest]}
            causes = [f"{one.id} failed {plural(one.times, 'time')}, the last with {one.reason}" for one in oldest]
            are = "is" if blocked.keys == 1 else "are"
            text = f"{plural(blocked.keys, 'key')} {are} blocked by failures"
            change = {"was": str(self._keys), "now": str(blocked.keys)}
            _LOG.warning("%s", ": ".join(filter(None, (text, "; ".join(causes)))), extra={**extra, **change})
            self._keys, self._log_at_ms = blocked.keys, steady_ms + BLOCKED_LOG_EVERY
        elif not blocked.keys and self._keys:
            change = {"was": str(self._keys), "now": "0"}
            _LOG.warning(
                "no key is blocked any more", extra={"event": "keys-blocked", "keys": 0, "oldest": [], **change}
            )
            self._keys, self._log_at_ms = 0, 0


class StallLog:
    """Log once that a partition stalls, and once how that ends. `is_away`: as in `Signals`."""

    def __init__(self, is_away: Callable[[], bool]) -> None:
        self._is_away = is_away
        self._explained_until_ms = 0
        """Until when (steady ms) an outage explains why records wait."""
        self._stalled: dict[Partition, int] = {}
        """The partitions that were logged, each with the lowest offset that was not done then."""

    def log_stalls(self, waits: Mapping[Partition, Wait], steady_ms: int) -> None:
        """Log what has changed at a steady time (ms)."""
        if self._is_away():
            self._explained_until_ms = steady_ms + LONG_ALONE
        ages = [Age(source, wait.waited_ms) for source, wait in waits.items()]
        stalled_ages = [] if steady_ms < self._explained_until_ms else stalled(ages)
        for source, waited_ms in stalled_ages:
            if source not in self._stalled:
                self._stalled[source] = waits[source].first
                text, reason, seconds = (
                    "%s: its oldest record has waited for %d s: %s",
                    waits[source].reason,
                    waited_ms // 1000,
                )
                extra = {"event": "partition-stalled", "was": DELIVERED, "now": "stalled", "reason": str(reason)}
                facts = {"partition": str(source), "undelivered_for": seconds}
                meaning = "" if reason is None else reason.meaning
                _LOG.warning(text, source, seconds, meaning, extra={**extra, **facts})
        present = dict(stalled_ages)
        for source, first in list(self._stalled.items()):
            wait = waits.get(source)
            if wait is None:  # another instance has it now
                del self._stalled[source]
            elif wait.waited_ms < LONG_ALONE and source not in present and (end := _ended(wait, first)) is not None:
                del self._stalled[source]
                now, text = end
                extra = {"event": "partition-stalled", "was": "stalled", "now": now}
                facts = {"partition": str(source), "undelivered_for": wait.waited_ms // 1000}
                _LOG.warning("%s: %s", source, text, extra={**extra, **facts})


def _ended(wait: Wait, first: int) -> tuple[str, str] | None:
    """Return how a stall is over that began with the offset `first` not done, as a word and a sentence; None if that is
    not known yet."""
    if wait.reason is not None and wait.reason.is_deliberate and wait.reason is not NotDelivered.NOT_DUE:
        return str(wait.reason), f"its oldest record was not delivered, and waits deliberately: {wait.reason.meaning}"
    return (DELIVERED, "it is delivered again") if wait.first > first or wait.is_sent else None


def _by_topic(counts: Counter[Pair]) -> defaultdict[str, Counter[str]]:
    by_topic = defaultdict[str, Counter[str]](Counter)
    for (topic, reason), count in counts.items():
        by_topic[topic][reason] += count
    return by_topic


def _oldest_by_topic(waits: Mapping[Partition, Wait]) -> dict[str, int]:
    oldest: dict[str, int] = {}
    for (topic, _), wait in waits.items():
        oldest[topic] = max(oldest.get(topic, 0), wait.waited_ms)
    return oldest
