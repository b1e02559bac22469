"""Every metric moves when what it counts happens: one row each, and no metric without a row."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from reconsume.sidecar.core.ages import LogEnds
from reconsume.sidecar.core.holds import Hold, Holds
from reconsume.sidecar.core.outcome import (
    CANCELLED,
    COMMITTED,
    OUTCOME_NAMES,
    Died,
    Failed,
    NotSent,
    Outcome,
    Postponed,
    Rejected,
    Throttled,
    label_of,
)
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.observability.metrics import TRANSACTION_RESULTS
from reconsume.topics.position_ranges import ResetRange
from reconsume.topics.rates import Rate
from reconsume.topics.tags import TagFilter
from tests.support.kubernetes.promql import PAGE, ROW
from tests.support.sidecar.metrics_world import START, World, fresh, parked, queued, retried

Move = Callable[[World], None]

OUTCOMES: tuple[Outcome, ...] = (
    COMMITTED,
    Failed("http-500"),
    Failed("timeout", label="timeout"),
    Failed("broken-answer", label="broken_answer"),
    Rejected("bad-sku"),
    Throttled(1_000),
    Postponed(1_000),
    CANCELLED,
    Died(),
    NotSent("connection-refused"),  # the last: an outage begins
)


def delivered(world: World, *outcomes: Outcome) -> None:
    world.give(world.main, "orders", *(fresh("orders", offset) for offset in range(len(outcomes))))
    for outcome in outcomes:
        world.outside.answer(outcome)


def due_retry(late: int = 0) -> Record:
    appended = START.wall_ms - 10_000 - late
    return retried("billing-RETRY-10s", 0, appended + 10_000, appended)


def all_outcomes(world: World) -> None:
    delivered(world, *OUTCOMES)
    assert {label_of(outcome) for outcome in OUTCOMES} == set(OUTCOME_NAMES)
    for name in OUTCOME_NAMES:
        assert world.sample("reconsume_deliveries_total", topic="orders", level="main", outcome=name) == 1


def failed_and_committed(world: World) -> None:
    delivered(world, Failed("http-500"))
    world.commit(world.main)
    assert world.sample("reconsume_retries_scheduled_total", topic="orders", level="10s") == 1


def rejected_and_committed(world: World) -> None:
    delivered(world, Rejected("http-422"))
    world.commit(world.main)
    assert world.sample("reconsume_dead_lettered_total", topic="orders", reason="http-422") == 1


def failed_and_refused(world: World) -> None:
    delivered(world, Failed("http-500"))
    world.commit(world.main, "larger than the topic allows")
    assert world.sample("reconsume_refused_records") == 1


def held_back(world: World) -> None:
    world.give(
        world.retry, "billing-RETRY-10s", retried("billing-RETRY-10s", 0, START.wall_ms + 999, START.wall_ms - 9_001)
    )


def behind_a_full_service(world: World) -> None:
    world.give(world.main, "orders", *(fresh("orders", offset) for offset in range(8)))
    world.give(world.retry, "billing-RETRY-10s", due_retry(late=5_000))


def ended_in_time(world: World) -> None:
    world.give(world.main, "orders", fresh("orders"))
    world.ends[Partition("orders", 0)] = 10


def stalled(world: World) -> None:
    world.give(world.main, "orders", *(fresh("orders", offset) for offset in range(12)))
    source = Partition("orders", 0)
    earlier = replace(START, steady_ms=START.steady_ms - 60_000)
    world.ages.note_ends(LogEnds({source: 12}), world.main.shown.facts(earlier), earlier)
    assert world.sample("reconsume_undelivered_seconds", topic="orders", partition="0") >= 60


def given_up_for_another(world: World) -> None:
    world.give(world.main, "orders", fresh("orders"))
    earlier = replace(START, steady_ms=START.steady_ms - 7_000)
    world.main.release([Partition("orders", 0)], lambda: None, earlier)
    assert world.sample("reconsume_hand_over_seconds", topic="orders", partition="0") >= 7


def delivered_again(world: World) -> None:
    world.give(world.main, "orders", fresh("orders"))
    world.reset("orders", ResetRange(0, 8, 1, START.wall_ms))


def behind_a_key(world: World) -> None:
    world.queue("orders", queued("orders", 0, b"a"), queued("orders", 1, b"a"))


def transactions(world: World) -> None:
    for result in TRANSACTION_RESULTS:
        world.transactions.observe(result, 0.01)
        assert world.sample("reconsume_transactions_total", result=result) == 1


def answered_too_late(world: World) -> None:
    world.give(world.main, "orders", fresh("orders"))
    world.main.lost([Partition("orders", 0)])
    world.outside.answer(COMMITTED)


def broken_headers(world: World) -> None:
    record = replace(due_retry(), retry_state=None, fault="bad-header: RETRY_DUE_AT is missing")
    world.give(world.retry, "billing-RETRY-10s", record)


def not_wanted(world: World) -> None:
    world.give(world.main, "orders", fresh("orders"))


def not_due_yet(world: World) -> None:
    world.give(world.retry, "billing-RETRY-10s", retried("billing-RETRY-10s", 0, START.wall_ms + 70_000, 0))
    world.commit(world.retry)


def nothing_is_due(world: World) -> None:
    world.give(world.retry, "billing-RETRY-10s", retried("billing-RETRY-10s", 0, START.wall_ms, START.wall_ms))
    assert world.sample("reconsume_not_fetched_partitions", reason="not-due") == 1


def due_for_a_relay(world: World) -> None:
    world.give(world.retry, "billing-RETRY-10s", due_retry())
    world.commit(world.retry)


def on_hold(world: World) -> None:
    world.main.hold(Holds([Hold("a", key=b"k")]), START)
    world.give(world.main, "orders", fresh("orders"))
    assert world.sample("reconsume_not_delivered_partitions", reason="held") == 1


def behind_a_rate(world: World) -> None:
    world.gate.limits.set_rates(Rate(1, 3_600_000), None, START)
    world.give(world.main, "orders", fresh("orders"))


def told(name: str, count: int = 1) -> Move:
    """A count that a part beside the lanes keeps; flows move these on a real Kafka (`test_observed.py`)."""
    return lambda world: world.told.update({name: count})


MOVES: dict[str, Move] = {
    "deliveries": all_outcomes,
    "delivery_duration_seconds": lambda world: world.durations.add(0.01),
    "in_flight": lambda world: world.give(world.main, "orders", fresh("orders")),
    "retries_scheduled": failed_and_committed,
    "dead_lettered": rejected_and_committed,
    "buffered_records": held_back,
    "overdue_seconds": behind_a_full_service,
    "lateness_seconds": lambda world: world.give(world.retry, "billing-RETRY-10s", due_retry()),
    "transactions": transactions,
    "transaction_duration_seconds": transactions,
    "progress_lag": ended_in_time,
    "undelivered_seconds": stalled,
    "not_delivered_partitions": on_hold,
    "not_fetched_partitions": nothing_is_due,
    "outage": lambda world: delivered(world, NotSent("connection-refused")),
    "hand_over_seconds": given_up_for_another,
    "reset_left": delivered_again,
    "blocked_keys": behind_a_key,
    "behind_records": behind_a_key,
    "parked_keys": lambda world: world.queue("orders", parked("orders", 0, b"a")),
    "queue_fill_ratio": behind_a_key,
    "pace": lambda world: delivered(world, NotSent("connection-refused")),
    "pace_changes": lambda world: delivered(world, NotSent("connection-refused")),
    "concurrency_limit": lambda world: world.gate.set_concurrency(3),
    "limit_waiting": behind_a_rate,
    "clients_replaced": lambda world: world.replaced.update({"unknown": 1}),
    "restarts_in_place": lambda world: world.restarts.update({"queue-topic": 1}),
    "rebalances": lambda world: world.rebalances.update({"revoked": 1}),
    "fenced_answers": answered_too_late,
    "records_lost": lambda world: world.main.ownership.records_lost.update({"orders": 17}),
    "unread_progress": told("unread_progress"),
    "misplaced_progress": told("misplaced_progress"),
    "bad_headers": broken_headers,
    "odd_requests": lambda world: delivered(world, Failed("retry-asked", delay=1)),
    "odd_verdicts": told("odd_verdicts"),
    "service_deaths": told("service_deaths"),
    "passed_over": not_wanted,
    "hops": not_due_yet,
    "forwarded": due_for_a_relay,
    "bad_policy_records": told("bad_policy_records"),
    "removed_levels": told("removed_levels"),
    "instances_differ": told("instances_differ"),
    "holds": told("holds"),
    "oldest_hold_seconds": told("holds"),
    "on_hold_records": on_hold,
    "view_lag_seconds": told("view_lag", 7),
    "bad_view_records": told("bad_view_records"),
    "refused_records": failed_and_refused,
    "waiting_seconds": told("waiting", 7),
    "loop_errors": told("loop_errors"),
}
CONSTANT = {"info", "build_info"}
SET_UP: dict[str, Callable[[], World]] = {
    "passed_over": lambda: World(wanted=TagFilter({"orders": frozenset({b"TagA"})})),
    "forwarded": lambda: World(relay=True),
    **dict.fromkeys(("blocked_keys", "behind_records", "parked_keys", "queue_fill_ratio"), lambda: World(queued=True)),
}


def families(world: World) -> dict[str, str]:
    """Name and type of all that is exported."""
    found = text_string_to_metric_families(world.scrape().decode())
    return {family.name.removeprefix("reconsume_"): family.type for family in found}


def values(world: World, name: str) -> dict[object, float]:
    return {key: value for key, value in world.samples().items() if key[0].startswith(f"reconsume_{name}")}


def test_no_metric_is_without_a_way_to_move_it() -> None:
    assert set(MOVES) | CONSTANT == set(families(World()))


@pytest.mark.parametrize("name", MOVES)
def test_a_metric_moves_when_what_it_counts_happens(name: str) -> None:
    world = SET_UP.get(name, World)()
    before = values(world, name)
    MOVES[name](world)
    world.now = Now(START.wall_ms + 1, START.steady_ms + 1)
    moved = {key for key, value in values(world, name).items() if value != before.get(key, 0)}
    assert moved


def test_the_page_names_each_metric_with_its_type_and_labels() -> None:
    """Given `docs/metrics.md`, then it has a row for what is exported, here or by the dashboard, and no other."""
    told = {
        name.removeprefix("reconsume_").removesuffix("_total"): (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }
    labels = {name: labels_of(name) for name in MOVES}
    kinds = families(World())
    constant = {
        "info": ("gauge", {"version", "mode"}),
        "build_info": ("gauge", {"version", "commit", "python", "librdkafka"}),
    }
    of_dashboard = {f"group_{name}": ("gauge", {"group"}) for name in ("members", "lag", "undelivered_seconds")}
    own = {name: (kinds[name], labels[name]) for name in MOVES}
    assert told == {**own, **of_dashboard, **constant}


def labels_of(name: str) -> set[str]:
    """The labels of a metric, once it has moved."""
    world = SET_UP.get(name, World)()
    MOVES[name](world)
    for family in text_string_to_metric_families(world.scrape().decode()):
        if family.name == f"reconsume_{name}":
            return set(family.samples[-1].labels) - {"le", "group"}
    raise AssertionError(name)
