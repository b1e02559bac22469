"""What a bounded read takes and where it ends, whatever the client hands over."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaError, TopicPartition

from reconsume.sidecar.errors import BrokerError
from reconsume.sidecar.kafka import scan
from reconsume.sidecar.kafka.admin.cluster import DeniedError
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.scan import Bounds, Fetches, Scan, ScanClient, UntilGap, partition_of

EOF = KafkaError._PARTITION_EOF
A, B = ("orders", 0), ("orders", 1)
PATIENT = Bounds(patience=5.0)


class Client:
    """Hands over what it was given, one message at a time, and notes what it is told to do."""

    def __init__(self, *messages: Any, begin: int = 0) -> None:
        self.messages = list(messages)
        self.begin = begin
        self.told: list[tuple[str, int, int]] = []
        self.closed = self.unassigned = False

    def consume(self, most: int, timeout: float) -> list[Any]:
        return [self.messages.pop(0)] if self.messages and most == 1 else []

    def unassign(self) -> None:
        self.unassigned = True

    def close(self) -> None:
        self.closed = True

    def get_watermark_offsets(self, _place: TopicPartition, timeout: float, cached: bool) -> tuple[int, int]:
        return self.begin, 1_000

    def __getattr__(self, name: str) -> Any:
        return lambda places=(): self.told.extend((name, place.partition, place.offset) for place in places)


def message(offset: int = -1, code: int | None = None, partition: int = 0) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(
        topic=lambda: "orders", partition=lambda: partition, offset=lambda: offset, error=lambda: error
    )


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The clients that are made, one after another."""
    made: list[Client] = []
    monkeypatch.setattr(scan, "take_client", lambda _class, _config: made.pop(0))
    return made


class MakeScan(Protocol):
    def __call__(self, client: Client, bounds: Bounds = ..., expected: str = "", **spans: tuple[int, int]) -> Scan: ...


@pytest.fixture
def scan_of(clients: list[Client]) -> MakeScan:
    """Makes a scan over this client; `p0` is the span of partition 0."""

    def make(
        client: Client,
        bounds: Bounds = PATIENT,
        expected: str = "",
        **spans: tuple[int, int],
    ) -> Scan:
        clients.append(client)
        by_partition = {("orders", int(name[1])): Span(*span) for name, span in spans.items()}
        return ScanClient({}, "g", "c").scan(by_partition, bounds, expected=expected)

    return make


def offsets(scanned: Scan) -> list[int]:
    return [found.offset() or 0 for found in scanned]


def test_each_partition_is_read_to_its_end_and_rests_then(scan_of: MakeScan) -> None:
    client = Client(message(3), message(7, partition=1), message(4), message(5), message(8, partition=1))
    scanned = scan_of(client, p0=(3, 5), p1=(7, 9), p2=(4, 4))
    assert offsets(scanned) == [3, 7, 4, 8]
    assert client.told[:2] == [("assign", 0, 3), ("assign", 1, 7)]
    assert [told[:2] for told in client.told[2:]] == [("pause", 0), ("pause", 1), ("resume", 0), ("resume", 1)]
    assert client.unassigned
    assert not scanned.left


def test_where_no_record_is_last_the_end_of_the_partition_is_the_end(scan_of: MakeScan) -> None:
    """A marker or compaction may have its place. An earlier end of the partition is not the end of the span."""
    scanned = scan_of(Client(message(0), message(1, EOF), message(5), message(9, EOF), message(9)), p0=(0, 9))
    assert offsets(scanned) == [0, 5]
    assert not scanned.left


def test_a_record_behind_the_span_is_not_taken_and_ends_it(scan_of: MakeScan) -> None:
    assert offsets(scan_of(Client(message(0), message(3)), p0=(0, 2))) == [0]


