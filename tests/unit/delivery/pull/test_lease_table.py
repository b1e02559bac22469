"""The lease table: who may be received, which verdict counts, what a late one is told, on a clock of plain numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reconsume.sidecar.core.outcome import Outcome
from reconsume.sidecar.core.record import NEVER, RECORD_COST, Now, Partition, Record
from reconsume.sidecar.delivery.pull.lease_table import HandleStatus, Lease, LeaseEnd, LeaseTable
from tests.sim.samples import ORDERS, record

OTHER = Partition("orders", 1)
VERDICTS = (LeaseEnd.ACKED, LeaseEnd.NACKED, LeaseEnd.RETRIED, LeaseEnd.CONDEMNED, LeaseEnd.RELEASED)
PLENTY = 1 << 30


def reply(_record: Record, _outcome: Outcome, _now: Now) -> None:
    """Nobody is told here."""


def filled(*offsets: int, remembered: int = 1024) -> LeaseTable:
    table = LeaseTable(remembered)
    for offset in offsets:
        table.add_ready(record(offset), reply)
    return table


def offsets(leases: Iterable[Lease]) -> list[int]:
    return [lease.record.offset for lease in leases]


def test_records_are_received_in_the_order_in_which_they_became_ready() -> None:
    table = filled(5, 3, 4)
    assert offsets(table.lease_records(2, PLENTY, 100, 0)) == [5, 3]
    assert offsets(table.lease_records(2, PLENTY, 100, 0)) == [4]
    assert table.lease_records(2, PLENTY, 100, 0) == []


def test_a_receive_stops_before_the_record_that_would_make_it_too_heavy() -> None:
    table = filled(0, 1, 2)  # of RECORD_COST + 2 bytes each
    assert offsets(table.lease_records(9, 2 * RECORD_COST + 4, 100, 0)) == [0, 1]


def test_a_record_that_is_too_heavy_by_itself_is_received_alone() -> None:
    table = filled(0, 1)
    assert offsets(table.lease_records(9, 1, 100, 0)) == [0]
    assert offsets(table.lease_records(9, 1, 100, 0)) == [1]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_verdict_ends_a_lease_once_and_is_harmless_twice(verdict: LeaseEnd) -> None:
    table = filled(0)
    (lease,) = table.lease_records(1, PLENTY, 100, 0)
    assert table.settle(lease.number, verdict) == (HandleStatus.OK, lease)
    assert table.settle(lease.number, verdict) == (HandleStatus.OK, None)
    assert table.expire(1_000) == []
    assert len(table) == 0


@pytest.mark.parametrize("first", VERDICTS)
@pytest.mark.parametrize("second", VERDICTS)
def test_another_verdict_for_a_settled_lease_is_fenced(first: LeaseEnd, second: LeaseEnd) -> None:
    table = filled(0)
    (lease,) = table.lease_records(1, PLENTY, 100, 0)
    table.settle(lease.number, first)
    told = HandleStatus.OK if first is second else HandleStatus.FENCED
    assert table.settle(lease.number, second) == (told, None)


def test_a_lease_ends_by_itself_exactly_when_its_time_is_over() -> None:
    table = filled(0)
    (lease,) = table.lease_records(1, PLENTY, 100, 50)
    assert table.next_end == 150
    assert table.expire(149) == []
    assert table.expire(150) == [lease]
    assert table.settle(lease.number, LeaseEnd.ACKED) == (HandleStatus.EXPIRED, None)
    assert table.change(lease.number, 100, 160) is HandleStatus.EXPIRED
    assert table.next_end == NEVER


def test_a_changed_lease_runs_from_the_call_on_under_a_new_number() -> None:
    table = filled(0)
    (old,) = table.lease_records(1, PLENTY, 100, 0)
    new = table.change(old.number, 500, 90)
    assert isinstance(new, Lease)
    assert (new.record, new.until) == (old.record, 590)
    assert table.expire(589) == []
    assert table.settle(old.number, LeaseEnd.ACKED) == (HandleStatus.FENCED, None)
    assert table.change(old.number, 500, 100) is HandleStatus.FENCED
    assert table.settle(new.number, LeaseEnd.ACKED) == (HandleStatus.OK, new)


def test_a_changed_lease_may_be_made_shorter() -> None:
    table = filled(0)
    (old,) = table.lease_records(1, PLENTY, 10_000, 0)
    new = table.change(old.number, 10, 0)
    assert isinstance(new, Lease)
    assert table.expire(10) == [new]


def test_an_acked_lease_cannot_be_changed() -> None:
    table = filled(0)
    (lease,) = table.lease_records(1, PLENTY, 100, 0)
    table.settle(lease.number, LeaseEnd.ACKED)
    assert table.change(lease.number, 100, 1) is HandleStatus.FENCED
    assert len(table) == 0


def two_partitions() -> tuple[LeaseTable, list[Lease]]:
    table = LeaseTable(1024)
    for offset, source in ((0, ORDERS), (1, OTHER), (2, ORDERS), (3, OTHER)):
        table.add_ready(record(offset, source=source), reply)
    return table, table.lease_records(2, PLENTY, 100, 0)


def test_what_nobody_has_received_of_a_revoked_partition_comes_back_and_its_leases_go_on() -> None:
    table, (mine, _) = two_partitions()
    assert [waiting.record.offset for waiting in table.recall([ORDERS], lost=False)] == [2]
    assert offsets(table.lease_records(9, PLENTY, 100, 0)) == [3]
    assert table.settle(mine.number, LeaseEnd.ACKED) == (HandleStatus.OK, mine)


def test_the_leases_of_a_lost_partition_are_fenced() -> None:
    table, (mine, others) = two_partitions()
    assert sorted(waiting.record.offset for waiting in table.recall([ORDERS], lost=True)) == [0, 2]
    for verdict in VERDICTS:
        assert table.settle(mine.number, verdict) == (HandleStatus.FENCED, None)
    assert table.change(mine.number, 100, 0) is HandleStatus.FENCED
    assert table.expire(1_000) == [others]


def test_a_lease_that_was_acked_before_its_partition_was_lost_stays_acked() -> None:
    table, (mine, _) = two_partitions()
    table.settle(mine.number, LeaseEnd.ACKED)
    table.recall([ORDERS], lost=True)
    assert table.settle(mine.number, LeaseEnd.ACKED) == (HandleStatus.OK, None)


def test_a_lease_forgotten_long_ago_is_told_to_have_expired() -> None:
    """Whether it was acked nobody knows any more; that it is over is certain, and ok could hide a failure."""
    table = filled(0, 1, 2, remembered=2)
    leases = table.lease_records(3, PLENTY, 100, 0)
    for lease in leases:
        table.settle(lease.number, LeaseEnd.ACKED)
    told = [table.settle(lease.number, LeaseEnd.ACKED)[0] for lease in leases]
    assert told == [HandleStatus.EXPIRED, HandleStatus.OK, HandleStatus.OK]


def test_a_lease_older_than_the_memory_still_counts_while_it_is_out() -> None:
    table = filled(*range(5), remembered=2)
    first, *_ = table.lease_records(5, PLENTY, 100, 0)
    assert table.settle(4, LeaseEnd.NACKED)[0] is HandleStatus.OK
    assert table.settle(first.number, LeaseEnd.ACKED) == (HandleStatus.OK, first)
    assert (
        table.settle(4, LeaseEnd.ACKED)[0] is HandleStatus.FENCED
    )  # the old one's end is not written over the new one's


def test_answered_leases_of_hours_do_not_pile_up() -> None:
    table = LeaseTable()
    for offset in range(10_000):
        table.add_ready(record(offset), reply)
        (lease,) = table.lease_records(1, PLENTY, 43_200_000, offset)
        table.settle(lease.number, LeaseEnd.ACKED)
    assert len(table._ends) < 100


class Model(RuleBasedStateMachine):
    """The table beside a naive one that keeps everything for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(1 << 16)
        self.now = 0
        self.ready: list[Record] = []
        self.until: dict[int, tuple[int, Record]] = {}
        self.over: dict[int, LeaseEnd] = {}
        self.made = 0

    @rule(partition=st.integers(0, 2))
    def becomes_ready(self, partition: int) -> None:
        one = record(self.made, source=Partition("orders", partition))
        self.made += 1
        self.ready.append(one)
        self.table.add_ready(one, reply)

    @rule(most=st.integers(1, 5), invisible=st.integers(1, 50))
    def receive(self, most: int, invisible: int) -> None:
        leases = self.table.lease_records(most, PLENTY, invisible, self.now)
        assert [lease.record for lease in leases] == self.ready[:most]
        del self.ready[:most]
        self.until.update({lease.number: (lease.until, lease.record) for lease in leases})

    @precondition(lambda self: self.until or self.over)
    @rule(data=st.data(), verdict=st.sampled_from(VERDICTS))
    def settle(self, data: st.DataObject, verdict: LeaseEnd) -> None:
        number = data.draw(st.sampled_from([*self.until, *self.over]))
        status, lease = self.table.settle(number, verdict)
        if number in self.until:
            assert (status, lease and lease.record) == (HandleStatus.OK, self.until.pop(number)[1])
            self.over[number] = verdict
        else:
            assert (status, lease) == (self.told(number, verdict), None)

    @precondition(lambda self: self.until or self.over)
    @rule(data=st.data(), invisible=st.integers(1, 50))
    def change(self, data: st.DataObject, invisible: int) -> None:
        number = data.draw(st.sampled_from([*self.until, *self.over]))
        changed = self.table.change(number, invisible, self.now)
        if number in self.over:
            assert changed is self.told(number, None)
            return
        assert isinstance(changed, Lease)
        assert changed.number not in {*self.until, *self.over}
        self.until[changed.number] = (self.now + invisible, self.until.pop(number)[1])
        self.over[number] = LeaseEnd.FENCED

    @rule(ms=st.integers(0, 40))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        due = {number for number, (until, _) in self.until.items() if until <= self.now}
        assert {lease.number for lease in self.table.expire(self.now)} == due
        for number in due:
            del self.until[number]
            self.over[number] = LeaseEnd.EXPIRED

    @rule(partition=st.integers(0, 2), lost=st.booleans())
    def recall(self, partition: int, lost: bool) -> None:
        source = Partition("orders", partition)
        back = {one.offset for one in self.ready if one.source == source}
        self.ready = [one for one in self.ready if one.source != source]
        for number, (_, one) in list(self.until.items()) if lost else ():
            if one.source == source:
                back.add(one.offset)
                self.over[number] = LeaseEnd.FENCED
                del self.until[number]
        found = self.table.recall([source], lost=lost)
        assert sorted(waiting.record.offset for waiting in found) == sorted(back)

    def told(self, number: int, verdict: LeaseEnd | None) -> HandleStatus:
        fate = self.over[number]
        if fate is verdict:
            return HandleStatus.OK
        return HandleStatus.EXPIRED if fate is LeaseEnd.EXPIRED else HandleStatus.FENCED

    @invariant()
    def the_first_end_is_never_overslept(self) -> None:
        assert len(self.table) == len(self.until)
        assert self.table.next_end <= min((until for until, _ in self.until.values()), default=NEVER)


TestModel = Model.TestCase


@given(st.lists(st.integers(1, 1_000), max_size=200))
def test_leases_end_in_the_order_of_their_ends(invisible: list[int]) -> None:
    table = filled(*range(len(invisible)))
    for length in invisible:
        table.lease_records(1, PLENTY, length, 0)
    assert [lease.until for lease in table.expire(1_000)] == sorted(invisible)
