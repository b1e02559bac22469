"""The operator's book excuses what was destroyed, by its place or its event, and nothing else."""

from __future__ import annotations

import json
from array import array
from dataclasses import fields, replace
from pathlib import Path

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.render_headers import render_retry_headers
from tests.soak.account import SoakEvidence
from tests.soak.book import Book, Window
from tests.soak.history import NEVER, Look, done_between
from tests.soak.repeats import repeating
from tests.soak.report import Kept, judge, keep, kept
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Row
from tests.support.proof.checker import ViolationError, check
from tests.support.proof.evidence import Evidence, Progress
from tests.support.proof.invariants import STRANGERS
from tests.support.proof.ledger import FAILED, TOOK, Delivery

GROUP = GroupTopics("nowhere:1", "g", ("orders",), (2_000, 5_000))
LEVEL, NEXT = "g-RETRY-2s", "g-RETRY-5s"
GOOD, FLAKY = "orders:0:0", "orders:0:1"
START = 1_000_000
DUE = START + 2_100


def main_row(offset: int) -> Row:
    return Row(0, offset, START + offset, b"key", b"value", ())


def copy_row(place: int, times: int, due: int, topic: str, at: int, reason: str = "http-500") -> Row:
    life = wire.RetryState(FLAKY, "orders", times, 0, due, START + 1, START, reason)
    return Row(0, place, at, b"key", b"value", tuple(render_retry_headers(life, GROUP.group, topic)))


def event_row(state: str, times: int, due: int, level: str | None, at: int) -> Row:
    event = {"id": FLAKY, "redrives": 0, "times": times, "state": state, "due": due, "level": level, "at": at}
    return Row(
        0,
        0,
        at,
        FLAKY.encode(),
        json.dumps(event | dict(zip(("topic", "partition", "offset"), ("orders", 0, 1), strict=True))).encode(),
        (),
    )


def delivery(ident: str, times: int, received: int, means: str) -> Delivery:
    return Delivery(
        0, received, ident, times, 0, f"{GROUP.group}/{ident}/0", b"key", b"value", (), "", means, received + 5
    )


def world(**changed: object) -> SoakEvidence:
    """One record that was taken, and one that waits for its first retry in a level whose progress has passed it."""
    evidence = Evidence(
        group=GROUP,
        mains={"orders": (main_row(0), main_row(1))},
        retries={LEVEL: (copy_row(0, 1, DUE, LEVEL, START + 110),)},
        dlq=(),
        events=(event_row("WAITING_RETRY", 1, DUE, "2s", START + 100),),
        progress={("orders", 0): Progress(2), (LEVEL, 0): Progress(1)},
        deliveries=(delivery(GOOD, 0, START + 50, TOOK), delivery(FLAKY, 0, START + 50, FAILED)),
    )
    return replace(SoakEvidence(**{field.name: getattr(evidence, field.name) for field in fields(Evidence)}), **changed)


def judged(evidence: SoakEvidence) -> tuple[str, ...]:
    return judge(evidence, Kept(evidence, {}), STRANGERS).found


def found(evidence: Evidence) -> list[str]:
    with pytest.raises(ViolationError) as caught:
        check(evidence, STRANGERS)
    return caught.value.found


def test_without_an_entry_in_the_book_a_record_that_is_gone_is_lost() -> None:
    assert any(text.startswith("I1 lost: " + FLAKY) for text in found(world()))


def test_a_copy_that_was_cut_before_it_was_done_is_the_operators() -> None:
    evidence = world(cut=frozenset({(LEVEL, 0, 0)}))
    check(evidence, STRANGERS)
    assert evidence.touched == {(FLAKY, 0)}
    assert any("I1 lost" in text for text in found(world(cut=frozenset({(LEVEL, 0, 1)}))))


def test_a_copy_that_went_unseen_with_its_topic_is_the_operators_if_its_event_is_of_that_time() -> None:
    gone: dict[str, object] = {"retries": {LEVEL: ()}}
    check(world(**gone, windows=(Window(LEVEL, START, START + 200),)), STRANGERS)
    for window in (Window(LEVEL, START + 101, START + 200), Window(NEXT, START, START + 200)):
        assert any("I1 lost" in text for text in found(world(**gone, windows=(window,))))


