"""The demo's check: a sound history passes, and each planted violation is found for what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reconsume.sidecar.dev.demo.lateness import spread
from reconsume.sidecar.dev.demo.ledger import Outage, digest_of
from reconsume.sidecar.dev.demo.record_histories import Row
from reconsume.sidecar.dev.demo.verify import Report, verify
from reconsume.topics.events import State
from reconsume.topics.names import Names
from tests.support.proof.history import FLAKY, GOOD, POISON, START, World, copy_row, delivery, event_row, life, sound
from tests.unit.dev.written_events import as_written

NAMES = Names("billing")


def check(world: World, outages: tuple[Outage, ...] = ()) -> Report:
    return verify(as_written(world.rows), world.deliveries, NAMES, ["orders"], outages)


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(finding.kind, finding.id) for finding in report.findings}


def test_a_sound_history_has_no_findings_and_its_numbers_are_right() -> None:
    report = check(sound())
    assert report.findings == ()
    assert (report.orders, report.committed, report.dead) == (3, 2, 1)
    assert report.deliveries == (3, 2, 1)
    assert (report.retries, report.duplicates, report.unseen) == (3, 0, 0)
    assert report.lateness.count == 3
    assert report.lateness.worst == 20
    assert report.release.worst == 5


def test_a_second_delivery_of_an_attempt_is_a_duplicate_and_no_finding() -> None:
    world = sound()
    world.deliveries.append(delivery(FLAKY, 1, START + 1500, "commit"))
    report = check(world)
    assert report.findings == ()
    assert report.duplicates == 1
    assert report.deliveries == (3, 3, 1)


def test_an_attempt_that_was_cut_off_may_be_unseen() -> None:
    world = sound()
    lost_line = life(FLAKY, 1, START + 1010, "connection-lost: closed")
    world.rows[3] = copy_row("billing-RETRY-1s", 0, START + 20, lost_line)
    del world.deliveries[1]
    report = check(world)
    assert report.findings == ()
    assert report.unseen == 1


def test_retries_that_an_outage_held_back_have_their_own_lateness() -> None:
    report = check(sound(), (Outage(START + 3011, START + 3030),))
    assert report.held_back.count == 1
    assert report.lateness.count == 2


def drop_delivery(world: World) -> None:
    del world.deliveries[0]


def drop_dead_letter(world: World) -> None:
    del world.rows[-2:]


def double_in_dlq(world: World) -> None:
    world.rows.append(world.rows[-2]._replace(offset=1))


def count_twice(world: World) -> None:
    again = life(POISON, 2, START + 6100)
    world.rows.append(copy_row("billing-RETRY-2s", 2, START + 4110, again))
    world.rows.append(event_row(5, State.WAITING_RETRY, again))


def write_copy_twice(world: World) -> None:
    world.rows.append(world.rows[3]._replace(offset=7, timestamp=START + 21))


def skip_a_number(world: World) -> None:
    del world.rows[6:9]


def count_in_dlq_too_many(world: World) -> None:
    world.rows[-2] = copy_row("billing-DLQ", 0, START + 8025, life(POISON, 3, START + 8020))


def lose_an_event(world: World) -> None:
    del world.rows[8]


def lose_the_commit_event(world: World) -> None:
    del world.rows[5]


def tell_an_end_that_was_none(world: World) -> None:
    world.rows.append(event_row(9, State.DLQ, life(FLAKY, 1, START + 1010)))


def change_the_value(world: World) -> None:
    world.rows[3] = world.rows[3]._replace(value=b"value-2")


def lose_a_null_value(world: World) -> None:
    world.rows[1] = world.rows[1]._replace(value=None)
    world.rows[3] = world.rows[3]._replace(value=b"")
    world.deliveries[1] = replace(world.deliveries[1], digest=digest_of(None))
    world.deliveries[2] = replace(world.deliveries[2], digest=digest_of(None))


def change_the_key(world: World) -> None:
    world.rows[9] = world.rows[9]._replace(key=None)


def merge_doubled_headers(world: World) -> None:
    world.rows[-2] = world.rows[-2]._replace(headers=world.rows[-2].headers[1:])


def change_a_header_on_a_hop(world: World) -> None:
    world.rows[7] = world.rows[7]._replace(headers=(("trace", b""), *world.rows[7].headers[1:]))


def deliver_another_value(world: World) -> None:
    world.deliveries[2] = replace(world.deliveries[2], digest=digest_of(b""))


def deliver_before_the_due_time(world: World) -> None:
    world.deliveries[5] = replace(world.deliveries[5], at=START + 5999.9)


def deliver_before_the_level_is_over(world: World) -> None:
    world.deliveries[2] = replace(world.deliveries[2], at=START + 1019.9)


def deliver_what_no_copy_counts(world: World) -> None:
    world.deliveries.append(delivery(FLAKY, 2, START + 3000, "commit"))


def retry_what_was_taken(world: World) -> None:
    world.deliveries[1] = replace(world.deliveries[1], verdict="commit")


def count_what_was_never_delivered(world: World) -> None:
    del world.deliveries[4]


def copy_an_order_that_nobody_produced(world: World) -> None:
    world.rows.append(copy_row("billing-RETRY-1s", 9, START, life("orders:9:9", 1, START + 1000)))


def break_our_headers(world: World) -> None:
    headers = tuple((key, b"-1" if key == "RECONSUMETIMES" else value) for key, value in world.rows[3].headers)
    world.rows[3] = world.rows[3]._replace(headers=headers)


def deliver_what_nobody_produced(world: World) -> None:
    world.deliveries.append(delivery("orders:9:9", 0, START, "commit"))


def write_an_event_that_is_none(world: World) -> None:
    world.rows.append(Row("billing-RETRY-EVENTS", 1, 0, START, b"k", b"{}", ()))


@pytest.mark.parametrize(
    ("plant", "kind", "identity"),
    [
        (drop_delivery, "lost", GOOD),
        (drop_dead_letter, "lost", POISON),
        (double_in_dlq, "dead-twice", POISON),
        (count_twice, "counted-twice", POISON),
        (write_copy_twice, "counted-twice", FLAKY),
        (skip_a_number, "gap", POISON),
        (count_in_dlq_too_many, "gap", POISON),
        (lose_an_event, "no-event", POISON),
        (lose_the_commit_event, "mistold", FLAKY),
        (tell_an_end_that_was_none, "no-copy", FLAKY),
        (change_the_value, "altered", FLAKY),
        (lose_a_null_value, "altered", FLAKY),
        (change_the_key, "altered", POISON),
        (merge_doubled_headers, "altered", POISON),
        (change_a_header_on_a_hop, "altered", POISON),
        (deliver_another_value, "changed", FLAKY),
        (deliver_before_the_due_time, "early", POISON),
        (deliver_before_the_level_is_over, "early", FLAKY),
        (deliver_what_no_copy_counts, "unmatched", FLAKY),
        (retry_what_was_taken, "unmatched", FLAKY),
        (count_what_was_never_delivered, "unmatched", POISON),
        (copy_an_order_that_nobody_produced, "no-record", "orders:9:9"),
        (deliver_what_nobody_produced, "unknown", "orders:9:9"),
        (break_our_headers, "bad-header", "billing-RETRY-1s:0:0"),
        (write_an_event_that_is_none, "bad-event", "billing-RETRY-EVENTS:1:0"),
    ],
)
def test_a_planted_violation_is_found(plant: Callable[[World], None], kind: str, identity: str) -> None:
    world = sound()
    plant(world)
    assert (kind, identity) in kinds(check(world))


def test_a_planted_violation_is_laid_at_no_other_door() -> None:
    world = sound()
    change_the_key(world)
    assert kinds(check(world)) == {("altered", POISON)}


def test_rows_of_other_topics_are_passed_over() -> None:
    world = sound()
    world.rows.extend(Row(topic, 0, 0, START, b"k", b"{}", ()) for topic in ("billing-RETRY-VIEW", "other"))
    assert check(world).findings == ()


def test_a_lease_that_ran_out_may_be_unseen() -> None:
    world = sound()
    world.rows[3] = copy_row("billing-RETRY", 0, START + 20, life(FLAKY, 1, START + 15, "lease-expired"))
    del world.deliveries[1]
    report = check(world)
    assert report.findings == ()
    assert report.unseen == 1


def test_the_order_of_the_rows_does_not_matter() -> None:
    world = sound()
    assert check(World(world.rows[::-1], world.deliveries[::-1])) == check(world)


def test_the_99th_of_a_hundred_is_not_the_worst() -> None:
    late = spread([float(ms) for ms in range(101)])
    assert (late.count, late.p50, late.p99, late.worst) == (101, 50, 99, 100)


def test_nothing_measured_is_a_spread_of_nothing() -> None:
    assert spread([]).count == 0
