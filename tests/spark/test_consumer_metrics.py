"""The metrics of queries have the sidecar's names, so that its alerts and its dashboard read them. Without Spark."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reconsume.spark.consumer import metrics
from reconsume.spark.consumer.configuration import build_rules
from reconsume.spark.consumer.foreach import Counts
from reconsume.spark.consumer.metrics import GAP, QueryMetrics, metrics_at
from reconsume.spark.consumer.workers import Tally
from tests.support.kubernetes.promql import exported_by
from tests.support.sidecar.metrics_world import a_world_at_work

SHIP = build_rules("billing", ["orders"], ladder=["10s", "30s"], name="ship")
BILL = build_rules("billing", ["orders"], name="bill")
ADDRESS = "127.0.0.1:0"
OWN = ("topic", "level", "reason", "outcome", "kind")
COMMIT, HOP = ("commit", "orders", ""), ("hop", "orders", "")


@pytest.fixture(autouse=True)
def _nothing_is_served() -> Iterator[None]:
    metrics._SERVED.clear()
    yield
    metrics._SERVED.clear()


def scraped() -> str:
    port = metrics._SERVED[ADDRESS].port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def samples(text: str, query: str) -> dict[str, float]:
    """The samples of a query, by name and the values of its own labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["group"] == "billing"
            if sample.labels["query"] == query:
                own = [sample.labels[name] for name in OWN if name in sample.labels]
                found["/".join([sample.name.removeprefix("reconsume_"), *own])] = sample.value
    return found


def test_two_queries_of_a_process_are_served_at_one_address_with_the_sums_of_their_batches() -> None:
    ship, bill = metrics_at(ADDRESS, SHIP), metrics_at(ADDRESS, BILL)
    mains = {COMMIT: 90, ("retry", "orders", "30s"): 7, ("passed_over", "orders", ""): 4, HOP: 1}
    level = {("dead_letter", "orders", "other"): 2, HOP: 2, ("refused", "(unknown)", "bad-header"): 1}
    tallies = [Tally("orders", 0, outcomes=mains), Tally("billing-RETRY-10s", 0, outcomes=level)]
    for _ in range(2):
        ship.took(Counts(1, odd_kinds={"verdict-error": 5}), tallies)
    bill.took(Counts(1), [Tally("orders", 0, outcomes={COMMIT: 1})])
    found = samples(scraped(), "ship")
    assert found | {"info": 1} == {
        "deliveries_total/orders/main/commit": 180,
        "deliveries_total/orders/main/retry": 14,
        "deliveries_total/orders/main/dead_letter": 0,
        "deliveries_total/orders/10s/dead_letter": 4,
        "retries_scheduled_total/orders/10s": 0,
        "retries_scheduled_total/orders/30s": 14,
        "dead_lettered_total/orders/other": 4,
        "dead_lettered_total/(unknown)/bad-header": 2,
        "hops_total": 6,
        "passed_over_total/orders": 8,
        "bad_headers_total": 2,
        "odd_verdicts_total/verdict-error": 10,
        "odd_verdicts_total/delay": 0,
        "odd_verdicts_total/level": 0,
        "undelivered_seconds": 0,
        "overdue_seconds": 0,
        "info": 1,
    }
    assert samples(scraped(), "bill")["deliveries_total/orders/main/commit"] == 1
    assert metrics_at(ADDRESS, SHIP) is ship, "a query that is started again goes on"


def test_a_batch_that_was_written_before_is_counted_as_deliveries_alone() -> None:
    meter = metrics_at(ADDRESS, SHIP)
    tallies = [Tally("orders", 0, outcomes={("retry", "orders", "30s"): 7})]
    meter.took(Counts(1, retry=7, writes=14), tallies)
    meter.took(Counts(1, retry=7, repeated=7), tallies)
    found = samples(scraped(), "ship")
    assert (found["deliveries_total/orders/main/retry"], found["retries_scheduled_total/orders/30s"]) == (14, 7)


def test_the_ages_are_those_of_the_last_batch_grow_while_one_gets_no_further_and_end_with_the_backlog() -> None:
    now = [100.0]
    meter = QueryMetrics(SHIP, lambda: now[0])
    assert meter.ages() == (0, 0)
    meter.begins()
    now[0] += 7
    assert meter.ages() == (7, 0), "at least as long as the batch takes"
    meter.took(Counts(1, waited_ms=90_000, late_ms=3_000), [])
    assert meter.ages() == (90, 3)
    meter.begins()
    now[0] += 200
    assert meter.ages() == (200, 200)
    meter.took(Counts(2), [])
    now[0] += GAP + 1
    assert meter.ages() == (0, 0)


def test_every_name_is_one_of_the_sidecars_with_no_other_label_but_the_query() -> None:
    """Given the names of both, then an alert or a panel that reads a sidecar's metric reads a query's as well."""
    meter = metrics_at(ADDRESS, SHIP)
    meter.took(Counts(1), [])
    sidecars = exported_by(a_world_at_work().scrape().decode())
    for name, ours in exported_by(scraped()).items():
        assert name in sidecars, name
        assert ours.kind == sidecars[name].kind, name
        assert ours.labels - {"query"} <= sidecars[name].labels, name


@pytest.mark.parametrize("address", ["9405", "127.0.0.1:http", "127.0.0.1:70000", "nowhere.invalid:9405"])
def test_an_address_that_cannot_be_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="metrics: "):
        metrics_at(address, SHIP)


def test_an_address_that_is_taken_is_refused_by_its_name() -> None:
    metrics_at(ADDRESS, SHIP)
    taken = f"127.0.0.1:{metrics._SERVED[ADDRESS].port}"
    with pytest.raises(ValueError, match=f"cannot listen on {taken}"):
        metrics_at(taken, SHIP)
