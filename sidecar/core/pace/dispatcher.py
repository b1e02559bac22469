"""Share the in-flight slots between the lanes, in turn, so that neither fresh records nor retries starve."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from sidecar.core.invariant import ensure
from sidecar.core.outcome import COMMITTED, Outcome
from sidecar.core.pace.flows import ReadyFlows
from sidecar.core.pace.pace import Pace, State
from sidecar.core.pace.probe_turns import ProbeTurns
from sidecar.core.pace.single_file import SingleFile
from sidecar.core.record import Now, Record


class LaneQueue(Protocol):
    """A lane as the dispatcher sees it: records that may be delivered, and the method to send one."""

    @property
    def ready(self) -> ReadyFlows:
        """The records that may be delivered."""

    def send(self, record: Record, now: Now) -> bool:
        """Deliver the record; return False if it may not be delivered after all."""

    def answered_in_bulk(self, now: Now) -> None:
        """Continue, now that all outcomes of a batch were passed on."""


class Dispatcher:
    """Send the ready records of all lanes, with at most `pace.limit` deliveries in flight together.

    Invariants: `in_flight` is at least 0; outcomes of a batch are being passed on only inside `answer_together`.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.in_flight = 0
        self.closed = False
        """Whether nothing is sent any more: the sidecar drains."""
        self.at_close: list[Callable[[], None]] = []
        """Callbacks for `close`."""
        self.single_file = SingleFile()
        """The partitions whose records go one at a time, before all others."""
        self.gathering = False
        """Whether the outcomes of a batch are being passed on."""
        self._lanes: deque[LaneQueue] = deque()
        self._turns = ProbeTurns()

    def join(self, lane: LaneQueue) -> None:
        """Add a lane to those that take turns."""
        self._lanes.append(lane)

    def close(self) -> None:
        """Send nothing more, for good."""
        self.closed = True
        for tell in self.at_close:
            tell()

    @property
    def full(self) -> bool:
        """Whether nothing more is sent until a delivery is answered, or the pace changes."""
        limit = self.pace.limit
        return self.in_flight >= (self.single_file.room(limit) if self.single_file.sources else limit)

    def answer_together(self, tell: Callable[[], None], now: Now) -> None:
        """Pass on the outcomes of a batch by `tell`: their slots are filled when all are free, not one by one."""
        self.gathering = True
        try:
            tell()
        finally:
            self.gathering = False
        for lane in tuple(self._lanes):
            lane.answered_in_bulk(now)

    def look_for_hangs(self, now: Now) -> int:
        """Have the pace find out in time if what is in flight hangs; return the steady time (ms) of its next tick."""
        if self.in_flight and self.pace.limit < self.pace.full:
            self.pace.look(now)
        return self.pace.probe_at

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Note that a delivery has ended."""
        self.in_flight -= 1
        self.pace.note(record, outcome, now)

    def committed_many(self, records: Sequence[Record], now: Now) -> None:
        """Note that the service accepted all of these records by one answer."""
        self.in_flight -= len(records)
        for number, record in enumerate(records, 1):
            self.pace.note(record, COMMITTED, now)
            if self.pace.state is State.OPEN and self.pace.limit == self.pace.full:
                self.pace.share.others += len(records) - number  # they change nothing else
                return

    def dispatch(self, now: Now) -> None:
        """Send what may go: one record of each lane in turn, until all slots are taken or all lanes are empty."""
        if self.gathering or self.closed:
            return
        pace, lanes, single_file, empty = self.pace, self._lanes, self.single_file.sources, 0
        if pace.state is State.PROBING and not single_file:
            self._probe(now)
            empty = len(lanes)
        all_empty = len(lanes)
        while self.in_flight < pace.limit and empty < all_empty and not single_file:
            lane = lanes[0]
            lanes.rotate(-1)
            record = lane.ready.take()
            if record is None:
                empty += 1
                continue
            empty = 0
            if lane.send(record, now):
                self.in_flight += 1
        if single_file:
            self._send_in_single_file(now)

    def _send_in_single_file(self, now: Now) -> None:
        """Send the next record of the single file; some of its records may have to wait when their turn has come."""
        sources, empty = self.single_file, 0
        while not self.full and sources.sources and empty < len(self._lanes):
            lane = self._lanes[0]
            self._lanes.rotate(-1)
            record = lane.ready.take_of(sources.may_go)
            if record is None:
                empty += 1
                continue
            empty = 0
            if lane.send(record, now):
                self._sent(record, now)

    def _probe(self, now: Now) -> None:
        """Send as `dispatch` does, but with the partitions of each lane in turn too.

        The poison of one partition then delays no other.
        """
        if self.full:
            return
        for lane in self._lanes:
            self._turns.deal(lane.ready)
        while not self.full and (turn := self._next_lane()) is not None:
            record = turn.ready.take()
            if record is not None and turn.send(record, now):
                self._sent(record, now)

    def _next_lane(self) -> LaneQueue | None:
        """Return the lane whose turn it is, of those that have something to send; None if there is none."""
        for _ in range(len(self._lanes)):
            self._lanes.rotate(-1)
            if self._lanes[-1].ready:
                return self._lanes[-1]
        return None

    def _sent(self, record: Record, now: Now) -> None:
        """Count a record in flight; while the pace probes, it is the probe."""
        self.in_flight += 1
        if self.pace.state is State.PROBING:
            self.pace.sent(record, now)
            self._turns.took(record.source)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold. Slow."""
        ensure(self.in_flight >= 0, f"{self.in_flight} deliveries are out")
        ensure(not self.gathering, "no batch is being answered between two calls")
        self.single_file.check()
        self.pace.check()