def test_no_right_on_the_group_and_no_connection_for_a_while_are_no_errors(scan_of: MakeScan) -> None:
    passing = (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    assert offsets(scan_of(Client(*(message(code=code) for code in passing), message(0)), p0=(0, 1))) == [0]


def test_an_error_that_lasts_is_raised_and_a_missing_right_named(scan_of: MakeScan) -> None:
    with pytest.raises(DeniedError, match="a right is missing: READ on topic orders"):
        offsets(scan_of(Client(message(code=KafkaError.TOPIC_AUTHORIZATION_FAILED)), p0=(0, 1)))
    with pytest.raises(BrokerError, match="topic orders cannot be read"):
        offsets(scan_of(Client(message(code=KafkaError.UNKNOWN_TOPIC_OR_PART)), p0=(0, 1)))


def test_silence_and_the_deadline_end_it_and_what_is_left_is_known(scan_of: MakeScan) -> None:
    silent = scan_of(Client(message(0)), Bounds(patience=0.05), p0=(0, 2), p1=(0, 1))
    assert offsets(silent) == [0]
    assert silent.left == {A: 1, B: 0}
    late = scan_of(Client(message(0), message(1)), Bounds(seconds=-1), p0=(0, 9))
    assert offsets(late) == [0]
    assert late.left == {A: 1}


def test_silence_is_an_error_where_the_records_are_expected(scan_of: MakeScan) -> None:
    with pytest.raises(BrokerError, match="the events could not be read on for 0 s"):
        offsets(scan_of(Client(message(0)), Bounds(patience=0.05), "the events", p0=(0, 2)))
    with pytest.raises(BrokerError, match="the events could not be read to its end within -1 s"):
        offsets(scan_of(Client(message(0)), Bounds(seconds=-1), "the events", p0=(0, 2)))
    assert offsets(scan_of(Client(message(0)), Bounds(seconds=-1), "the events", p0=(0, 1))) == [0]


def test_as_many_records_as_may_be_read_are_no_less_than_all(scan_of: MakeScan) -> None:
    cut = scan_of(Client(message(0), message(1), message(2)), Bounds(records=2), p0=(0, 9))
    assert offsets(cut) == [0, 1]
    assert cut.missing("the events topic") == "only 2 of some 9 records of the events topic were read"
    whole = scan_of(Client(message(0), message(1), message(9, EOF)), Bounds(records=2), p0=(0, 9))
    assert offsets(whole) == [0, 1]
    assert whole.missing("the events topic") == ""


def test_a_caller_who_takes_long_is_not_silence(scan_of: MakeScan) -> None:
    scanned = scan_of(Client(message(0), message(1)), Bounds(patience=0.05), p0=(0, 2))
    for _ in scanned:
        time.sleep(0.1)
    assert scanned.read == 2
    assert not scanned.left


def test_a_partition_may_be_left_early(scan_of: MakeScan) -> None:
    scanned, read = scan_of(Client(message(0), message(1), message(0, partition=1)), p0=(0, 9), p1=(0, 1)), []
    for found in scanned:
        read.append(partition_of(found))
        scanned.finish(A)
    assert read == [A, B]


@pytest.mark.parametrize(("begin", "read"), [(4, [0, 4, 5]), (6, [0])])
def test_what_retention_took_is_passed_over_and_named(scan_of: MakeScan, begin: int, read: list[int]) -> None:
    lost = message(code=KafkaError._AUTO_OFFSET_RESET)
    client = Client(message(0), lost, message(4), message(5), begin=begin)
    scanned = scan_of(client, p0=(0, 6))
    assert offsets(scanned) == read
    assert scanned.overtaken == {A: begin}
    assert (("incremental_assign", 0, begin) in client.told) is (begin < 6)


GAPS = {
    "only the last record": ([3, 5, 6], 99),
    "an aborted transaction": ([3, 6, 7], 6),
    "an aborted transaction before the first record": ([5, 6], 5),
    "many offsets": ([3, 4, 90], 90),
}


@pytest.mark.parametrize(("there", "behind"), GAPS.values(), ids=GAPS)
def test_a_reader_of_little_reads_anew_with_more_what_is_behind_a_gap(
    clients: list[Client], there: list[int], behind: int
) -> None:
    """Small fetches may bring aborted records there; larger ones do not, so that here all others are left out."""
    small = Client(*map(message, there), message(99))
    large = Client(*map(message, sorted({behind, 99})))
    clients += [small, large]
    with ScanClient({}, "g", "c", Fetches.UNTIL_GAP) as client:
        before = [offset for offset in there if offset < behind]
        assert offsets(client.scan({A: Span(3, 100)})) == [*before, *sorted({behind, 99})]
    assert not clients
    assert large.told[0] == ("assign", 0, before[-1] + 1 if before else 3)
    assert small.closed
    assert large.closed


def test_until_the_first_gap_messages_pass_one_reader_as_they_come() -> None:
    taken = UntilGap([message(4), message(6, EOF), message(7), message(9), message(10)], {A: 4})
    assert [found.offset() for found in taken] == [4, 6]
    assert taken.met
    whole = UntilGap([message(4), message(6), message(2, partition=1)], {A: 4})
    assert len(list(whole)) == 3
    assert not whole.met
