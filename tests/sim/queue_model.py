"""A model of what reads the queues of a main lane: by assignment, outside the group, on virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.sidecar.kafka.consumer.log_checks import Edges
from reconsume.sidecar.kafka.consumer.start_offsets import start_of_queue
from tests.sim.kafka_model import Log, Stored
from tests.sim.samples import read

if TYPE_CHECKING:
    from tests.sim.process import LaneHost, Process

MOST = 6
"""Records that one look brings at most."""
END_AFTER = 500
"""ms after the last record until the client tells an end."""
SLOW = 300
"""ms that a fetch takes at times."""
AGAIN = 100
"""ms until what cannot be read now is tried again."""
LOOK_AT_LOGS, GONE_AFTER = 5_000, 5_000
"""ms between two looks whether a queue is the log that was read, and for which one that was read must be missing."""
SURE_AFTER, LOOK_EVERY, LOOK_SELDOM = 5_000, 1_000, 10_000
"""ms for which a queue is missing before the lane goes on without it, and between two looks for it from then on: with a
ladder, and without."""


@dataclass
class Reading:
    """One queue that is read: from `position` on, and for the first time up to `end`."""

    epoch: int
    position: int = 0
    known_to: int = 0
    """Up to where the lane knows it without having read it."""
    end: int = -1
    looks: bool = False
    missing_since: int | None = None
    absent: bool = False
    log: Log | None = None
    """The log that is read: a topic that is made anew has another one."""
    caught_up: bool = False
    known_end: int = -1
    """The end that was handed over last."""


class QueueModel:
    """Port `QueueReads` of one lane."""

    def __init__(self, host: LaneHost) -> None:
        self._host, self._process, self._world = host, host.process, host.world
        self._random = host.world.random
        self._readings: dict[Partition, Reading] = {}
        self._had_ladder = self._ended = False
        self._at_hand: dict[tuple[Partition, int], Record] = {}

    def open(self, queue: Partition, epoch: int) -> None:
        self._readings[queue] = reading = Reading(epoch)
        self._process.later(self._random.choice((0, 5, 300)), partial(self._open, queue, reading))

    def _open(self, queue: Partition, reading: Reading) -> None:
        """Ask for the group's progress, which an open transaction holds back, then where the queue ends."""
        if self._readings.get(queue) is not reading or self._ended:
            return
        if queue not in self._world.kafka.logs:
            self._miss(queue, reading)
            return
        if reading.absent:
            self._restart()
            return
        reading.missing_since = None
        log = self._log(queue)
        if log is None or self._world.kafka.held[self._host.group, queue] > 0:
            self._process.later(AGAIN, partial(self._open, queue, reading))
            return
        known = (self._host.group, queue) in self._world.kafka.committed
        progress = self._world.kafka.progress(self._host.group, queue) if known else None
        progress = start_of_queue(queue, progress, Edges(log.start, log.end), log.ident)
        reading.position, reading.log = progress.next, log
        self._host.on_loop(partial(self._opened, AssignedPartition(queue, reading.epoch, progress)))
        self._process.later(self._random.choice((0, 20)), partial(self._find_end, queue, reading))

    def _miss(self, queue: Partition, reading: Reading) -> None:
        """There is no such queue: the lane goes on without it, in a group with a ladder once that is sure."""
        steady, queued = self._world.steady_ms, self._process.policy.queued
        since = reading.missing_since = steady if reading.missing_since is None else reading.missing_since
        self._had_ladder = self._had_ladder or queued
        if not reading.absent and (not self._had_ladder or steady >= since + SURE_AFTER):
            reading.absent = True
            self._host.on_loop(partial(self._absent, queue, reading.epoch))
        every = (LOOK_EVERY if queued else LOOK_SELDOM) if reading.absent else AGAIN
        self._process.later(every, partial(self._open, queue, reading))

    def _absent(self, queue: Partition, epoch: int) -> None:
        assert self._host.lane.queues is not None
        self._host.lane.queues.absent(queue, epoch, self._process.now())

    def _opened(self, grant: AssignedPartition) -> None:
        assert self._host.lane.queues is not None
        self._host.lane.queues.opened(grant, self._process.now())

    def _find_end(self, queue: Partition, reading: Reading) -> None:
        if (log := self._log(queue)) is None:
            self._process.later(AGAIN, partial(self._find_end, queue, reading))
            return
        reading.end = log.end
        self._look_soon(queue, reading)

    def _log(self, queue: Partition) -> Log | None:
        log = self._world.kafka.logs.get(queue)
        return log if log is not None and log.led else None

    def appended(self, queue: Partition) -> None:
        """There is something new in a log."""
        if (reading := self._readings.get(queue)) is not None and reading.end >= 0:
            self._look_soon(queue, reading)

    def _look_soon(self, queue: Partition, reading: Reading) -> None:
        if not reading.looks:
            reading.looks = True
            waits = (1, 3, 40, SLOW) if reading.caught_up else (1, 3, 40)
            self._process.later(self._random.choice(waits), partial(self._look, queue, reading))

    def _look(self, queue: Partition, reading: Reading) -> None:
        reading.looks = False
        if self._readings.get(queue) is not reading or self._ended:
            return
        log = self._log(queue)
        if log is None:
            return  # `appended` comes when it has a leader again
        if log.end < reading.position:
            self._end()
            return
        if log.start > reading.position:
            reading.position = log.start
            self._host.on_loop(partial(self._cut, queue, reading.epoch, log.end))
        found = log.after(reading.position, self._random.randint(1, MOST))
        new = (stored for stored in found if stored.offset >= reading.known_to)
        records = [self._record(queue, reading.epoch, stored) for stored in new]
        more = bool(log.after(found[-1].offset + 1, 1)) if found else False
        reading.position = found[-1].offset + 1 if more else max(log.end, reading.position)
        caught_up = reading.position >= reading.end
        if records or (caught_up and not reading.caught_up):
            self._hand_over(queue, reading, records, None)
        if more:
            self._look_soon(queue, reading)
        else:
            self._process.later(END_AFTER, partial(self._tell_end, queue, reading, reading.position))

    def _tell_end(self, queue: Partition, reading: Reading, end: int) -> None:
        """Nothing has come for a while: where copies come without a pause, the client never tells an end."""
        is_read = self._readings.get(queue) is reading and not self._ended
        if is_read and reading.position == end != reading.known_end:
            self._hand_over(queue, reading, [], end)

    def _hand_over(self, queue: Partition, reading: Reading, records: Sequence[Record], end: int | None) -> None:
        reading.caught_up = reading.caught_up or reading.position >= reading.end
        reading.known_end = reading.known_end if end is None else end
        run = FetchedRecords(queue, reading.epoch, 0, list(records), end)
        self._host.on_loop(partial(self._read, run, reading.caught_up))

    def watch_logs(self) -> None:
        """A topic was deleted, or made: the reader looks at its logs within 5 s, and holds one gone after 5 s more."""
        self._process.later(self._random.randint(1, LOOK_AT_LOGS), self._look_at_logs)
        self._process.later(self._random.randint(GONE_AFTER, GONE_AFTER + LOOK_AT_LOGS), self._look_for_gone)

    def _look_at_logs(self) -> None:
        logs = self._world.kafka.logs
        for queue, reading in self._readings.items():
            if reading.log is not None and queue in logs and reading.log is not logs[queue]:
                self._end()

    def _look_for_gone(self) -> None:
        for queue, reading in self._readings.items():
            if reading.log is not None and queue not in self._world.kafka.logs:
                self._end()

    def _end(self) -> None:
        """What the lane knows is of a former log: the thread ends, and its process with it; a successor comes."""
        if self._ended:
            return
        self._ended, world, process = True, self._world, self._process
        if process.stopping or self._random.random() < 0.3:
            world.kill(process, self._random.choice((0, 30, 3_000)))
        else:
            process.stop(partial(self._succeed, process))

    def _restart(self) -> None:
        """A queue without which the lane goes on was made: the process drains, and starts again to read it."""
        self._ended = True
        if not self._process.stopping:
            self._process.stop(partial(self._succeed, self._process))

    def _succeed(self, process: Process) -> None:
        self._world.retire(process)
        self._world.start(at_once=True)

    def _cut(self, queue: Partition, epoch: int, end: int) -> None:
        assert self._host.lane.queues is not None
        self._host.lane.queues.cut(queue, epoch, end, self._process.now())

    def _read(self, run: FetchedRecords, caught_up: bool) -> None:
        assert self._host.lane.queues is not None
        self._host.lane.queues.read(run, self._process.now(), caught_up=caught_up)

    def known(self, queue: Partition, epoch: int, end: int, at_hand: Sequence[Record]) -> None:
        self._at_hand |= {(queue, record.offset): record for record in at_hand if self._random.random() < 0.7}
        self._process.later(self._random.choice((0, 5, 200)), partial(self._know, queue, epoch, end))

    def _know(self, queue: Partition, epoch: int, end: int) -> None:
        if (reading := self._readings.get(queue)) is None or reading.epoch != epoch:
            return
        reading.known_to = max(reading.known_to, end)
        if reading.caught_up and reading.position < end and end % 3 == 0:
            reading.position = end  # it goes on behind what the lane knows without reading it, as it writes in masses
            self._look_soon(queue, reading)

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        self._host.acts += 1
        self._process.later(self._random.choice((1, 5, 200)), partial(self._fetch, queue, epoch, offset))

    def _fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        if self._ended or self._readings.get(queue) is None:
            return
        if (log := self._log(queue)) is None:
            self._process.later(AGAIN, partial(self._fetch, queue, epoch, offset))
            return
        stored = next((stored for stored in log.records if stored.offset == offset), None)
        record = None if stored is None else self._record(queue, epoch, stored)
        if (at_hand := self._at_hand.pop((queue, offset), None)) is not None and at_hand.epoch == epoch:
            assert record in (None, at_hand), "what is at hand is what is read"
            record = at_hand
        self._host.on_loop(partial(self._fetched, queue, epoch, offset, record))

    def read_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        self._process.later(self._random.choice((1, 5, 200)), partial(self._read_ahead, queue, epoch, set(offsets)))

    def _read_ahead(self, queue: Partition, epoch: int, offsets: set[int]) -> None:
        reading, log = self._readings.get(queue), self._log(queue)
        if not self._ended and reading is not None and reading.epoch == epoch and log is not None:
            found = [stored for stored in log.records if stored.offset in offsets and self._random.random() < 0.7]
            self._at_hand |= {(queue, stored.offset): self._record(queue, epoch, stored) for stored in found}

    def _fetched(self, queue: Partition, epoch: int, offset: int, record: Record | None) -> None:
        assert self._host.lane.queues is not None
        self._host.lane.queues.fetched(queue, epoch, offset, record, self._process.now())

    def close(self, queue: Partition) -> None:
        self._readings.pop(queue, None)

    def _record(self, queue: Partition, epoch: int, stored: Stored) -> Record:
        policy = self._process.policy
        life, fault = read(stored.headers, policy, self._process.now().wall_ms)
        if life is not None and (why := policy.queue_fault(queue, life)):
            life, fault = None, f"bad-header: {why}"
        weight = weight_of(stored.key, stored.value, stored.headers, life)
        return Record(
            queue, stored.offset, epoch, stored.appended, stored.key, stored.value, stored.headers, life, fault, weight
        )
