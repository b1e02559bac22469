"""The rate of an instance: its own (`deliver.rate`), and its part of the group's (`deliver.group_rate`). Pure.

The smaller one binds. The group's is divided by the partitions of the main topics, so the parts together are the rate
of the group, whoever owns what; no instance asks another one.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.bucket import Bucket
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.rates import Rate


class Owned(NamedTuple):
    """How many partitions of the main topics an instance owns, of how many."""

    owned: int
    of: int


ALL = Owned(1, 1)


def share_of(rate: Rate, share: Owned) -> Rate:
    """Return an instance's part of the group's rate.

    Without a main partition it has that of one: it may own level partitions, and retries must not wait for ever. The
    parts are then more than the group's rate, by as much.
    """
    # Contract 8.9: in proportion to the main partitions that it owns.
    of = max(share.of, share.owned, 1)
    return Rate(rate.count * max(1, share.owned), rate.per_ms * of)


class InstanceRate:
    """The rate of one instance. `at_receive`: a record goes when it is received, and not when it is offered (pull).

    Invariant: there is a bucket exactly where a setting binds.
    """

    def __init__(self, own: Rate | None, group: Rate | None, now_ms: int, *, at_receive: bool = False) -> None:
        self.owned: Callable[[], Owned] = lambda: ALL
        """Returns the share of the main topics that the instance owns."""
        self.offered: Callable[[], int] = lambda: 0
        """Returns how many records are offered and not received yet (pull): a token is kept for each."""
        self.stale: bool
        """Whether the instance may own other partitions since the last look."""
        self.bucket: Bucket | None = None
        self.setting: str
        """The setting that binds, `rate` or `group_rate`; empty without a rate."""
        self._at_receive = at_receive
        self.set(own, group, now_ms)

    def set(self, own: Rate | None, group: Rate | None, now_ms: int) -> None:
        """Let other rates hold from now on."""
        self._own, self._group = own, group
        self._bind(now_ms)

    @property
    def of_group(self) -> bool:
        """Whether the group has a rate."""
        return self._group is not None

    def room(self, now_ms: int) -> int:
        """Return how many records may go, or be offered, at a steady time (ms)."""
        if self.stale:
            self._bind(now_ms)
        return NEVER if self.bucket is None else max(0, self.bucket.tokens(now_ms) - self.offered())

    def sent(self, records: int) -> None:
        """Note that records go, or are offered."""
        # Contract 8.9: in pull mode a record counts when it is received, and not when it becomes ready.
        if not self._at_receive and self.bucket is not None:
            self.bucket.take(records)

    def received(self, records: int, now_ms: int) -> None:
        """Note that offered records are received, at a steady time (ms)."""
        if self._at_receive and self.bucket is not None:
            self.bucket.tokens(now_ms)
            self.bucket.take(records)

    def next_at(self, now_ms: int) -> int:
        """Return the steady time (ms) at which to look again, where no record may go now; NEVER without a rate."""
        return NEVER if self.bucket is None else self.bucket.next_at(self.offered(), now_ms)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        ensure((self.bucket is None) == (not self.setting), "there is a bucket where a setting binds")
        if self.bucket is not None:
            self.bucket.check()

    def _bind(self, now_ms: int) -> None:
        """Let the smaller of the rates hold."""
        self.stale = False
        rates = [] if self._own is None else [(self._own.per_second, self._own, "rate")]
        if self._group is not None:
            share = share_of(self._group, self.owned())
            rates.append((share.per_second, share, "group_rate"))
        if not rates:
            self.bucket, self.setting = None, ""
            return
        _, rate, self.setting = min(rates, key=itemgetter(0))
        if self.bucket is None:
            self.bucket = Bucket(rate, now_ms)
        elif rate != self.bucket.rate:
            self.bucket.change(rate, now_ms)
