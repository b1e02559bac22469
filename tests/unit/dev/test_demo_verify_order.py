"""The check of an ordered group: a sound history passes, and each planted violation is found for what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.dev.demo.ledger import Delivery, Verdict
from reconsume.sidecar.dev.demo.verify import Report, Rules, verify
from reconsume.topics.events import State
from reconsume.topics.names import Names
from tests.support.proof.history import START, World, copy_row, delivery, event_row, life, main_row
from tests.unit.dev.written_events import as_written

FIRST, POISON, LAST, REFUSED, FREE = (f"orders:0:{offset}" for offset in range(5))
OTHER_KEY = b"other"


def made(identity: str, times: int, came: float, ended: float | None, verdict: Verdict) -> Delivery:
    """One delivery, by ms from the start."""
    ended = None if ended is None else START + ended
    return replace(delivery(identity, times, START + came, verdict), ended=ended)


def ordered() -> World:
    """Three orders of one key, of which the second ends in the DLQ; one of another key is refused; one has no key."""
    dead, refused = life(POISON, 2, START + 260), life(REFUSED, 0, START + 20, "unknown-sku")
    rows = [main_row(offset) for offset in range(5)]
    rows[3] = rows[3]._replace(key=OTHER_KEY)
    rows[4] = rows[4]._replace(key=None)
    rows += [
        copy_row("billing-DLQ", 0, START + 260, dead),
        event_row(0, State.DLQ, dead),
        copy_row("billing-DLQ", 1, START + 20, refused)._replace(key=OTHER_KEY),
        event_row(1, State.DLQ, refused),
    ]
    deliveries = [
        made(FREE, 0, 5, 6, "commit"),
        made(FIRST, 0, 10, 12, "commit"),
        made(REFUSED, 0, 11, 12, "dead-letter"),
        made(POISON, 0, 20, 21, "retry"),
        made(POISON, 1, 130, 131, "retry"),
        made(POISON, 2, 240, 241, "retry"),
        made(LAST, 0, 270, 271, "commit"),
    ]
    return World(rows, deliveries)


def check(world: World) -> Report:
    return verify(as_written(world.rows), world.deliveries, Names("billing"), ["orders"], (), Rules(InPlace(100, 2)))


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(finding.kind, finding.id) for finding in report.findings}


def test_a_sound_history_has_no_findings_and_its_numbers_are_right() -> None:
    report = check(ordered())
    assert report.findings == ()
    assert (report.orders, report.committed, report.dead) == (5, 3, 2)
    assert report.deliveries == (5, 1, 1)
    assert (report.retries, report.duplicates, report.unseen) == (2, 0, 0)
    assert report.in_line == 3, "nobody stands with the one of the other key"


def test_orders_of_other_keys_and_without_a_key_need_not_wait() -> None:
    world = ordered()
    world.rows[4] = world.rows[4]._replace(key=b"\x00key")
    assert kinds(check(world)) == {("disorder", FREE)}


def test_keys_are_told_apart_by_partition() -> None:
    world = ordered()
    world.rows.append(main_row(0)._replace(partition=1))
    world.deliveries.append(replace(made("orders:0:0", 0, 1, 2, "commit"), id="orders:1:0"))
    assert check(world).findings == ()


def test_a_second_delivery_after_the_end_is_a_duplicate_and_no_disorder() -> None:
    world = ordered()
    world.deliveries.append(made(FIRST, 0, 300, 301, "commit"))
    report = check(world)
    assert report.findings == ()
    assert report.duplicates == 1


def test_an_attempt_that_was_cut_off_may_be_unseen() -> None:
    world = ordered()
    del world.deliveries[4]
    report = check(world)
    assert report.findings == ()
    assert report.unseen == 1


def deliver_before_the_turn(world: World) -> None:
    world.deliveries[6] = made(LAST, 0, 242, 271, "commit")


def deliver_side_by_side(world: World) -> None:
    world.deliveries[3] = made(POISON, 0, 11.5, 21, "retry")


def deliver_though_one_before_never_ended(world: World) -> None:
    world.deliveries[1] = made(FIRST, 0, 10, None, "none")


def lose_one(world: World) -> None:
    del world.deliveries[6]


def write_a_copy(world: World) -> None:
    world.rows.append(copy_row("billing-RETRY-1s", 0, START + 22, life(POISON, 1, START + 1020)))


def tell_of_a_retry(world: World) -> None:
    world.rows.append(event_row(7, State.WAITING_RETRY, life(POISON, 1, START + 1020)))


def tell_of_a_commit(world: World) -> None:
    world.rows.append(event_row(7, State.COMMIT, life(FIRST, 0, START)))


def retry_too_often(world: World) -> None:
    world.deliveries.append(made(POISON, 3, 350, 351, "retry"))


def retry_too_soon(world: World) -> None:
    world.deliveries[4] = made(POISON, 1, 119, 131, "retry")


def give_up_too_soon(world: World) -> None:
    dead = life(POISON, 1, START + 260)
    world.rows[5:7] = [copy_row("billing-DLQ", 0, START + 260, dead), event_row(0, State.DLQ, dead)]
    del world.deliveries[5]


def miscount_in_the_dlq(world: World) -> None:
    dead = life(POISON, 1, START + 260)
    world.rows[5:7] = [copy_row("billing-DLQ", 0, START + 260, dead), event_row(0, State.DLQ, dead)]


def double_in_dlq(world: World) -> None:
    world.rows.append(world.rows[5]._replace(offset=9))


def dead_letter_what_was_taken(world: World) -> None:
    world.deliveries[5] = made(POISON, 2, 240, 241, "commit")


def change_the_dead_letter(world: World) -> None:
    world.rows[5] = world.rows[5]._replace(value=b"")


@pytest.mark.parametrize(
    ("plant", "kind", "identity"),
    [
        (deliver_before_the_turn, "disorder", LAST),
        (deliver_side_by_side, "disorder", POISON),
        (deliver_though_one_before_never_ended, "disorder", LAST),
        (deliver_though_one_before_never_ended, "lost", FIRST),
        (lose_one, "lost", LAST),
        (write_a_copy, "miscounted", POISON),
        (tell_of_a_retry, "miscounted", POISON),
        (tell_of_a_commit, "mistold", FIRST),
        (retry_too_often, "miscounted", POISON),
        (retry_too_soon, "early", POISON),
        (give_up_too_soon, "miscounted", POISON),
        (miscount_in_the_dlq, "miscounted", POISON),
        (double_in_dlq, "dead-twice", POISON),
        (dead_letter_what_was_taken, "unmatched", POISON),
        (change_the_dead_letter, "altered", POISON),
    ],
)
def test_a_planted_violation_is_found(plant: Callable[[World], None], kind: str, identity: str) -> None:
    world = ordered()
    plant(world)
    assert (kind, identity) in kinds(check(world))


def test_a_planted_disorder_is_laid_at_no_other_door() -> None:
    world = ordered()
    deliver_before_the_turn(world)
    assert kinds(check(world)) == {("disorder", LAST)}


def test_the_order_of_the_rows_does_not_matter() -> None:
    world = ordered()
    assert check(World(world.rows[::-1], world.deliveries[::-1])) == check(world)