def test_what_follows_a_copy_that_went_unseen_is_held_against_every_rule() -> None:
    """It was in memory: the copy is gone, the attempt was made, and its own copy is there."""
    later = {
        "retries": {LEVEL: (), NEXT: (copy_row(0, 2, DUE + 5_010, NEXT, DUE + 20),)},
        "events": (
            event_row("WAITING_RETRY", 1, DUE, "2s", START + 100),
            event_row("WAITING_RETRY", 2, DUE + 5_010, "5s", DUE + 10),
            event_row("COMMIT", 2, DUE + 5_010, None, DUE + 5_030),
        ),
        "progress": {("orders", 0): Progress(2), (NEXT, 0): Progress(1)},
    }
    made = (
        delivery(GOOD, 0, START + 50, TOOK),
        delivery(FLAKY, 0, START + 50, FAILED),
        delivery(FLAKY, 1, DUE + 5, FAILED),
        delivery(FLAKY, 2, DUE + 5_020, TOOK),
    )
    windows = (Window(LEVEL, START, START + 200),)
    check(world(**later, windows=windows, deliveries=made), STRANGERS)
    assert any("I1 lost" in text for text in found(world(**later, windows=windows, deliveries=made[:-1])))
    early = (*made[:-1], delivery(FLAKY, 2, DUE + 5_000, TOOK))
    assert any("I4 early" in text for text in found(world(**later, windows=windows, deliveries=early)))


def test_a_hop_that_is_written_after_a_delivery_does_not_make_that_delivery_early() -> None:
    """Its answer was not counted, as the pod was fenced; the pod that came next passed the copy on."""
    hopped: dict[str, object] = {
        "retries": {LEVEL: (copy_row(0, 1, DUE, LEVEL, START + 90),), NEXT: (copy_row(0, 1, DUE, NEXT, DUE + 50),)},
        "progress": {("orders", 0): Progress(2), (LEVEL, 0): Progress(1), (NEXT, 0): Progress(1)},
    }
    taken = delivery(FLAKY, 1, DUE + 5_060, TOOK)
    known = (*world().deliveries, delivery(FLAKY, 1, DUE + 10, FAILED), taken)
    assert not [text for text in judged(world(**hopped, deliveries=known)) if "I4" in text]
    for early in (delivery(FLAKY, 1, DUE - 10, FAILED), delivery(FLAKY, 1, DUE + 60, FAILED)):
        wrong = world(**hopped, deliveries=(*world().deliveries, early, taken))
        assert [text for text in judged(wrong) if "I4 early" in text]


def test_a_request_that_died_unread_with_its_connection_is_an_attempt_and_any_other_unseen_one_is_not() -> None:
    for reason, allowed in (("connection-lost", True), ("http-500", False)):
        unread = world(
            retries={LEVEL: (copy_row(0, 1, DUE, LEVEL, START + 110, reason),)},
            deliveries=(delivery(GOOD, 0, START + 50, TOOK), delivery(FLAKY, 1, DUE + 5, TOOK)),
        )
        assert allowed != any("I2 no attempt" in text for text in judged(unread))


def test_a_hop_into_a_topic_that_was_about_to_be_deleted_is_the_operators_though_no_event_tells_of_it() -> None:
    windows = (Window(NEXT, DUE - 100, DUE + 200),)
    hopped = world(windows=windows)
    assert judged(hopped) == ()
    waits = world(windows=windows, progress={("orders", 0): Progress(2), (LEVEL, 0): Progress(0)})
    assert [text.split(":")[0] for text in judged(waits)] == ["rest"], "it has hopped nowhere yet"


def test_what_was_taken_in_a_topic_before_it_was_deleted_may_have_lost_its_event_with_it() -> None:
    windows = (Window(NEXT, DUE - 100, DUE + 200),)
    for at, wrong in ((DUE + 60, []), (DUE + 260, ["event"])):
        taken = world(windows=windows, deliveries=(*world().deliveries, delivery(FLAKY, 1, at, TOOK)))
        assert [text.split(":")[0] for text in judged(taken)] == wrong


def test_a_late_hop_into_a_topic_that_was_about_to_be_deleted_is_the_operators_if_it_became_done_then() -> None:
    """The topic refused it for a while. The watch saw the progress pass it."""
    windows = (Window(NEXT, DUE + 5_000, DUE + 9_000),)
    before, behind = Progress(0), Progress(1)
    for seen, wrong in (
        ((Look(DUE, DUE + 5_500, before), Look(DUE + 6_000, DUE + 20_000, behind)), []),
        ((Look(DUE, DUE + 1_500, before), Look(DUE + 2_000, DUE + 20_000, behind)), ["I1 lost", "event", "rest"]),
        ((Look(DUE, DUE + 9_500, before), Look(DUE + 10_000, DUE + 20_000, behind)), ["I1 lost", "event", "rest"]),
        ((), ["I1 lost", "event", "rest"]),
    ):
        late = world(windows=windows, history={(LEVEL, 0): seen})
        assert [text.split(":")[0] for text in judged(late)] == wrong


