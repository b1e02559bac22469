"""The audit's file: facts come back record by record, floods are cut, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reconsume.sidecar.audit.facts import Fact, FactKind, position_of
from reconsume.sidecar.audit.store import LARGEST_STORY, AuditStore, Table
from reconsume.sidecar.errors import BrokerError


def fact(identity: str, offset: int = 0) -> Fact:
    return Fact(FactKind.COPY, identity, 0, 1, "billing-RETRY-1s", 0, offset, 5, reason="http-500", digest=b"\x00" * 16)


def test_facts_come_back_by_record() -> None:
    with AuditStore() as store:
        store.put([fact("orders:0:2"), fact("orders:0:1"), fact("orders:0:2", 1)])
        store.arrange()
        store.put([fact("orders:0:1", 7)])
        found = list(store.by_record())
    assert [[one.offset for one in facts] for facts in found] == [[0, 7], [0, 1]]
    assert found[0][0] == fact("orders:0:1")


def test_records_that_are_spoken_of_are_known_by_partition_in_rising_order() -> None:
    with AuditStore() as store:
        store.put(fact(identity) for identity in ("orders:1:10", "orders:1:9", "orders:0:3", "other:0:1"))
        store.arrange()
        assert store.want(["orders"]) == {("orders", 0): (3, 3), ("orders", 1): (9, 10)}
        assert list(store.wanted(("orders", 1))) == [9, 10]
        assert store.deleted(("orders", 1), 10) == 1


def test_a_flood_of_one_record_is_cut_and_named() -> None:
    with AuditStore() as store:
        store.put(fact("orders:0:1", number) for number in range(LARGEST_STORY + 5))
        store.put([fact("orders:0:2")])
        store.arrange()
        assert [len(facts) for facts in store.by_record()] == [LARGEST_STORY, 1]
        assert store.cut == ["orders:0:1"]


def test_outputs_are_kept_apart_and_found_beside_the_facts_of_their_record() -> None:
    with AuditStore() as store:
        store.put([fact("orders:0:1"), fact("orders:0:1", 1), fact("orders:0:3")])
        store.put([fact("orders:0:2", 5), fact("orders:0:1", 6)], Table.OUTPUT)
        store.arrange()
        assert [[one.offset for one in outputs] for outputs in store.by_record(Table.OUTPUT)] == [[6], [5]]
        assert [one.offset for one in store.facts_of("orders:0:1")] == [0, 1]
        assert store.facts_of("orders:0:2") == []
        assert store.count() == 2
        assert store.want(["orders"]) == {("orders", 0): (1, 3)}
        assert list(store.wanted(("orders", 0))) == [1, 3]


def test_what_came_before_reading_failed_is_kept() -> None:
    def failing() -> Iterator[Fact]:
        yield fact("orders:0:1")
        raise BrokerError("away")

    with AuditStore() as store:
        with pytest.raises(BrokerError):
            store.put(failing(), Table.OUTPUT)
        store.put([fact("orders:0:2")])
        assert [len(list(facts)) for facts in (store.by_record(), store.by_record(Table.OUTPUT))] == [1, 1]


def test_nothing_is_left_behind_however_it_ends() -> None:
    store = AuditStore()
    store.put([fact("orders:0:1")])
    assert any(store.folder.iterdir())
    with pytest.raises(KeyboardInterrupt), store:
        raise KeyboardInterrupt
    assert not store.folder.exists()


def test_an_id_is_split_from_its_end() -> None:
    assert position_of("a:b:1:2") == ("a:b", 1, 2)


def test_as_many_facts_as_are_looked_at_are_no_flood() -> None:
    with AuditStore() as store:
        store.put(fact("orders:0:1", number) for number in range(LARGEST_STORY))
        store.arrange()
        assert [len(facts) for facts in store.by_record()] == [LARGEST_STORY]
        assert store.cut == []


def test_records_are_counted_once_however_many_facts_there_are_of_them() -> None:
    with AuditStore() as store:
        store.put([fact("orders:0:2"), fact("orders:0:1"), fact("orders:0:2", 1)])
        store.arrange()
        assert store.count() == 2
