"""The ledger of a queue: the table at the top of its module is what it does, and any way of events keeps the order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from reconsume.sidecar.core import ledger as module
from reconsume.sidecar.core.key_lines import Phase
from reconsume.sidecar.core.ledger import KeyLedger, QueuedCopy
from reconsume.sidecar.core.record import NEVER
from reconsume.topics.attempt import Attempt
from reconsume.topics.retry_order import Order

KEY, ONE = b"k", (7, 1)


def copy(offset: int = 3, times: int = 1, due: int = 0, identity: tuple[int, int] = ONE) -> QueuedCopy:
    return QueuedCopy(offset, identity, KEY, Order(identity[0]), Attempt(0, 0, times), due)


def idle(_key: bytes) -> bool:
    return False


def writing(ledger: KeyLedger) -> None:
    ledger.writing(ONE, KEY, Order(7), Attempt(0, 0, 1))


def ask(ledger: KeyLedger) -> None:
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.ask(idle) is not None


def place_of(ledger: KeyLedger) -> str:
    ledger.check()
    return next((entry.phase.value for entry in ledger.entries() if entry.identity == ONE), "none")


ACTS: dict[str, Callable[[KeyLedger], object]] = {
    "it fails, or comes behind its head": writing,
    "it fails": lambda ledger: ledger.writing(ONE, KEY, Order(7), Attempt(0, 0, 2)),
    "its copy is read in the queue": lambda ledger: ledger.read(copy()),
    "its copy is committed": lambda ledger: ledger.written(ONE),
    "the same, and all before it is read": lambda ledger: ledger.written(ONE, copy()),
    "its copy is read, then committed": lambda ledger: (ledger.read(copy()), ledger.written(ONE)),
    "it ends otherwise": lambda ledger: ledger.done(ONE),
    "a newer copy is read": lambda ledger: ledger.read(copy(4, 2)),
    "it is the head, due, and asked for": ask,
    "its payload is read": lambda ledger: ledger.taken(ONE, 3),
    "its record is dropped": lambda ledger: ledger.put_back(ONE),
    "it is done or dead": lambda ledger: ledger.done(ONE),
}


def brought(place: str) -> KeyLedger:
    ledger = KeyLedger()
    if place in ("writing", "expected"):
        writing(ledger)
    if place == "expected":
        ledger.written(ONE)
    if place in ("queued", "requested", "taken"):
        ledger.read(copy())
    if place in ("requested", "taken"):
        ask(ledger)
    if place == "taken":
        assert ledger.taken(ONE, 3)
    assert place_of(ledger) == place
    return ledger


def rows() -> list[tuple[str, ...]]:
    lines = [line.split("|") for line in (module.__doc__ or "").splitlines() if line.count("|") == 2]
    return [tuple(cell.strip() for cell in line) for line in lines[2:]]


@pytest.mark.parametrize(("was", "event", "then"), rows())
def test_each_row_of_the_table_is_what_happens(was: str, event: str, then: str) -> None:
    ledger = brought(was)
    ACTS[event](ledger)
    assert place_of(ledger) == then


def test_the_table_names_every_place() -> None:
    assert {cell for row in rows() for cell in (row[0], row[2])} == {place.value for place in Phase} | {"none"}


@pytest.mark.parametrize("place", [place.value for place in Phase])
def test_a_key_is_blocked_for_later_main_records_wherever_its_head_is(place: str) -> None:
    ledger = brought(place)
    assert ledger.lines.blocks(KEY, 8)
    assert not ledger.lines.blocks(b"other", 8)
    ledger.done(ONE)
    assert not ledger.lines.blocks(KEY, 8)


@pytest.mark.parametrize("place", ["writing", "expected", "queued"])
def test_a_main_record_before_all_that_waits_is_not_blocked(place: str) -> None:
    assert not brought(place).lines.blocks(KEY, 6)


@pytest.mark.parametrize("place", ["requested", "taken"])
def test_no_main_record_goes_out_beside_one_of_its_key(place: str) -> None:
    assert brought(place).lines.blocks(KEY, 6)


def test_a_head_waits_until_main_was_read_up_to_it_and_nothing_of_its_key_is_under_way() -> None:
    ledger = brought("queued")
    ledger.heads.advance(0, 6, idle)
    assert ledger.ask(idle) is None
    ledger.heads.advance(0, 7, lambda key: key == KEY)
    assert ledger.ask(idle) is None
    ledger.heads.main_ended(KEY)
    ask(ledger)


def test_a_head_waits_for_its_time() -> None:
    ledger = KeyLedger()
    ledger.read(copy(due=500))
    assert ledger.heads.next_at() == 500
    ledger.heads.advance(499, NEVER, idle)
    assert ledger.ask(idle) is None
    ledger.heads.advance(500, NEVER, idle)
    assert ledger.ask(idle) is not None


def test_a_lower_one_that_is_read_later_goes_first() -> None:
    ledger = brought("queued")
    ledger.heads.advance(0, NEVER, lambda key: True)
    ledger.read(copy(9, identity=(2, 1)))
    ledger.heads.advance(0, NEVER, lambda key: True)
    ledger.heads.main_ended(KEY)
    ledger.heads.advance(0, NEVER, idle)
    first = ledger.ask(idle)
    assert first is not None
    assert first.identity == (2, 1)
    ledger.done((2, 1))
    ledger.heads.advance(0, NEVER, idle)
    second = ledger.ask(idle)
    assert second is not None
    assert second.identity == ONE


@pytest.mark.parametrize("place", ["expected", "queued", "requested", "taken"])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_of_two_copies_one_is_done_and_the_other_stands(place: str, times: int) -> None:
    """What the lane has, or reads, stays: another copy is done."""
    ledger = brought(place)
    gone = ledger.read(copy(10, times))
    ledger.check()
    stays = {"expected": times == 0, "queued": times == 0}.get(place, True)
    assert gone == ([10] if stays else [3] if place == "queued" else [])


@pytest.mark.parametrize("place", ["queued", "requested", "taken"])
@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_copy_of_a_later_attempt_than_the_lane_makes_is_none_of_its_record(place: str, times: int) -> None:
    """Nobody else may write the next one: if another owner has, what this lane does is refused."""
    fault = brought(place).fault_of(ONE, KEY, Attempt(0, 0, times))
    assert fault == (
        "it says fewer attempts than"
        if times == 0
        else "it says more attempts than"
        if times == 2 and place != "queued"
        else ""
    )


@pytest.mark.parametrize("times", [0, 1, 2])
def test_what_a_lane_writes_of_a_main_record_takes_the_place_of_what_waits_as_the_same(times: int) -> None:
    """The next owner has written that, while this one was frozen, or somebody has forged it."""
    ledger = KeyLedger()
    ledger.read(copy(3, times=times))
    assert ledger.writing(ONE, KEY, Order(ONE[0]), Attempt(0, 0, 1)) == [3]
    ledger.check()
    assert ledger.written(ONE) == []
    ledger.check()
    assert [entry.offset for entry in ledger.entries()] == [-1]


def test_records_of_two_logs_at_one_offset_are_two() -> None:
    ledger = brought("queued")
    assert ledger.entry((7, 2)) is None
    ledger.read(copy(11, identity=(7, 2)))
    ledger.check()
    assert len(ledger) == 2


@pytest.mark.parametrize("order", [Order(9, 1), Order(7, 1)])
@pytest.mark.parametrize("phase", ["expected", "queued"])
def test_a_copy_with_another_order_takes_the_record_there(phase: str, order: Order) -> None:
    """One of the two was forged; the last one counts, and the record stands once."""
    ledger = brought(phase)
    behind = copy(5, identity=(8, 1))
    ledger.read(behind)
    gone = ledger.read(QueuedCopy(10, ONE, KEY, order, Attempt(0, 0, 1), 0))
    ledger.check()
    assert (len(ledger), gone) == (2, [3] if phase == "queued" else [])
    first = min((8, 1), ONE, key=lambda one: order.rank if one == ONE else Order(8).rank)
    assert [line.entries[0].identity for line in ledger.lines.largest(2)] == [first]
    ledger.done((8, 1))
    assert (ledger.lines.blocks(KEY, 10), ledger.lines.blocks(KEY, order.offset - 1)) == (True, False)


class Model:
    """A queue, what of it was read, and a lane that sends what it is given; all by chance."""

    def __init__(self, seed: int) -> None:
        self.random, self.ledger = Random(seed), KeyLedger()
        self.steady_ms = self.main = 0
        self.log: list[QueuedCopy] = []
        self.unread = 0
        self.writing: dict[tuple[int, int], QueuedCopy] = {}
        self.out: dict[tuple[int, int], QueuedCopy] = {}
        self.asked: list[tuple[tuple[int, int], int]] = []
        self.under_way: dict[bytes, list[tuple[int, int]]] = {}
        self.done: list[tuple[bytes, int]] = []
        self.open: set[int] = set()

    def arrive(self) -> None:
        key, offset = b"k%d" % self.random.randrange(3), self.main
        self.main += self.random.choice((1, 1, 2))
        if self.ledger.lines.blocks(key, offset):
            self.write((offset, 1), key, Attempt(0, 0, 0), self.steady_ms)
        else:
            self.under_way.setdefault(key, []).append((offset, 1))

    def write(self, identity: tuple[int, int], key: bytes, attempt: Attempt, due: int) -> None:
        self.ledger.writing(identity, key, Order(identity[0]), attempt)
        self.writing[identity] = QueuedCopy(-1, identity, key, Order(identity[0]), attempt, due)

    def main_answers(self) -> None:
        if not self.under_way:
            return
        key = self.random.choice(sorted(self.under_way))
        first, *rest = self.under_way[key]
        assert not any(other.key == key for other in self.out.values()), "two of a key are out"
        if self.random.random() < 0.5:
            self.write(first, key, Attempt(0, 0, 1), self.steady_ms + self.random.choice((0, 5, 50)))
            for later in rest:
                assert self.ledger.lines.blocks(key, later[0])
                self.write(later, key, Attempt(0, 0, 0), self.steady_ms)
            rest = []
        else:
            self.end(key, first)
        if rest:
            self.under_way[key] = rest
        else:
            del self.under_way[key]
            self.ledger.heads.main_ended(key)

    def end(self, key: bytes, identity: tuple[int, int]) -> None:
        self.done.append((key, identity[0]))

    def commit(self) -> None:
        if self.writing:
            identity = self.random.choice(sorted(self.writing))
            self.append(self.writing[identity])
            if self.random.random() < 0.3:
                self.read_queue()
            del self.writing[identity]
            self.finish(self.ledger.written(identity))

    def append(self, written: QueuedCopy) -> None:
        for _ in range(1 + (self.random.random() < 0.1)):
            self.log.append(replace(written, offset=len(self.log)))
            self.open.add(len(self.log) - 1)

    def finish(self, gone: list[int]) -> None:
        assert self.open >= set(gone)
        self.open -= set(gone)

    def read_queue(self) -> None:
        first = self.log[self.unread : self.unread + 1]
        for copied in first * len(
            self.log
        ):  # a copy and its double are read together: of one that is done nothing is known
            if self.unread == len(self.log) or self.log[self.unread].identity != copied.identity:
                break
            self.finish(self.ledger.read(self.log[self.unread]))
            self.unread += 1

    def ask(self) -> None:
        self.ledger.heads.advance(self.steady_ms, self.main, self.under_way.__contains__)
        while (entry := self.ledger.ask(self.under_way.__contains__)) is not None:
            assert entry.due_ms <= self.steady_ms
            assert entry.key not in self.under_way
            self.asked.append((entry.identity, entry.offset))

    def payload(self) -> None:
        if self.asked:
            identity, offset = self.asked.pop()
            if self.random.random() < 0.2:
                self.ledger.put_back(identity)
            elif self.ledger.taken(identity, offset):
                copied = self.log[offset]
                assert not any(other.key == copied.key for other in self.out.values()), "two of a key are out"
                self.out[identity] = copied

    def hop(self) -> None:
        """Write the first record of the queue again at its end, as it is."""
        for entry in self.ledger.lowest(1):
            if self.ledger.take_aside(entry) and self.ledger.taken(entry.identity, entry.offset):
                copied = self.log[entry.offset]
                self.open.discard(entry.offset)
                self.write(entry.identity, copied.key, copied.attempt, copied.due_ms)

    def queue_answers(self) -> None:
        if not self.out:
            return
        identity = self.random.choice(sorted(self.out))
        copied = self.out.pop(identity)
        self.open.discard(copied.offset)
        times = copied.attempt.times + 1
        if self.random.random() < 0.4 and times < 5:
            self.write(identity, copied.key, Attempt(0, 0, times), self.steady_ms + self.random.choice((0, 5, 50)))
        else:
            self.end(copied.key, identity)
            self.finish(self.ledger.done(identity))

    def step(self, *, arrive: bool) -> None:
        acts = [self.main_answers, self.commit, self.read_queue, self.ask, self.payload, self.queue_answers, self.hop]
        self.random.choice([*acts, self.arrive] if arrive else acts)()
        self.steady_ms += self.random.choice((0, 0, 1, 10))
        self.ledger.check()


@given(st.integers(0, 2**32))
def test_records_of_a_key_end_in_their_order_whatever_happens_meanwhile(seed: int) -> None:
    model = Model(seed)
    for _ in range(200):
        model.step(arrive=True)
    for _ in range(20_000):
        if not (len(model.ledger) or model.under_way or model.unread < len(model.log)):
            break
        model.step(arrive=False)
    assert not len(model.ledger), "something waits for ever"
    for key in (b"k0", b"k1", b"k2"):
        ended = [offset for name, offset in model.done if name == key]
        assert ended == sorted(set(ended)), f"{key!r} is out of order, or twice"
    assert not model.open, "a copy is never done"
    assert model.ledger.heads.next_at() == NEVER


# --- copies that replace each other in a ledger: the greatest one says where its record stands, and when -------------


OTHER = b"other"


def copy_at(
    offset: int, times: int, *, key: bytes = KEY, order: Order | None = None, due_ms: int = 0, at: int = ONE[0]
) -> QueuedCopy:
    return QueuedCopy(offset, (at, 1), key, order or Order(at), Attempt(0, 0, times), due_ms)


@pytest.mark.parametrize(
    ("newer", "blocked"),
    [(copy_at(4, 2), {8, 10}), (copy_at(4, 2, order=Order(9)), {10})],
    ids=["as before", "another order"],
)
def test_a_greater_copy_says_from_where_on_its_key_is_blocked(newer: QueuedCopy, blocked: set[int]) -> None:
    """One of the two was forged, or has the headers of another one: the ledger follows the last."""
    ledger = KeyLedger()
    ledger.read(copy_at(3, 1))
    assert ledger.read(newer) == [3], "the older one means nothing any more"
    ledger.check()
    assert {offset for offset in (8, 10) if ledger.lines.blocks(KEY, offset)} == blocked
    (entry,) = ledger.entries()
    assert (entry.offset, entry.order) == (4, newer.order)
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.ask(idle) is entry


@pytest.mark.parametrize("times", [0, 1, 9])
@pytest.mark.parametrize("order", [Order(ONE[0]), Order(9)])
def test_a_copy_with_another_key_is_none_of_the_record_that_waits(times: int, order: Order) -> None:
    """It was forged, whatever its counts: the key of the record stays blocked, and no other one is."""
    ledger = KeyLedger()
    ledger.read(copy_at(3, 1))
    assert ledger.has_other_key(ONE, OTHER)
    assert ledger.read(copy_at(4, times, key=OTHER, order=order)) == [4]
    ledger.check()
    assert (ledger.lines.blocks(KEY, 8), OTHER in ledger.lines.by_key) == (True, False)
    assert not ledger.has_other_key(ONE, KEY)
    assert [entry.key for entry in ledger.entries()] == [KEY]


@pytest.mark.parametrize("phase", ["queued", "requested", "taken", "writing", "early"])
def test_the_record_itself_takes_the_way_of_a_copy_with_another_key(phase: str) -> None:
    """The lane has read it from the main topic, so the other one was forged. What lies of that in the queue is done."""
    ledger = KeyLedger()
    ledger.read(copy_at(3, 1, key=OTHER))
    ledger.heads.advance(0, NEVER, idle)
    if phase != "queued":
        assert ledger.ask(idle) is not None
    if phase in ("taken", "writing", "early"):
        assert ledger.taken(ONE, 3)
    if phase in ("writing", "early"):
        ledger.writing(ONE, OTHER, Order(ONE[0]), Attempt(0, 0, 2))
    if phase == "early":
        ledger.read(copy_at(4, 2, key=OTHER))
    lies = {"queued": [3], "requested": [3], "early": [4]}.get(phase, [])
    assert ledger.writing(ONE, KEY, Order(ONE[0]), Attempt(0, 0, 1)) == lies
    ledger.check()
    assert (ledger.lines.blocks(KEY, 8), OTHER in ledger.lines.by_key, len(ledger)) == (True, False, 1)
    assert not ledger.taken(ONE, 3), "the copy that was asked for is wanted no more"


BEFORE = {
    "nothing": [],
    "an early one": [copy_at(3, 1)],
    "a later one": [copy_at(3, 2)],
    "another key's": [copy_at(3, 2, key=OTHER)],
    "one that was parked": [copy_at(3, 0, due_ms=NEVER)],
}


@pytest.mark.parametrize("parks", [False, True])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_copy_that_is_told_with_its_commit_is_taken_in_as_if_it_were_read_after_it(
    before: list[QueuedCopy], *, parks: bool
) -> None:
    told, read = KeyLedger(), KeyLedger()
    own = copy_at(9, 1, due_ms=NEVER if parks else 60)
    for ledger in (told, read):
        ledger.read(copy_at(2, 0, at=8, due_ms=NEVER))
        ledger.writing(ONE, KEY, own.order, own.attempt)
        for one in before:
            ledger.read(one)
    assert told.written(ONE, own) == read.written(ONE) + read.read(own)
    told.check()
    assert [astuple(entry)[:-1] for entry in told.entries()] == [astuple(entry)[:-1] for entry in read.entries()]
    assert (told.parked_keys, told.heads.next_at()) == (read.parked_keys, read.heads.next_at())
    assert told.written((99, 1), copy_at(12, 0, at=99)) == [], "one of which nothing was known"
    assert told.entry((99, 1)) is not None


def test_a_number_that_a_redrive_gave_is_kept_with_the_order() -> None:
    ledger = KeyLedger()
    ledger.read(copy_at(3, 1, order=Order(ONE[0], 5)))
    assert [entry.order for entry in ledger.entries()] == [Order(ONE[0], 5)]


def test_what_is_to_be_tried_now_is_parked_no_more() -> None:
    ledger = KeyLedger()
    for at in (7, 9):
        ledger.read(copy_at(at, 1, at=at, due_ms=NEVER))
    ledger.read(copy_at(20, 2))
    ledger.check()
    assert [entry.identity for entry in ledger.parked()] == [(9, 1)]


def test_what_was_taken_aside_and_let_go_has_its_turn_again() -> None:
    """A record that was to be written again, and whose payload could not be read: its key would stand for ever."""
    ledger = KeyLedger()
    ledger.read(copy_at(3, 1))
    (entry,) = ledger.entries()
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.take_aside(entry)
    ledger.put_back(ONE)
    ledger.check()
    ledger.heads.advance(0, NEVER, idle)
    assert ledger.ask(idle) is entry


def test_heads_of_a_former_log_go_and_those_ahead_of_main_wait_as_before() -> None:
    ledger = KeyLedger()
    for at in (500, 400):
        ledger.read(copy_at(at, 1, at=at, key=b"%d" % at))
    ledger.heads.advance(0, 10, idle)
    assert (ledger.ask(idle), ledger.heads.lowest_ahead_of_main()) == (None, 400)
    ledger.heads.take_as_former(300, idle)
    assert [entry.order.offset for entry in iter(lambda: ledger.ask(idle), None)] == [400, 500]
    ledger.read(copy_at(20, 1, at=20, key=b"20"))
    ledger.heads.advance(0, 10, idle)
    assert (ledger.ask(idle), ledger.heads.lowest_ahead_of_main()) == (None, 20)
    ledger.heads.advance(0, 20, idle)
    assert ledger.ask(idle) is not None


def test_the_end_of_a_main_record_matters_only_to_a_head_that_has_waited_for_it() -> None:
    ledger = KeyLedger()
    ledger.read(copy_at(3, 1))
    ledger.heads.advance(0, NEVER, lambda key: key == KEY)
    assert [ledger.heads.main_ended(key) for key in (OTHER, KEY, KEY)] == [False, True, False]
