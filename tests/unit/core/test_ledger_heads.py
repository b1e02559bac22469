"""Which head of a ledger may go out, whatever comes between: the time, main records, a lower one of its key."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.key_lines import Identity, WaitingEntry
from reconsume.sidecar.core.ledger import KeyLedger, QueuedCopy
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order

KEY = b"k"
LOW, HIGH = (3, 1), (7, 1)


def copy(identity: Identity = HIGH, offset: int = 0, *, times: int = 1, due: int = 0, key: bytes = KEY) -> QueuedCopy:
    return QueuedCopy(offset, identity, key, Order(identity[0]), Attempt(0, 0, times), due)


def idle(_key: bytes) -> bool:
    return False


def ledger_of(*copies: QueuedCopy) -> KeyLedger:
    ledger = KeyLedger()
    for one in copies:
        assert ledger.read(one) == []
    return ledger


def asked(ledger: KeyLedger, read_to: int = NEVER, steady: int = 0) -> list[Identity]:
    """The heads that go out now."""
    ledger.heads.advance(steady, read_to, idle)
    out: list[WaitingEntry] = []
    while (entry := ledger.ask(idle)) is not None:
        out.append(entry)
    ledger.check()
    return [entry.identity for entry in out]


def test_a_head_goes_out_as_soon_as_main_was_read_up_to_it() -> None:
    ledger = ledger_of(copy(HIGH, 0), copy((9, 1), 1, key=b"j"))
    assert asked(ledger, 6) == []
    assert asked(ledger, 7) == [HIGH]
    assert asked(ledger, 8) == []
    assert ledger.heads.waits_for_main()
    assert asked(ledger, 9) == [(9, 1)]
    assert not ledger.heads.waits_for_main()


def test_heads_go_out_in_the_order_of_their_due_times() -> None:
    ledger = ledger_of(*(copy((at, 1), at, due=due, key=b"%d" % at) for at, due in enumerate((50, 10, 30, 90))))
    assert ledger.heads.next_at() == 10
    assert asked(ledger, steady=60) == [(1, 1), (2, 1), (0, 1)]
    assert ledger.heads.next_at() == 90


def test_a_head_that_was_to_go_out_waits_if_main_goes_back_before_it() -> None:
    ledger = ledger_of(copy())
    ledger.heads.advance(0, NEVER, idle)
    ledger.heads.advance(0, 5, idle)
    assert ledger.ask(idle) is None
    assert asked(ledger, 7) == [HIGH]


def test_a_head_that_was_to_go_out_waits_for_a_main_record_that_has_begun_meanwhile() -> None:
    ledger = ledger_of(copy())
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.ask(lambda key: key == KEY) is None
    assert ledger.ask(idle) is None, "nobody has said that the main record has ended"
    ledger.heads.main_ended(KEY)
    assert asked(ledger) == [HIGH]


@pytest.mark.parametrize("advanced", [True, False])
def test_a_lower_one_of_its_key_goes_before_a_head_that_was_to_go_out(advanced: bool) -> None:
    ledger = ledger_of(copy(HIGH, 0))
    if advanced:
        ledger.heads.advance(0, NEVER, idle)
    assert ledger.read(copy(LOW, 1)) == []
    assert asked(ledger) == [LOW]
    assert ledger.taken(LOW, 1)
    assert ledger.done(LOW) == []
    assert asked(ledger) == [HIGH]


def test_a_key_whose_head_ends_before_it_is_asked_for_is_free() -> None:
    ledger = ledger_of(copy())
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.done(HIGH) == [0], "nobody takes the copy"
    assert asked(ledger) == []
    assert (len(ledger), len(ledger.lines.by_key)) == (0, 0)


def test_a_head_that_ends_while_it_waits_for_main_records_does_not_come_back() -> None:
    ledger = ledger_of(copy())
    ledger.heads.advance(0, NEVER, lambda key: True)
    ledger.done(HIGH)
    ledger.heads.main_ended(KEY)
    assert asked(ledger) == []


def test_the_end_of_main_records_of_another_key_frees_nothing() -> None:
    ledger = ledger_of(copy())
    ledger.heads.advance(0, NEVER, lambda key: True)
    ledger.heads.main_ended(b"other")
    assert asked(ledger) == []


@pytest.mark.parametrize("taken", [True, False])
def test_a_head_that_is_let_go_goes_out_again(taken: bool) -> None:
    ledger = ledger_of(copy())
    for _ in range(2):
        assert asked(ledger) == [HIGH]
        if taken:
            assert ledger.taken(HIGH, 0)
        ledger.put_back(HIGH)


def test_what_is_not_out_cannot_be_let_go() -> None:
    ledger = ledger_of(copy(HIGH, 0, due=5), copy((8, 1), 1))
    for identity in (HIGH, (8, 1), (9, 1)):
        ledger.put_back(identity)
    assert asked(ledger, steady=5) == [HIGH]


def test_a_record_that_is_taken_aside_is_the_only_one_of_its_key_that_is_out() -> None:
    ledger = ledger_of(copy(LOW, 0), copy(HIGH, 1), copy((9, 1), 2, key=b"j"))
    low, high, other = ledger.lowest(9)
    assert ledger.take_aside(high)
    assert not ledger.take_aside(low)
    assert ledger.take_aside(other)
    assert asked(ledger) == []
    assert ledger.taken(HIGH, 1)
    ledger.put_back(HIGH)
    assert asked(ledger) == [LOW]


def test_a_head_that_was_taken_aside_and_let_go_goes_out() -> None:
    ledger = ledger_of(copy())
    (head,) = ledger.lowest(1)
    assert ledger.take_aside(head)
    ledger.put_back(HIGH)
    assert asked(ledger) == [HIGH]


def test_a_head_that_is_written_again_goes_out_once_its_copy_was_read() -> None:
    ledger = ledger_of(copy(LOW, 0), copy(HIGH, 1))
    (head,) = ledger.lowest(1)
    ledger.take_aside(head)
    ledger.taken(LOW, 0)
    ledger.writing(LOW, KEY, Order(3), Attempt(0, 0, 1))
    assert ledger.written(LOW) == []
    assert asked(ledger) == [], "the next of its key does not pass it"
    assert ledger.read(copy(LOW, 2)) == []
    assert asked(ledger) == [LOW]


def test_the_lowest_are_those_that_lie_first_and_are_not_out() -> None:
    copies = [copy((9 - at, 1), at, key=b"%d" % at) for at in (5, 1, 3, 2)]
    ledger = ledger_of(*copies)
    assert [entry.offset for entry in ledger.lowest(2)] == [1, 2]
    ledger.take_aside(ledger.lowest(1)[0])
    assert [entry.offset for entry in ledger.lowest(2)] == [2, 3]


def test_a_payload_counts_only_if_it_was_asked_for_at_this_offset() -> None:
    ledger = ledger_of(copy(HIGH, 4))
    assert not ledger.taken(HIGH, 4), "it was not asked for"
    assert asked(ledger) == [HIGH]
    assert not ledger.taken(LOW, 4)
    assert not ledger.taken(HIGH, 5)
    assert ledger.taken(HIGH, 4)
    assert not ledger.taken(HIGH, 4), "it is here already"


def test_of_a_record_that_it_does_not_know_a_ledger_says_nothing() -> None:
    ledger = KeyLedger()
    assert (ledger.written(HIGH), ledger.done(HIGH)) == ([], [])
    assert not ledger.taken(HIGH, 0)
    assert ledger.heads.next_at() == NEVER


@pytest.mark.parametrize("times", [1, 2])
def test_the_copy_that_is_read_last_stands_with_its_time_and_the_one_before_is_done(times: int) -> None:
    ledger = ledger_of(copy(HIGH, 0, due=900))
    assert ledger.read(copy(HIGH, 3, times=times, due=500)) == [0]
    assert asked(ledger, steady=499) == []
    assert asked(ledger, steady=500) == [HIGH]
    assert ledger.taken(HIGH, 3)


def test_a_copy_that_is_read_while_it_is_written_is_done_if_its_record_ends_otherwise() -> None:
    ledger = KeyLedger()
    ledger.writing(HIGH, KEY, Order(7), Attempt(0, 0, 1))
    assert ledger.read(copy(HIGH, 5)) == []
    assert ledger.read(copy(HIGH, 6)) == [5], "the last one stands"
    assert ledger.done(HIGH) == [6]


def test_a_greater_copy_that_is_read_while_one_is_written_stands_once_that_is_in_kafka() -> None:
    ledger = KeyLedger()
    ledger.writing(HIGH, KEY, Order(7), Attempt(0, 0, 1))
    assert ledger.read(copy(HIGH, 4, times=1)) == []
    assert ledger.read(copy(HIGH, 5, times=2)) == [4]
    assert ledger.written(HIGH) == []
    assert asked(ledger) == [HIGH]
    assert ledger.taken(HIGH, 5)


def test_records_of_a_key_share_its_bytes_and_the_counts_of_what_was_never_tried() -> None:
    """A hundred thousand may wait: each object of its own is megabytes."""
    ledger = ledger_of(*(copy((at, 1), 900 + at, times=0, key=bytes(bytearray(b"key"))) for at in (5, 3, 1_000)))
    low, *others = sorted(ledger.entries(), key=lambda entry: entry.identity)
    assert all(entry.key is low.key and entry.attempt is low.attempt for entry in others)
    assert [entry.key for entry in ledger.entries()] == [b"key"] * 3
    ledger.check()
