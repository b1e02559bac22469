"""What the names of topics and the heartbeats tell of a group, without Kafka."""

from __future__ import annotations

import pytest

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.group_policy.state import ControlState, control_record
from reconsume.sidecar.groups.discovery import groups_among, layout_of, main_topics, settings_from
from reconsume.sidecar.groups.survey import GroupRow, Outage, Reported, lag_of, start_of
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.settings.load import validate
from reconsume.topics.names import Names
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record

OWN = ("bill-RETRY", "bill-RETRY-10s", "bill-RETRY-1m", "bill-DLQ", "bill-RETRY-EVENTS", "bill-RETRY-POLICY")


def topics(*names: str) -> dict[str, list[tuple[str, int]]]:
    return {name: [(name, 0)] for name in names}


def heard(*subscriptions: dict[str, str]) -> ControlState:
    state = ControlState()
    for number, subscription in enumerate(subscriptions):
        value = render_record(SubscriptionRecord(subscription, 1))
        state.apply(control_record(instance_key(f"pod-{number}"), value, number, 1), 1)
    return state


def test_groups_are_found_by_their_policy_topics_and_only_those_that_are_wanted() -> None:
    there = ["bill-RETRY-POLICY", "ship-RETRY-POLICY", "ship-eu-RETRY-POLICY", "orders", "-RETRY-POLICY"]
    assert groups_among(there, ["*"]) == ("bill", "ship", "ship-eu")
    assert groups_among(there, ["ship-*", "bill"]) == ("bill", "ship-eu")
    assert groups_among(there, ["gone"]) == ("gone",), "a name that is no glob is a row in any case"
    assert groups_among(["x-RETRY-RETRY-POLICY"], ["*"]) == (), "no group may have such a name"


def test_main_topics_come_from_heartbeats_and_without_any_from_what_was_committed() -> None:
    names, there = Names("bill"), topics("orders", "invoices", *OWN)
    assert main_topics(names, heard({"orders": "A||B"}), there, ["invoices"]) == {"orders": "A||B"}
    assert main_topics(names, heard({"absent": "*"}), there, ()) == {}
    committed = ["invoices", "bill-RETRY", "bill-RETRY-10s"]
    assert main_topics(names, ControlState(), there, committed) == {"invoices": "*"}
    queues = topics("orders", "bill-ORDERED-orders", *OWN)
    assert main_topics(names, ControlState(), queues, ()) == {"orders": "*"}
    per_topic = topics("orders", "orders-bill-DLQ", "bill-RETRY-POLICY")
    assert main_topics(names, ControlState(), per_topic, ()) == {"orders": "*"}


@pytest.mark.parametrize(
    ("there", "template", "delays", "order"),
    [
        (topics("orders", *OWN), "{group}", (10_000, 60_000), "none"),
        (topics("orders", "orders-bill-DLQ", "orders-bill-RETRY-30s"), "{topic}-{group}", (30_000,), "none"),
        (topics("orders", "bill-DLQ", "bill-ORDERED-orders"), "{group}", (), "key"),
        (topics("orders", "bill-DLQ", "bill-RETRY-60s"), "{group}", (), "key"),
    ],
    ids=["levels", "a prefix for each topic", "a ladder that keeps the order", "another owner's topic"],
)
def test_prefix_levels_and_order_follow_from_the_names(
    there: dict[str, list[tuple[str, int]]], template: str, delays: tuple[int, ...], order: str
) -> None:
    base, faults = validate({"kafka": {"bootstrap.servers": "b:1"}, "ui": {"groups": ["*"], "hosts": ["tools"]}})
    assert base is not None, faults
    settings = settings_from(base, layout_of("bill", {"orders": "*"}, there))
    assert (settings.topic_prefix, settings.delays, settings.deliver.order) == (template, delays, order)
    assert (settings.kafka, settings.ui.hosts) == (base.kafka, ("tools",))


def test_what_is_done_above_the_committed_offset_is_no_lag() -> None:
    span = Span(5, 20)
    assert (start_of(span, None), lag_of(span, None)) == (5, 15)
    assert lag_of(span, Progress(10)) == 10
    assert lag_of(span, Progress(10, frozenset({11, 12}))) == 8
    assert (start_of(span, Progress(2)), lag_of(span, Progress(2))) == (5, 15), "retention was faster"
    assert lag_of(span, Progress(30)) == 0


def test_the_state_of_a_row_is_what_is_most_urgent() -> None:
    outage, waiting = Outage("outage", 1, "refused", 1), Outage("waiting", 1, "127.0.0.1:8080", 1)
    rows = {
        "never started": GroupRow("g", 1, started=False, members=0),
        "no member": GroupRow("g", 1, members=0, reported=Reported(outage=outage)),
        "waiting": GroupRow("g", 1, members=0, reported=Reported(outage=waiting)),
        "outage": GroupRow("g", 1, members=2, reported=Reported(outage=outage)),
        "unknown": GroupRow("g", 1, "not for this user to see"),
        "running": GroupRow("g", 1, members=1),
    }
    assert {state: row.state for state, row in rows.items()} == {state: state for state in rows}