def test_the_book_says_of_each_life_of_a_topic_when_its_records_became_done() -> None:
    book = Book()
    for began, reached in ((10, 3), (20, 3), (30, 7)):
        book.looked({(LEVEL, 0): Progress(reached)}, began)
    book.made_anew(LEVEL, 40)
    book.looked({(LEVEL, 0): Progress(7)}, 50)  # still the former topic's
    book.looked({(LEVEL, 0): Progress(0)}, 60)
    book.looked({(LEVEL, 0): Progress(5)}, 70)
    history = book.history()
    former, present = history[f"{LEVEL}#0", 0], history[LEVEL, 0]
    assert done_between(former, 5) == (20, former[-1].first)
    assert done_between(present, 4) == (60, present[-1].first)
    assert done_between(present, 5) == (70, NEVER)


def test_a_hop_out_of_a_topic_that_was_about_to_be_deleted_is_held_against_the_level_of_its_event() -> None:
    """The copy in the level is gone unseen; a pod without the main topic had passed it on."""
    hopped: dict[str, object] = {
        "retries": {LEVEL: (), NEXT: (copy_row(0, 1, DUE, NEXT, DUE + 50),)},
        "progress": {("orders", 0): Progress(2), (NEXT, 0): Progress(1)},
        "deliveries": (*world().deliveries, delivery(FLAKY, 1, DUE + 5_060, TOOK)),
        "events": (*world().events, event_row("COMMIT", 1, DUE, None, DUE + 5_070)),
    }
    check(world(**hopped, windows=(Window(LEVEL, START, START + 200),)), STRANGERS)
    assert {text.split(":")[0] for text in found(world(**hopped))} == {"I4 early", "event"}
    wrong = {**hopped, "events": (event_row("WAITING_RETRY", 1, DUE + 1, "2s", START + 100), *hopped["events"][1:])}
    assert found(world(**wrong, windows=(Window(LEVEL, START, START + 200),)))


def test_each_life_of_a_topic_stands_for_itself() -> None:
    book = Book()
    row = copy_row(0, 1, DUE, LEVEL, START)
    assert book.destroy(LEVEL, [row], {}) == 1
    assert book.undone() == {(LEVEL, 0, 0)}
    assert list(book.archive()) == [LEVEL]
    book.made_anew(LEVEL, START)
    assert book.destroy(LEVEL, [row], {(LEVEL, 0): Progress(1)}) == 0
    assert book.undone() == {(f"{LEVEL}#0", 0, 0)}
    assert set(book.archive()) == {f"{LEVEL}#0", LEVEL}


def test_a_copy_in_a_former_life_of_its_topic_keeps_every_rule_but_that_of_its_place() -> None:
    former = f"{LEVEL}#0"
    evidence = world(
        retries={former: (copy_row(0, 1, DUE, LEVEL, START + 110),), LEVEL: ()},
        cut=frozenset({(former, 0, 0)}),
        progress={("orders", 0): Progress(2)},
    )
    check(evidence, STRANGERS)
    altered = copy_row(0, 1, DUE, LEVEL, START + 110)._replace(value=b"other")
    assert any("I5 altered" in text for text in found(replace(evidence, retries={former: (altered,)})))


def test_a_dead_letter_of_a_copys_own_place_condemns_no_record_of_the_topics_next_life() -> None:
    """The place `g-RETRY-2s:0:0` was another record's while the topic was another one."""
    life = wire.RetryState(f"{LEVEL}:0:0", "orders", 0, 0, START, START, START, "bad-header: REAL_TOPIC")
    letter = Row(0, 0, START + 150, b"key", b"value", tuple(render_retry_headers(life, GROUP.group, GROUP.dlq)))
    evidence = world(dlq=(letter,), progress={("orders", 0): Progress(2)})
    check(evidence, STRANGERS)
    assert [text.split(":")[0] for text in judged(evidence)] == ["condemned", "rest"]


def test_what_the_broker_confirmed_must_be_in_the_log(tmp_path: Path) -> None:
    evidence = world(progress={("orders", 0): Progress(2)})
    keep(tmp_path / "evidence", evidence, Kept(evidence, {("orders", 0): array("q", [0, 1, 2])}))
    again = kept(tmp_path / "evidence")
    assert "the broker lost orders:0:2, which it had confirmed" in judge(again.evidence, again).found


def test_a_copy_that_stands_again_and_again_is_told_from_one_that_hops() -> None:
    again = [copy_row(place, 2, DUE, LEVEL, START + place) for place in range(3)]
    hopping = [copy_row(place, 2, DUE, LEVEL, START + place * 4_000) for place in range(3)]
    assert repeating(again) == {0}
    assert repeating(hopping) == set()
    assert repeating([main_row(place) for place in range(3)]) == set()
