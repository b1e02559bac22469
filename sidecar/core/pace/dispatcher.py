"""Share the in-flight slots between the lanes, in turn, so that neither fresh records nor retries starve."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from sidecar.core.outcome import COMMITTED, Outcome
from sidecar.core.pace.pace import Pace, State
from sidecar.core.pace.probe_turns import ProbeTurns
from sidecar.core.record import Now, Partition, Record


class LaneQueue(Protocol):
    """A lane as the dispatcher sees it: records that may be delivered, and the method to send one."""

    ready: deque[Record]

    def send(self, record: Record, now: Now) -> bool:
        """Deliver the record; return False if it may not be delivered after all."""

    def answered_in_bulk(self, now: Now) -> None:
        """Continue, now that all outcomes of a batch were passed on."""


class Dispatcher:
    """Send the ready records of all lanes, with at most `pace.limit` deliveries in flight together."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.in_flight = 0
        self.closed = False
        """Whether nothing is sent any more: the sidecar drains."""
        self.at_close: list[Callable[[], None]] = []
        """Callbacks for `close`."""
        self.alone: set[Partition] = set()
        """While there are any, only records of these partitions go, one at a time (`quarantine.py`)."""
        self.marking: Partition | None = None
        """The one of them whose commit must be in Kafka before the next of these records goes, if any."""
        self.gathering = False
        """Whether the outcomes of a batch are being passed on."""
        self._next: tuple[LaneQueue, Record] | None = None
        self._aside: deque[tuple[LaneQueue, Record]] = deque()
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
    def aside(self) -> Iterator[Record]:
        """The ready records of other partitions, which wait until no partition is in `alone`."""
        return (record for _, record in self._aside)

    def put_aside(self, ready: deque[Record]) -> Iterator[Record]:
        """Return the records of one lane, whose other records are `ready`, that are aside or go before any other."""
        put = self._aside if self._next is None else (*self._aside, self._next)
        return (record for lane, record in put if lane.ready is ready)

    @property
    def full(self) -> bool:
        """Whether nothing more is sent until a delivery is answered, or the pace changes."""
        return self.in_flight >= (self._room() if self.alone else self.pace.limit)

    def answer_together(self, tell: Callable[[], None], now: Now) -> None:
        """Pass on the outcomes of a batch by `tell`: their slots are filled when all are free, not one by one."""
        self.gathering = True
        try:
            tell()
        finally:
            self.gathering = False
        for lane in tuple(self._lanes):
            lane.answered_in_bulk(now)

    def alarm(self, now: Now) -> int:
        """Return the steady time (ms) at which the pace should be ticked."""
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
        if self._next is not None:
            self._send_next(now)
        lanes, pace, alone, empty = self._lanes, self.pace, self.alone, 0
        if pace.state is State.PROBING:
            self._probe(now)
            return
        all_empty = len(lanes)
        while self.in_flight < (self._room() if alone else pace.limit) and empty < all_empty:
            lane = lanes[0]
            lanes.rotate(-1)
            if not lane.ready:
                empty += 1
                continue
            record, empty = lane.ready.popleft(), 0
            if alone and record.source not in alone:
                self._aside.append((lane, record))
            elif lane.send(record, now):
                self.in_flight += 1

    def _probe(self, now: Now) -> None:
        """Send as `dispatch` does, but with the partitions of each lane in turn too.

        The poison of one partition then delays no other.
        """
        if self.full:
            return
        for lane in self._lanes:
            self._turns.deal(lane.ready)
        while not self.full and (turn := self._next_lane()) is not None:
            record = turn.ready.popleft()
            if self.alone and record.source not in self.alone:
                self._aside.append((turn, record))
            elif turn.send(record, now):
                self._sent_probe(record, now)

    def _next_lane(self) -> LaneQueue | None:
        """Return the lane whose turn it is, of those that have something to send; None if there is none."""
        for _ in range(len(self._lanes)):
            self._lanes.rotate(-1)
            if self._lanes[-1].ready:
                return self._lanes[-1]
        return None

    def _sent_probe(self, record: Record, now: Now) -> None:
        self.in_flight += 1
        self.pace.sent(record, now)
        self._turns.took(record.source)

    def _room(self) -> int:
        return 0 if self.marking is not None else min(1, self.pace.limit)

    def send_next(self, ready: deque[Record], record: Record) -> None:
        """Let this record go before any other; `ready` are the other records of its lane."""
        self._next = next(lane for lane in self._lanes if lane.ready is ready), record

    def _send_next(self, now: Now) -> None:
        if self._next is None or self.in_flight >= self._room():
            return
        (lane, record), self._next = self._next, None
        if not lane.send(record, now):
            return
        if self.pace.state is State.PROBING:
            self._sent_probe(record, now)
        else:
            self.in_flight += 1

    def leave(self, source: Partition) -> None:
        """End the single delivery of a partition; after the last one, the records of all others may go again."""
        self.alone.discard(source)
        if self.alone:
            return
        while self._aside:
            lane, record = self._aside.pop()
            lane.ready.appendleft(record)
