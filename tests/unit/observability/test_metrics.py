"""What a scrape says: the names of docs/metrics.md, read from the counts that a lane keeps."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reconsume.sidecar.core.outcome import COMMITTED, OUTCOME_NAMES, Failed, NotSent, Rejected
from reconsume.sidecar.core.record import Now, Partition
from reconsume.sidecar.observability.metrics import bounded_reason
from tests.support.sidecar.metrics_world import LEVELS, START, World, fresh, parked, queued, retried


@pytest.fixture
def world() -> World:
    return World()


def test_everything_bounded_starts_at_zero(world: World) -> None:
    """Given nothing happened yet, then rates can be computed of each outcome, result, kind, level and topic."""
    samples = world.samples()
    deliveries = {key[1]: value for key, value in samples.items() if key[0] == "reconsume_deliveries_total"}
    assert deliveries == {
        (("level", "main"), ("outcome", outcome), ("topic", topic)): 0
        for topic in ("orders", "invoices")
        for outcome in OUTCOME_NAMES
    }
    for result in ("committed", "aborted", "unknown", "refused", "fenced"):
        assert world.sample("reconsume_transactions_total", result=result) == 0
    for level in LEVELS:
        assert world.sample("reconsume_buffered_records", level=level) == 0
        assert world.sample("reconsume_overdue_seconds", level=level) == 0
    assert world.sample("reconsume_records_lost_total", topic="orders") == 0
    assert world.sample("reconsume_rebalances_total", kind="lost") == 0
    assert (
        world.sample(
            "reconsume_build_info", version="1.2.3", commit="0123456789ab", python="3.11.7", librdkafka="2.16.1"
        )
        == 1
    )


def test_each_series_states_its_group_and_info_has_who_it_belongs_to(world: World) -> None:
    """Given labels in the configuration, then nobody has to guess a group from names of pods, or look its team up."""
    families = list(text_string_to_metric_families(world.scrape().decode()))
    of_the_process = {sample.name for family in families for sample in family.samples if "group" not in sample.labels}
    assert of_the_process == {"reconsume_build_info"}
    (info,) = (sample for family in families for sample in family.samples if sample.name == "reconsume_info")
    labels = {"group": "billing", "version": "1.2.3", "mode": "push", "team": "payments"}
    assert (info.labels, info.value) == (labels, 1)


def test_outcomes_are_counted_by_main_topic_and_level(world: World) -> None:
    """Given one delivery of a main record and one of a retry, then each is counted where it belongs."""
    world.give(world.main, "orders", fresh("orders"))
    world.give(world.retry, "billing-RETRY-10s", retried("billing-RETRY-10s", 0, START.wall_ms, START.wall_ms - 10_000))
    assert world.sample("reconsume_in_flight") == 2
    world.outside.answer(COMMITTED)
    world.outside.answer(Failed("timeout", label="timeout"))
    assert world.sample("reconsume_in_flight") == 0
    assert world.sample("reconsume_deliveries_total", topic="orders", level="main", outcome="commit") == 1
    assert world.sample("reconsume_deliveries_total", topic="orders", level="10s", outcome="timeout") == 1


def test_the_lag_is_the_distance_from_what_is_done_to_the_end(world: World) -> None:
    """Given a partition of 10 offsets, then a delivery takes one off; before the first look the sample is absent."""
    world.give(world.main, "orders", fresh("orders"))
    with pytest.raises(KeyError):
        world.sample("reconsume_progress_lag", topic="orders", partition="0")
    world.ends[Partition("orders", 0)] = 10
    assert world.sample("reconsume_progress_lag", topic="orders", partition="0") == 10
    world.outside.answer(COMMITTED)
    assert world.sample("reconsume_progress_lag", topic="orders", partition="0") == 9


def test_blocked_keys_and_what_is_behind_them_are_counted_by_main_topic(world: World) -> None:
    """Given two keys of which three and one record wait, then both keys are blocked, and two records are behind."""
    assert not any(name == "reconsume_blocked_keys" for name, _ in world.samples()), "a group without queues has none"
    world = World(queued=True)
    assert world.sample("reconsume_blocked_keys", topic="orders") == 0
    world.queue("orders", *(queued("orders", offset, key) for offset, key in enumerate((b"a", b"b", b"a", b"a"))))
    assert world.sample("reconsume_blocked_keys", topic="orders") == 2
    assert world.sample("reconsume_behind_records", topic="orders") == 2
    assert world.sample("reconsume_queue_fill_ratio", topic="orders") == 4 / 16_384, "of its offsets, which are fewer"
    assert world.sample("reconsume_behind_records", topic="invoices") == 0
    assert world.sample("reconsume_parked_keys", topic="orders") == 0


def test_of_the_blocked_keys_those_are_parked_whose_first_record_is() -> None:
    world = World(queued=True)
    world.queue("orders", parked("orders", 0, b"a"), queued("orders", 1, b"a"), queued("orders", 2, b"b"))
    assert world.sample("reconsume_parked_keys", topic="orders") == 1
    assert world.sample("reconsume_blocked_keys", topic="orders") == 2
    assert world.sample("reconsume_parked_keys", topic="invoices") == 0


def test_lateness_is_in_seconds(world: World) -> None:
    """Given a retry released 150 ms after it was due, then it is in the bucket of 200 ms, not in that of 100."""
    appended = START.wall_ms - 10_150
    world.give(world.retry, "billing-RETRY-10s", retried("billing-RETRY-10s", 0, appended + 10_000, appended))
    assert world.sample("reconsume_lateness_seconds_bucket", le="0.1") == 0
    assert world.sample("reconsume_lateness_seconds_bucket", le="0.2") == 1
    assert world.sample("reconsume_lateness_seconds_bucket", le="+Inf") == 1
    assert world.sample("reconsume_lateness_seconds_count") == 1
    assert world.sample("reconsume_lateness_seconds_sum") == pytest.approx(0.15)


def test_a_value_beyond_the_last_bound_is_in_the_last_bucket_alone(world: World) -> None:
    world.durations.add(0.002)
    world.durations.add(1_000.0)
    assert world.sample("reconsume_delivery_duration_seconds_bucket", le="0.0025") == 1
    assert world.sample("reconsume_delivery_duration_seconds_bucket", le="900.0") == 1
    assert world.sample("reconsume_delivery_duration_seconds_bucket", le="+Inf") == 2


def test_what_waits_is_held_by_its_level_whatever_it_waits_for() -> None:
    """Given one place in flight, then held are the records behind it and those that are not due yet."""
    world = World(concurrency=1)
    world.give(world.main, "orders", *(fresh("orders", offset) for offset in range(3)))
    appended = START.wall_ms - 9_000
    world.give(world.retry, "billing-RETRY-10s", retried("billing-RETRY-10s", 0, appended + 10_000, appended))
    world.give(world.retry, "billing-RETRY", retried("billing-RETRY", 0, START.wall_ms, START.wall_ms))
    assert world.sample("reconsume_buffered_records", level="main") == 2
    assert world.sample("reconsume_buffered_records", level="10s") == 1
    assert world.sample("reconsume_buffered_records", level="ready") == 1
    assert world.sample("reconsume_buffered_records", level="1m") == 0


def test_overdue_is_the_age_of_the_earliest_retry_that_could_go() -> None:
    """Given two due retries behind a full service, then overdue grows from the earlier due time."""
    world = World(concurrency=1)
    world.give(world.main, "orders", fresh("orders"))
    appended = START.wall_ms - 15_000
    level = "billing-RETRY-10s"
    first, second = (retried(level, offset, appended + 10_000 + offset, appended + offset) for offset in (0, 1_000))
    world.give(world.retry, level, first, second)
    assert world.sample("reconsume_overdue_seconds", level="10s") == 5.0
    assert world.sample("reconsume_overdue_seconds", level="1m") == 0
    world.now = Now(START.wall_ms + 2_000, START.steady_ms + 2_000)
    assert world.sample("reconsume_overdue_seconds", level="10s") == 7.0
    world.outside.answer(COMMITTED)  # the first retry goes out
    assert world.sample("reconsume_overdue_seconds", level="10s") == 6.0


def test_a_record_that_waited_in_another_system_is_neither_late_nor_overdue_here(world: World) -> None:
    """Given records on a main topic that carry a life of their own, then no level but those of the group is named."""
    world.give(world.main, "orders", *(retried("orders", offset, 0, START.wall_ms - 60_000) for offset in range(20)))
    levels = {dict(labels)["level"] for name, labels in world.samples() if name == "reconsume_overdue_seconds"}
    assert levels == set(LEVELS)
    assert world.sample("reconsume_lateness_seconds_count") == 0


def test_a_partition_given_up_takes_its_records_out_of_the_gauges() -> None:
    world = World(concurrency=1)
    world.give(world.main, "orders", fresh("orders", 0), fresh("orders", 1))
    world.main.lost([Partition("orders", 0)])
    assert world.sample("reconsume_buffered_records", level="main") == 0


def test_exactly_one_pace_is_the_present_one(world: World) -> None:
    def paces() -> dict[str, float]:
        return {key[1][0][1]: value for key, value in world.samples().items() if key[0] == "reconsume_pace"}

    assert paces() == {"open": 1, "throttled": 0, "outage": 0}
    world.give(world.main, "orders", fresh("orders"))
    world.outside.answer(NotSent("connection-refused"))
    assert paces() == {"open": 0, "throttled": 0, "outage": 1}


def test_each_change_of_the_pace_is_counted(world: World) -> None:
    def changes() -> dict[str, float]:
        found = world.samples().items()
        return {key[1][0][1]: value for key, value in found if key[0] == "reconsume_pace_changes_total"}

    assert changes() == {"open": 0, "throttled": 0, "outage": 0, "probing": 0}
    world.give(world.main, "orders", fresh("orders"))
    world.outside.answer(NotSent("connection-refused"))
    assert changes() == {"open": 0, "throttled": 0, "outage": 1, "probing": 0}


def test_reasons_that_a_service_makes_up_are_one_label(world: World) -> None:
    """Given a thousand made-up reasons, then they are one series, and ours keep their own."""
    for number in range(1_000):
        world.main.counters.dead_letters["orders", f"bad-sku-{number}"] += 1
    world.main.counters.dead_letters["orders", "http-410"] += 2
    world.retry.counters.dead_letters["orders", "http-410"] += 1
    assert world.sample("reconsume_dead_lettered_total", topic="orders", reason="other") == 1_000
    assert world.sample("reconsume_dead_lettered_total", topic="orders", reason="http-410") == 3
    assert len([key for key in world.samples() if key[0] == "reconsume_dead_lettered_total"]) == 2


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("http-500", "http-500"),
        ("timeout", "timeout"),
        ("bad-header", "bad-header"),
        ("headers-unreadable", "headers-unreadable"),
        ("crashed-service", "crashed-service"),
        ("http-0500", "other"),
        ("http-5000", "other"),
        ("http-500\n", "other"),
        ("", "other"),
        ("orders:0:17", "other"),
    ],
)
def test_a_reason_label_is_one_of_a_closed_set(reason: str, label: str) -> None:
    assert bounded_reason(reason) == label


def test_a_rejection_is_an_outcome_even_before_its_dead_letter_is_in_kafka(world: World) -> None:
    """Given a record that the service refused for good, then the delivery counts at once, the dead letter not yet."""
    world.give(world.main, "invoices", fresh("invoices"))
    world.outside.answer(Rejected("bad-sku"))
    assert world.sample("reconsume_deliveries_total", topic="invoices", level="main", outcome="dead_letter") == 1
    assert not [key for key in world.samples() if key[0] == "reconsume_dead_lettered_total"]


def test_transactions_are_counted_and_only_real_ones_have_a_duration(world: World) -> None:
    for label in ("committed", "committed", "aborted", "refused", "fenced"):
        world.transactions.observe(label, 0.015)
    assert world.sample("reconsume_transactions_total", result="committed") == 2
    assert world.sample("reconsume_transactions_total", result="fenced") == 1
    assert world.sample("reconsume_transaction_duration_seconds_count") == 3
    assert world.sample("reconsume_transaction_duration_seconds_sum") == pytest.approx(0.045)


def test_both_committers_may_observe_at_once(world: World) -> None:
    def observe() -> None:
        for _ in range(5_000):
            world.transactions.observe("committed", 0.01)

    threads = [threading.Thread(target=observe) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        world.scrape()
    assert world.sample("reconsume_transactions_total", result="committed") == 10_000
    assert world.sample("reconsume_transaction_duration_seconds_count") == 10_000


def test_counts_of_the_consumers_threads_are_summed_over_lanes(world: World) -> None:
    world.main.ownership.records_lost["orders"] = 17
    world.rebalances["assigned"] = 2
    assert world.sample("reconsume_records_lost_total", topic="orders") == 17
    assert world.sample("reconsume_rebalances_total", kind="assigned") == 3


def test_no_label_holds_an_id_a_key_or_an_offset(world: World) -> None:
    """Given deliveries of every kind, then labels are only what the configuration and closed families know."""
    world.give(world.main, "orders", *(fresh("orders", 7_000_000 + number) for number in range(3)))
    for outcome in (COMMITTED, Failed("http-500", "secret-text"), Rejected("secret-reason")):
        world.outside.answer(outcome)
    text = world.scrape().decode()
    assert "7000000" not in text
    assert "secret" not in text
    names = {name for _, labels in world.samples() for name, _ in labels}
    assert names <= {
        "topic",
        "team",
        "level",
        "outcome",
        "reason",
        "result",
        "state",
        "kind",
        "cause",
        "partition",
        "version",
        "mode",
        "commit",
        "python",
        "librdkafka",
        "scope",
        "le",
    }
