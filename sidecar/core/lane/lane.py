"""The lane: holds a record until it may be delivered, delivers it, decides what the outcome means, commits that.

Driven by calls (from the consumer, the service, the committer and the timer) and acting through ports, all on one
thread. Nothing else moves a record. The way of one record, read from top to bottom: `received`, `send`, `answered`,
`committed`. How a lane gets and gives up partitions is in `tenure.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from sidecar.core.commit_batch import Entry, Result
from sidecar.core.copies import writes_of
from sidecar.core.counters import Tally
from sidecar.core.decide import Again, Commit, Decision, Forget, Forward, Wait, Written, after_wait, condemn, decide
from sidecar.core.decide_draining import decide_draining
from sidecar.core.lane.admission import Terms, begun
from sidecar.core.lane.bulk_answers import Taken
from sidecar.core.lane.delay_queue import Hold
from sidecar.core.lane.forwarding import forward_due, settle_forwarded
from sidecar.core.lane.key_queues import Lines
from sidecar.core.lane.outbox import Outbox
from sidecar.core.lane.ownership import Tenure
from sidecar.core.lane.partition import Assigned, Run
from sidecar.core.lane.paused import ParkingLot
from sidecar.core.lane.quarantine import Suspects, Ways
from sidecar.core.lane.refused_copies import Stopping
from sidecar.core.lane.timer import Schedule
from sidecar.core.outcome import CANCELLED, COMMITTED, Failed, Outcome, label_of
from sidecar.core.pace.dispatcher import Gate
from sidecar.core.policy import Policy
from sidecar.core.ports import Ports
from sidecar.core.record import Now, Record


class Lane:
    """One lane. `waits` maps each topic to its level's delay in ms (0: ready topic); a main topic is not in it."""

    def __init__(self, policy: Policy, waits: Mapping[str, int], ports: Ports, gate: Gate, terms: Terms) -> None:
        self.ready: deque[Record] = deque()
        self.room, self.tally, self.hold = terms.room, Tally(), Hold(terms.room)
        self.lines = None if terms.order is None else Lines(terms.order)
        self.recall = ports.recall
        self.outbox, self.lot, self.pace = Outbox(), ParkingLot(ports.fetch), gate.pace
        self.tenure = Tenure(waits, self)
        self._parts = parts = self.tenure.parts
        self._policy, self._ports, self._gate, self._wanted = policy, ports, gate, terms.wanted
        self._stopping = Stopping(self)
        self._schedule = Schedule(self, ports, gate)
        ways = Ways(lambda: self._policy, self.ready, parts, self._write, self._schedule.want, ports.notice)
        self.suspects = Suspects(gate, ways)
        self._taken = Taken(gate, self.tenure, self.tally, self.suspects)
        gate.join(self)

    def govern(self, policy: Policy, waits: Mapping[str, int]) -> None:
        """Decide by another policy from now on; what waits already keeps its due time. `waits`: as at the start."""
        self._policy = policy
        self.tenure.govern(waits)

    # --- the way of one record -------------------------------------------------------------------------------------

    def received(self, runs: Iterable[Run], now: Now) -> None:
        """Take up what the consumer hands over; runs of an older assignment or from before a seek are dropped."""
        for run in runs:
            part = self._parts.get(run.partition)
            if part is None or part.epoch != run.epoch or part.turn != run.turn or part.parked or part.closing:
                continue
            self._take_up(part, run, now)
        self._gate.pump(now)
        self._schedule.arm(now)

    def _take_up(self, part: Assigned, run: Run, now: Now) -> None:
        if run.last_at is not None:
            part.last_at = run.last_at
        if self._policy.relay:
            run = forward_due(part, run, self._policy, now, self)
        for record, left in begun(part, run, self.lot, now, self.tenure.allowance(part)):
            self.tenure.weigh(part, record.weight)
            if record.fault:
                self.tally.bad_headers += 1
                self._write(part, record, condemn(record, self._policy, now.wall), now)
            elif self._wanted is not None and not self._wanted(record):
                self.tally.passed_over[record.source.topic] += 1
                self._finish(part, record)
            elif left > 0:
                self.hold.put(record, now.steady + left)
            else:
                self._level_over(part, record, now)
        if run.end is not None:
            part.seen.ended(run.end, now.steady)
            if part.parked is None and part.tracker.reached(run.end):
                part.dirty = self._schedule.moved = True

    def _level_over(self, part: Assigned, record: Record, now: Now) -> None:
        if record.life is None:
            self._release(record)
            return
        answer = after_wait(record, self._policy, now.wall, self.hold.patience)
        if not isinstance(answer, Wait):
            if isinstance(answer, Forward):
                self.tally.late(record, part.wait, now.wall)
            self._write(part, record, answer, now)
        elif answer.ms > 0:
            self.hold.put(record, now.steady + answer.ms)
        else:
            self._release(record)

    def _release(self, record: Record) -> None:
        if self.lines is None or self.lines.join(record):
            self.ready.append(record)

    def send(self, record: Record, now: Now) -> bool:
        """Deliver one ready record (called by the gate); False when its partition was given up or is stopped."""
        part = self.tenure.holder(record)
        if part is None or part.closing:
            return False
        if part.stopped:
            part.withheld.append(record)
            return False
        if part.watch is not None and not self.suspects.lets_go(part, part.watch, record, now):
            return False
        if record.life is not None and record.again == 0:  # a try in place has no due time of its own
            self.tally.late(record, part.wait, now.wall)
        part.in_flight += 1
        self._ports.deliver(record, self.answered)
        return True

    def answered(self, record: Record, outcome: Outcome, now: Now) -> None:
        """Take in what came of a delivery; an answer for an older assignment is counted and dropped."""
        if self._gate.gathering and outcome is COMMITTED and record.life is None:
            self._taken.add(record)
            return
        label = label_of(outcome)
        self._gate.returned(record, outcome, now)
        part = self.tenure.holder(record)
        if part is None:
            self.tally.fenced_answers += outcome is not CANCELLED
            self._schedule.arm(now)  # it may have begun an outage, whose end somebody must look for
        else:
            part.in_flight -= 1
            if part.watch is not None:
                self.suspects.answered(part, part.watch, record, outcome, now)
            self.tally.answered(record, part.level, label)
            if outcome is COMMITTED and record.life is None:
                self._finish(part, record)
            else:
                self._settle(part, record, outcome, now)
            self._changed(part, now)
        self._go_on(now)

    def caught_up(self, now: Now) -> None:
        """Take in what one answer to many records committed (called by the gate), and go on."""
        for part in self._taken.settle(self._finish, now):
            self._changed(part, now)
        self._go_on(now)

    def _go_on(self, now: Now) -> None:
        self._gate.pump(now)
        self._schedule.want(self._gate.pace.probe_at)  # an outage began, or a probe has gone that may hang

    def _settle(self, part: Assigned, record: Record, outcome: Outcome, now: Now) -> None:
        if isinstance(outcome, Failed) and not self._policy.understands(outcome.delay, outcome.level):
            self.tally.odd_requests += 1
        decision: Decision = (decide_draining if self._gate.closed else decide)(record, outcome, self._policy, now.wall)
        match decision:
            case Forget():
                pass
            case Wait(ms=0):
                self.ready.appendleft(record)
            case Wait(ms=ms):
                self.hold.put(record, now.steady + ms)
            case Again(ms=ms):
                part.retrying += record.again == 0
                self.hold.put(record.tried(now.wall), now.steady + ms)
            case _:
                self._write(part, record, decision, now)
                if self.outbox.out is not None:
                    return  # its result will look at what is to be done next
        self._schedule.arm(now)

    def _write(self, part: Assigned, record: Record, decision: Commit | Written, now: Now) -> None:
        part.unsettled += 1
        self.outbox.add(Entry(record, decision, writes_of(record, decision, self._policy, now.wall)))

    def committed(self, result: Result, now: Now) -> None:
        """Take in the committer's answer for the batch that was out."""
        self.outbox.ended(now, committed=result.committed)
        if result.apart:
            self.outbox.apart(result.batch)
        self.outbox.again(entry for entry in result.again if self.tenure.holder(entry.record) is not None)
        straight = self._policy.relay and result.committed
        for entry in settle_forwarded(result.done, self) if straight else result.done:
            self._written(entry, result.committed, now)
        if result.refused:
            self._stopping.refused(result.refused, now)
        self.tenure.committed(result, now)
        self._schedule.moved |= not result.committed
        self._gate.pump(now)  # what stood in line behind a dead letter may go
        self._schedule.arm(now)

    def _written(self, entry: Entry, with_progress: bool, now: Now) -> None:
        part = self.tenure.holder(entry.record)
        if part is None:
            return
        part.unsettled -= 1
        self.tally.count(entry.decision)
        dirty = part.dirty
        self._finish(part, entry.record)
        if with_progress:  # its batch said that it is done
            part.dirty = dirty
        if self.outbox.held and self.outbox.accepted(entry):
            self._stopping.mended(now)

    def _finish(self, part: Assigned, record: Record) -> None:
        self.tenure.weigh(part, -record.weight)
        part.dirty = True
        part.retrying -= record.again > 0
        part.tracker.finish(record.offset)
        if self.lines is not None and (first := self.lines.leave(record)) is not None:
            self.ready.append(first)
        self._schedule.progressed()

    def _changed(self, part: Assigned, now: Now) -> None:
        if part.closing:
            self._schedule.arm(now)
            self.tenure.check_releases()
        elif part.parked is not None:
            self.lot.reconsider(part, now.steady)

    # --- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Do what is due at `now`; the lane asks for the next call by `wake`."""
        self._schedule.rang()
        self._gate.pace.tick(now, self._gate.in_flight)
        self.suspects.tick(now)
        for record in self.hold.due(now.steady):
            part = self.tenure.holder(record)
            if part is not None and not part.closing:
                self._level_over(part, record, now)
        self.lot.ring(self._parts.values(), now.steady)
        self._gate.pump(now)
        self._schedule.arm(now)
