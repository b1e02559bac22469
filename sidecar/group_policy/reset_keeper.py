"""Keep what is known of resets in this instance, on the event loop: what operators want, and what owners have done.

Requests are in the control log; what owners have carried out is in the second partition of the policy topic. Both are
read from their beginning after an error: what was known stays in force until they were read to their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from reconsume.sidecar.core.position_reset import ResetOrder
from reconsume.sidecar.core.record import Partition
from reconsume.topics.position_ranges import PartitionResets, ResetNote, Resets
from reconsume.topics.reset_record import CARRIED_OUT_WITHIN_MS, ResetRequest


class ResetKeeper:
    """The resets of the group. `tell` has the lanes take in all open orders, and all that owners have carried out."""

    def __init__(self, tell: Callable[[tuple[ResetOrder, ...], Resets], None]) -> None:
        self.known: dict[Partition, PartitionResets] = {}
        """What owners have carried out, as it was read since the beginning."""
        self._tell = tell
        self._applied: tuple[tuple[ResetOrder, ...], dict[Partition, PartitionResets]] = ((), {})

    def begin(self) -> None:
        """Note that the topic is read from its beginning: it may be another one."""
        self.known = {}

    def take(
        self, notes: Iterable[ResetNote], requests: Mapping[str, ResetRequest], now_ms: int, *, caught_up: bool
    ) -> None:
        """Take in notes of owners, and have the lanes carry out what is new. `now_ms`: by the clock of the log."""
        for note in notes:
            if note.resets is None:
                self.known.pop(note.partition, None)
            else:
                self.known[note.partition] = note.resets
        if not caught_up or not (self.known or requests or self._applied != ((), {})):
            return
        newest = (tuple(orders_of(requests, now_ms)), dict(self.known))
        if newest != self._applied:
            self._applied = newest
            self._tell(*newest)


def orders_of(requests: Mapping[str, ResetRequest], now_ms: int) -> Iterator[ResetOrder]:
    """Yield what requests by id want of each partition, in their order, but for those that are too old."""
    for ident, request in requests.items():
        if request.is_over(now_ms):
            continue
        until_ms = request.at + CARRIED_OUT_WITHIN_MS
        for wanted in request.targets:
            source = Partition(request.topic, wanted.partition)
            yield ResetOrder(
                source, ident, request.id, wanted.target, wanted.based_on, until_ms, skips_all=request.skips
            )
