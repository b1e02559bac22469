"""Who reads the retries of a group, by the control log alone: every pair of readers, in both orders."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from reconsume.topics.agreement import SILENT_AFTER
from reconsume.topics.ownership import CLAIM_LIVES, Kind, Reader, Readers, key_of, reader_of
from reconsume.topics.policy_record import (
    InstanceHeard,
    OwnerHeard,
    QueryTold,
    SubscriptionRecord,
    instance_key,
    parse_record,
    render_record,
)

AT = 1_763_690_000_000


def query(name: str = "ship", nonce: str = "1", *, gated: bool = True, renewed: bool = False) -> SubscriptionRecord:
    told = QueryTold(name, "app-1", "host-1", AT, nonce, gated=gated, renewed=renewed)
    return SubscriptionRecord({"orders": "*"}, AT, mode="spark", query=told)


def sidecar(mode: str = "push") -> SubscriptionRecord:
    return SubscriptionRecord({"orders": "*"}, AT, mode=mode)


def write(readers: Readers, record: SubscriptionRecord, at: int, instance: str = "pod-1") -> Reader | None:
    """Write a heartbeat as its reader does, and return who reads instead of it."""
    key = instance_key(instance) if record.query is None else key_of(record.query)
    heard = parse_record(key, render_record(record))
    assert isinstance(heard, InstanceHeard | OwnerHeard)
    readers.hear(heard, at)
    return readers.in_place_of(reader_of(instance, record, at))


ALL = {
    "gated": (query("gated"), "spark/gated"),
    "other gated": (query("other"), "spark/other"),
    "relay query": (query("relay", gated=False), "spark/relay"),
    "other relay query": (query("relay-2", gated=False), "spark/relay-2"),
    "relay sidecar": (sidecar("relay"), "pod-r"),
    "push sidecar": (sidecar("push"), "pod-1"),
    "pull sidecar": (sidecar("pull"), "pod-2"),
}
TOGETHER = {
    frozenset({"relay query", "relay sidecar"}),
    frozenset({"other relay query", "relay sidecar"}),
    *(frozenset(pair) for pair in itertools.combinations(("relay sidecar", "push sidecar", "pull sidecar"), 2)),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ALL, 2)))
def test_of_two_readers_the_first_reads_and_the_second_only_where_they_share(first: str, second: str) -> None:
    (one, name), (two, other) = ALL[first], ALL[second]
    readers = Readers()
    assert write(readers, one, AT, name) is None
    instead = write(readers, two, AT + 1, other)
    shares = frozenset({first, second}) in TOGETHER
    assert (None if instead is None else instead.instance) == (None if shares else name)
    assert [reader.instance for reader in readers.live(AT + 2)] == sorted([name, other] if shares else [name])
    assert write(readers, one, AT + 15_000, name) is None, "a renewal of the first one counts in any case"


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ALL, 2)))
def test_a_reader_that_is_silent_counts_for_60_s_if_it_is_gated_and_otherwise_for_180_s(
    first: str, second: str
) -> None:
    (one, name), (two, other) = ALL[first], ALL[second]
    lives = CLAIM_LIVES if reader_of(name, one, AT).kind is Kind.GATED else SILENT_AFTER
    if frozenset({first, second}) in TOGETHER:
        return
    readers = Readers()
    write(readers, one, AT, name)
    assert write(readers, two, AT + lives - 1, other) is not None
    assert write(readers, two, AT + lives, other) is None
    instead = write(readers, one, AT + lives + 1, name)
    assert instead is not None
    assert instead.instance == other, "who comes back finds the other one"


@pytest.mark.parametrize("gated", [True, False])
def test_the_later_start_of_a_name_takes_the_place_of_the_earlier_which_finds_it(gated: bool) -> None:
    readers = Readers()
    write(readers, query(gated=gated), AT)
    assert write(readers, query(nonce="2", gated=not gated), AT + 1) is None
    [live] = readers.live(AT + 2)
    assert live.query is not None
    assert live.query.nonce == "2"
    assert readers.in_place_of(reader_of("", query(gated=gated), AT)) == live
    assert write(readers, query(gated=gated, renewed=True), AT + 3) == live, "a renewal that did not look first"
    assert write(readers, query(nonce="2", gated=not gated, renewed=True), AT + 15_000) is None


@pytest.mark.parametrize("gated", [True, False])
def test_only_the_start_that_reads_can_say_that_its_query_has_ended(gated: bool) -> None:
    readers = Readers()
    first, second = query(gated=gated), query(nonce="2", gated=gated)
    for number, one in enumerate((first, second)):
        write(readers, one, AT + number)
    assert first.query is not None
    assert second.query is not None
    write(readers, replace(first, query=replace(first.query, ended=True)), AT + 2)
    assert [reader.instance for reader in readers.live(AT + 3)] == ["spark/ship"]
    write(readers, replace(second, query=replace(second.query, ended=True)), AT + 4)
    assert readers.live(AT + 5) == readers.queries() == []
    assert write(readers, sidecar(), AT + 6) is None


def test_a_refused_reader_keeps_nobody_out_and_a_record_under_a_wrong_key_claims_nothing() -> None:
    readers = Readers()
    write(readers, query(), AT)
    write(readers, sidecar(), AT + 1)
    readers.hear(InstanceHeard("spark/ship", None), AT + 2)
    assert write(readers, query("other"), AT + 3) is None, "neither the refused sidecar nor the deleted claim counts"
    readers.hear(OwnerHeard(sidecar()), AT + 4)
    readers.hear(OwnerHeard(query("third", gated=False)), AT + 5)
    readers.hear(OwnerHeard(None), AT + 6)
    assert [reader.instance for reader in readers.live(AT + 7)] == ["spark/other"]


def test_a_reader_is_described_by_what_it_is_and_where() -> None:
    assert reader_of("", query(), AT).described == 'the Spark query "ship" (host host-1, application app-1)'
    assert reader_of("pod-1", sidecar(), AT).described == "the sidecar pod-1"
