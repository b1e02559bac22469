"""What doctor makes of the failures, dead letters and ages that running instances say."""

from __future__ import annotations

import msgspec
import pytest

from reconsume.sidecar.core.record import Now
from reconsume.sidecar.doctor.checks.sums import dead_letters, failures, lag, parked
from reconsume.sidecar.doctor.findings import Report, Status
from reconsume.sidecar.group_policy.state import ControlState, control_record
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.instance_sums import (
    LARGEST,
    InstanceSums,
    TopicDeadLetters,
    TopicFailures,
    TopicLag,
    bounded,
    top,
)
from reconsume.topics.policy_record import InstanceHeard, PaceTold, SubscriptionRecord
from tests.support.control_log import state_of

NOW = Now(1_000_000_000, 5_000)
OLD = NOW.wall_ms - 42_000


def heard(*all_sums: InstanceSums | None, at: int = NOW.wall_ms - 1_000) -> ControlState:
    """Heartbeats of instances with these sums; None: it says none."""
    beats = (SubscriptionRecord({"orders": "*"}, at, sums=one) for one in all_sums)
    return state_of(*(InstanceHeard(f"pod-{number}", beat) for number, beat in enumerate(beats)), at=at)


def failed(count: int, of: int) -> InstanceSums:
    return InstanceSums(OLD, failures=[TopicFailures("orders", of, count, {"http-500": count})])


def waits(
    partition: int, oldest: int, second: int | None = None, *, grows: bool = False, at: int = OLD
) -> InstanceSums:
    after = None if second is None else second * 1000
    return InstanceSums(at, lag=[TopicLag("orders", partition, oldest * 1000, after, grows)])


@pytest.mark.parametrize(
    ("sums", "status"),
    [
        ([failed(9, 100)], Status.OK),
        ([failed(10, 100)], Status.WARN),
        ([failed(50, 100)], Status.FAIL),
        ([failed(19, 19)], Status.OK),
        ([failed(0, 30), failed(30, 30)], Status.FAIL),
        ([failed(0, 300), failed(10, 10)], Status.OK),
    ],
)
def test_the_share_of_failures_is_that_of_all_instances(sums: list[InstanceSums], status: Status) -> None:
    (one,) = failures(heard(*sums), NOW)
    assert one.status is status
    assert "the oldest sum is 42s old" in one.finding


def test_of_retries_in_place_the_commands_are_named_that_list_them() -> None:
    stuck = SubscriptionRecord({"orders": "*"}, NOW.wall_ms, sums=failed(36, 37), retried_in_place=1)
    (one,) = failures(state_of(InstanceHeard("pod-0", stuck), at=NOW.wall_ms), NOW)
    assert one.mend == (
        "retries in place are not in `reconsume retries list`: `reconsume retries list --blocked` names those that "
        "fail longest, and `reconsume find --topic orders` lists all that is not done"
    )


def test_a_topic_that_fails_is_named_with_its_reasons_the_most_frequent_first() -> None:
    sums = InstanceSums(OLD, failures=[TopicFailures("orders", 40, 30, {"timeout": 5, "http-500": 25})])
    assert "orders: 75% of 40 attempts failed in the last 5m: 25 http-500, 5 timeout" in str(failures(heard(sums), NOW))


def test_too_few_attempts_are_ok_and_the_finding_says_that_they_are_too_few() -> None:
    (one,) = failures(heard(InstanceSums(OLD, failures=[TopicFailures("orders", 13, 12, {"http-500": 12})])), NOW)
    assert one.status is Status.OK
    text = "12 of 13 attempts failed in the last 5m; too few to judge: orders has 13 of at least 20 attempts"
    assert one.finding.startswith(text)
    (one,) = failures(heard(InstanceSums(OLD, failures=[TopicFailures("orders", 13, 1, {})])), NOW)
    assert "too few" not in one.finding, "few of them failed"


def test_parked_keys_of_all_instances_warn_with_the_commands_that_list_and_settle_them() -> None:
    (one,) = parked(heard(InstanceSums(OLD, parked=2), InstanceSums(OLD, parked=1)), NOW)
    assert one.status is Status.WARN
    assert one.finding.startswith("3 keys are parked, and wait until an operator settles the first record")
    for command in ("reconsume retries list --blocked", "reconsume settle --waiting --level parked --retry-now"):
        assert command in one.mend
    (none,) = parked(heard(InstanceSums(OLD)), NOW)
    assert (none.status, none.finding.startswith("no key is parked")) == (Status.OK, True)


def test_dead_letters_warn_from_the_first_one_and_never_fail() -> None:
    sums = InstanceSums(OLD, dead_letters=[TopicDeadLetters("orders", {"http-422": 9})])
    (one,) = dead_letters(heard(sums, sums), NOW)
    assert one.status is Status.WARN
    assert "orders: 18 new dead letters in the last 15m: 18 http-422" in one.finding
    assert dead_letters(heard(InstanceSums(OLD)), NOW)[0].status is Status.OK


