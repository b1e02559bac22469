"""A model of a lane's committer: one batch at a time, into the model of Kafka, with all that may end a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from reconsume.sidecar.core.commit_batch import CommitBatch, CommitResult, Refusal, SettledRecord, WrittenAt
from reconsume.sidecar.core.progress_codec import decode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.committer.committer import (
    UNNAMED,
    _apart,
    _fenced,
    _refused,
    _without,
    result_from_progress,
    written_progress,
)
from reconsume.sidecar.kafka.consumer.membership import Membership
from tests.sim.transactions import LateEnd, LateOffsets, Offsets, TransactionalId

if TYPE_CHECKING:
    from tests.sim.process import LaneHost

AGAIN_AFTER = 100
AWAIT_MEMBERSHIP = 1_000
LOOK = 50
LATE_AFTER = (50, 2_000, 9_000)
"""ms after which the first copy of a request arrives that was sent again: the kernel repeats it with its back-off."""
SENT_AGAIN_AFTER = (300, 2_500, 4_000)
"""ms that a transaction takes longer if one of its requests was sent again."""


class CommitterModel:
    """The committer of one lane in one process."""

    def __init__(self, host: LaneHost) -> None:
        self._host, self._process = host, host.process
        self._world, self._kafka, self._random = host.world, host.world.kafka, host.world.random
        self._late: list[tuple[TransactionalId, LateEnd | LateOffsets]] = []
        """Requests of former times that arrive in the midst of a transaction."""
        self._made = 0
        self._identity = self._prepared()

    def _prepared(self) -> TransactionalId:
        """Another transactional id, with a producer."""
        identity = TransactionalId(self._kafka, self._host.group, forgetful=self._world.plan.forgetful)
        identity.prepare()
        self._made += 1
        return identity

    def submit(self, batch: CommitBatch) -> None:
        """Start a batch (port `Commit`)."""
        self._unnamed = 0
        self._process.later(self._random.choice((0, 5, 40)) + self._world.hang, partial(self._try, batch))

    def _try(self, batch: CommitBatch) -> None:
        membership = self._host.assignment.membership
        if membership is None or (fenced := _fenced(batch, membership)):
            self._report(_without(batch, frozenset(batch.commits) if membership is None else fenced))
        elif refusals := self._refusals(batch):
            self._report(_refused(batch, refusals))
        elif batch.notes and batch.notes[0].topic in self._kafka.refusing:
            self._report(CommitResult(batch, committed=False, again=batch.entries, notes_refused="refused"))
        elif any(source not in self._kafka.logs for source in batch.commits):
            self._unnamed += 1
            self._report(_apart(batch, "?")) if self._unnamed >= UNNAMED and batch.entries else self._again(batch)
        elif self._host.coordinator.refusal(membership.metadata):
            self._host.lane.member_refused()
            self._await_membership(batch, membership, self._world.steady_ms + AWAIT_MEMBERSHIP)
        else:
            self._transact(batch, membership)

    def _again(self, batch: CommitBatch, took: int = 0) -> None:
        self._process.later(AGAIN_AFTER + took, partial(self._try, batch))

    def _await_membership(self, batch: CommitBatch, old: Membership, end: int) -> None:
        self._host.ask_membership()
        if self._host.assignment.membership is not old or self._world.steady_ms >= end:
            self._try(batch)
        else:
            self._process.later(LOOK, partial(self._await_membership, batch, old, end))

    def _refusals(self, batch: CommitBatch) -> tuple[Refusal, ...]:
        found = (self._refusal(entry) for entry in batch.entries)
        return tuple(refusal for refusal in found if refusal is not None)

    def _refusal(self, entry: SettledRecord) -> Refusal | None:
        kafka = self._kafka
        for copy in entry.writes:
            narrow = copy.exact and copy.spread >= kafka.sizes.get(copy.topic, 0)
            if copy.topic in kafka.refusing or copy.topic not in kafka.sizes or narrow:
                return Refusal(entry, "topic", "missing", copy.topic)
            if not kafka.logs[place := kafka.target(copy)].takes:
                return Refusal(entry, "partition", "no leader", str(place))
        too_large = entry.writes and entry.record.id in self._world.oversized
        return Refusal(entry, "record", "too large", entry.writes[0].topic) if too_large else None

    def _transact(self, batch: CommitBatch, membership: Membership) -> None:
        fate = self._random.choices(("commit", "abort", "unknown"), self._world.plan.fates)[0]
        commits = fate == "commit" or (fate == "unknown" and self._random.random() < 0.5)
        offsets = {source: decode(source, *said) for source, said in written_progress(batch).items()}
        identity, epoch = self._identity, self._identity.epoch
        ends = {source: log.end for source, log in self._kafka.logs.items()}
        identity.write(copy for entry in batch.entries for copy in entry.writes)
        identity.write(batch.notes)
        self._late_ones_arrive()
        identity.add_group()
        identity.take_offsets(epoch, offsets)
        self._late_ones_arrive()
        if identity.end(epoch, commits=commits):
            fate = "unknown"  # fatal for the client: the transaction has ended, and not so
        elif commits:
            self._world.resetting.committed(batch)
        refusal = partial(self._host.coordinator.refusal, membership.metadata)
        took = self._send_twice(commits, offsets, refusal) if self._world.losses else 0
        if fate == "commit":
            located = self._located(batch, ends)
            result = CommitResult(batch, True, done=batch.entries, located=located, producer=self._made)
            self._report(result, took)
        elif fate == "abort":
            self._again(batch, took)
        else:
            self._process.later(self._random.choice((10, 800)) + took, partial(self._ask_kafka, batch))

    def _located(self, batch: CommitBatch, ends: Mapping[Partition, int]) -> dict[int, WrittenAt]:
        """Where copies of a batch lie in queues behind the former ends of their logs; now and then of some nothing is
        said."""
        located = dict[int, WrittenAt]()
        lying = {source: iter(log.after(ends[source], 1 << 31)) for source, log in self._kafka.logs.items()}
        for index, entry in enumerate(batch.entries):
            if entry.writes and (copy := entry.writes[0]).exact:
                target = self._kafka.target(copy)
                stored = next(one for one in lying[target] if one.headers == copy.headers)
                if self._random.random() < 0.95:
                    located[index] = stored.offset, stored.appended
        return {} if located and self._random.random() < 0.2 else located

    # --- requests that come late -------------------------------------------------------------------------------------

    def _send_twice(self, commits: bool, offsets: Offsets, refusal: Callable[[], str]) -> int:
        """A request of the transaction that has just ended may have been sent twice; how many ms that took."""
        if self._random.random() < 0.3:
            return 0
        identity, epoch = self._identity, self._identity.epoch
        ends = self._random.random() < 0.7
        late = LateEnd(epoch, commits) if ends else LateOffsets(epoch, offsets, refusal)
        self._world.later(self._random.choice(LATE_AFTER), partial(self._come_late, identity, late))
        if self._world.plan.guard:
            identity.prepare()
        if self._world.plan.guard == "id":
            self._identity = self._prepared()
        return self._random.choice(SENT_AGAIN_AFTER)

    def _come_late(self, identity: TransactionalId, late: LateEnd | LateOffsets) -> None:
        """Arrive now, between two transactions, or in the midst of one that follows."""
        if self._random.random() < 0.2:
            identity.come(late)
        else:
            self._late.append((identity, late))

    def _late_ones_arrive(self) -> None:
        while self._late and self._random.random() < 0.7:
            identity, late = self._late.pop(0)
            identity.come(late)

    # --- how it ends -------------------------------------------------------------------------------------------------

    def _ask_kafka(self, batch: CommitBatch) -> None:
        self._identity.prepare()
        found = {source: self._kafka.progress(self._host.group, source) for source in batch.commits}
        result = result_from_progress(batch, found)
        if result is None:
            self._try(batch)
        else:
            self._report(result)

    def _report(self, result: CommitResult, took: int = 0) -> None:
        self._process.later(
            self._random.choice((0, 3, 60)) + took, lambda: self._host.lane.committed(result, self._process.now())
        )