@pytest.mark.parametrize(
    ("sums", "status"),
    [
        ([waits(0, 299, 250)], Status.OK),
        ([waits(0, 300, 250)], Status.WARN),
        ([waits(0, 60, 9)], Status.WARN),
        ([waits(0, 60), waits(1, 9)], Status.WARN),
        ([waits(0, 60), waits(1, 10)], Status.OK),
        ([waits(0, 60)], Status.OK),
        ([waits(0, 400, at=OLD - 9_000), waits(0, 1)], Status.OK),
    ],
)
def test_lag_is_judged_by_topic_and_by_partitions_that_stand_alone(sums: list[InstanceSums], status: Status) -> None:
    assert Report("lag", tuple(lag(heard(*sums), ["orders"], NOW))).status is status


@pytest.mark.parametrize(
    ("cause", "status"), [("unreachable", Status.OK), ("unwell", Status.OK), ("failing", Status.WARN)]
)
def test_what_waits_in_an_outage_that_delivers_nothing_is_no_finding_of_its_own(cause: str, status: Status) -> None:
    pace = PaceTold("outage", OLD, cause=cause)
    away = SubscriptionRecord({"orders": "*"}, NOW.wall_ms, pace, sums=waits(3, 420))
    state = state_of(InstanceHeard("pod-0", away), at=NOW.wall_ms)
    assert Report("lag", tuple(lag(state, ["orders"], NOW))).status is status


def test_a_lag_that_grows_says_so() -> None:
    assert "orders[3]: its oldest undelivered record has waited for 7m, and this grows" in str(
        lag(heard(waits(3, 420, grows=True)), ["orders"], NOW)
    )


def test_a_stall_names_the_record_that_is_retried_in_place_there() -> None:
    head = InPlaceTold("orders:3:17", 40, NOW.wall_ms, NOW.wall_ms - 420_000, "http-409")
    beat = SubscriptionRecord({"orders": "*"}, NOW.wall_ms, sums=waits(3, 420), retried_in_place=1, in_place=(head,))
    finding = str(lag(state_of(InstanceHeard("pod-0", beat), at=NOW.wall_ms), ["orders"], NOW))
    assert (
        "for 7m; orders:3:17 is retried in place: 40 attempts failed, the last with http-409; the next one is due"
        in finding
    )


def test_while_something_is_held_the_finding_says_that_this_does_not_count() -> None:
    state, now = heard(waits(0, 1)), NOW.wall_ms
    hold = HoldRecord(now, now + 60_000, "why", "ann", topic="orders")
    state.apply(control_record(hold_key("h"), render_hold(hold), 9, now), now)
    (one,) = lag(state, ["orders"], NOW)
    assert one.status is Status.OK
    assert "; what operators hold is not counted (of 1 instance" in one.finding


Records = ControlState | None


@pytest.mark.parametrize("records", [None, heard(), heard(None), heard(failed(0, 99), at=NOW.wall_ms - 180_000)])
def test_without_an_instance_that_says_it_nothing_is_ok(records: Records) -> None:
    found = (failures(records, NOW), dead_letters(records, NOW), lag(records, ["orders"], NOW))
    assert {one.status for findings in found for one in findings} == {Status.NOT_CHECKED}


def test_what_some_instances_do_not_say_is_not_checked_beside_what_the_others_say() -> None:
    found = failures(heard(failed(50, 100), None), NOW)
    assert [one.status for one in found] == [Status.NOT_CHECKED, Status.FAIL]
    (unknown, _) = lag(heard(waits(0, 1)), ["orders", "invoices"], NOW)
    assert (unknown.status, "invoices" in unknown.finding) == (Status.NOT_CHECKED, True)


def test_sums_are_bounded_say_what_they_leave_out_and_keep_the_worst() -> None:
    topics = [f"{'t' * 200}-{number}" for number in range(50)]
    sums = bounded(
        OLD,
        [TopicFailures(topic, 100, number, top([("http-500", number)])) for number, topic in enumerate(topics)],
        [TopicDeadLetters(topic, top([("http-500", number)])) for number, topic in enumerate(topics)],
        [TopicLag(topic, 0, number, None, grows=False) for number, topic in enumerate(topics)],
    )
    assert len(msgspec.json.encode(sums)) <= LARGEST
    kept = (sums.failures, sums.dead_letters, sums.lag)
    assert [kind[0].topic for kind in kept] == [topics[-1]] * 3
    assert sums.omitted == 150 - sum(map(len, kept))


def test_rare_reasons_are_summed_up() -> None:
    assert top([(f"r{number}", number) for number in range(1, 9)]) == {
        "r8": 8,
        "r7": 7,
        "r6": 6,
        "r5": 5,
        "r4": 4,
        "other": 6,
    }
