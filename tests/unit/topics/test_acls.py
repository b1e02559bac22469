"""Least rights as values: what each user gets in each mode, and what nobody ever gets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconsume.topics.acls import GroupShape, Operation, Permission, Resource, User, permissions_of
from reconsume.topics.names import Names

PUSH = GroupShape(Names("billing"), ("orders",), (10_000,))
RELAY = GroupShape(Names("billing"), ("orders",), (10_000,), mode="relay")
OF_SPARK = GroupShape(Names("billing"), ("orders",), (10_000,), mode="spark")
BROADCAST = GroupShape(Names("billing"), ("orders",), (10_000,), broadcast=True)
EVERY = [
    PUSH,
    RELAY,
    OF_SPARK,
    BROADCAST,
    GroupShape(Names("billing", "{topic}-{group}"), ("orders", "bills"), (1_000,), view=True),
]


def words(user: User, group: GroupShape) -> set[str]:
    return {str(right) for right in permissions_of(user, group)}


def test_a_sidecar_reads_and_writes_what_its_lanes_do() -> None:
    assert words(User.SIDECAR, PUSH) == {
        "READ on topic orders",
        "READ on topic billing-RETRY-10s",
        "WRITE on topic billing-RETRY-10s",
        "READ on topic billing-RETRY",
        "WRITE on topic billing-RETRY",
        "WRITE on topic billing-DLQ",
        "WRITE on topic billing-RETRY-EVENTS",
        "READ on topic billing-RETRY-POLICY",
        "WRITE on topic billing-RETRY-POLICY",
        "READ on group billing",
        "READ on group billing-RETRY",
        "WRITE on transactional-id billing-main-*",
        "WRITE on transactional-id billing-retry-*",
    }


def test_an_ordered_sidecar_reads_and_writes_its_queues() -> None:
    assert words(User.SIDECAR, replace(PUSH, ordered=True)) - words(User.SIDECAR, PUSH) == {
        "READ on topic billing-ORDERED-orders",
        "WRITE on topic billing-ORDERED-orders",
    }


def test_an_admin_who_takes_over_dead_letters_reads_the_foreign_topic_and_writes_to_the_dlq() -> None:
    assert words(User.ADMIN, replace(PUSH, imported=("orders-dlt",))) - words(User.ADMIN, PUSH) == {
        "READ on topic orders-dlt",
        "WRITE on topic billing-DLQ",
    }


def test_a_sidecar_of_a_relay_reads_no_record_of_the_service() -> None:
    found = words(User.SIDECAR, RELAY)
    assert {
        "DESCRIBE on topic orders",
        "WRITE on topic billing-RETRY",
        "WRITE on transactional-id billing-post-*",
    } < found
    assert not found & {"READ on topic orders", "READ on topic billing-RETRY", "READ on group billing"}


def test_a_broadcast_reads_its_main_topics_and_nothing_else() -> None:
    assert words(User.SIDECAR, BROADCAST) == {"READ on topic orders"}


def test_following_the_view_adds_to_a_sidecars_rights_and_takes_none() -> None:
    view = GroupShape(Names("billing"), ("orders",), (10_000,), view=True, source="spark")
    assert words(User.SIDECAR, view) - words(User.SIDECAR, PUSH) == {
        "READ on topic billing-RETRY-VIEW",
        "DESCRIBE_CONFIGS on topic billing-RETRY-VIEW",
        "READ on topic billing-RETRY-EVENTS",
        "DESCRIBE_CONFIGS on topic billing-RETRY-EVENTS",
        "DESCRIBE on group billing-RETRY-VIEW",
    }


def test_what_the_view_is_made_from_decides_what_its_readers_may_read() -> None:
    def more(source: str) -> set[str]:
        return words(User.SIDECAR, replace(PUSH, view=True, source=source)) - words(User.SIDECAR, PUSH)

    events = {"READ on topic billing-RETRY-EVENTS", "DESCRIBE_CONFIGS on topic billing-RETRY-EVENTS"}
    assert more("events") == events
    assert more("events") < more("spark"), "the sums are counted from the events"
    without = replace(PUSH, source="events", ui=True, redrives=True, view=True)
    assert words(User.SPARK, without) == set()
    for user in User:
        assert not any("-VIEW" in word for word in words(user, without)), user
    assert set(replace(PUSH, source="spark").own) == {*without.own, "billing-RETRY-VIEW"}


def test_a_service_meets_kafka_in_relay_mode_alone() -> None:
    assert words(User.SERVICE, PUSH) == set()
    posts = {"READ on topic orders", "READ on topic billing-RETRY", "READ on group billing"}
    assert words(User.SERVICE, RELAY) == posts
    direct = GroupShape(Names("billing"), ("orders",), (10_000,), mode="relay", direct=True)
    assert words(User.SERVICE, direct) - posts == {
        "WRITE on topic billing-RETRY-10s",
        "WRITE on topic billing-DLQ",
        "READ on topic billing-RETRY-EVENTS",
        "WRITE on topic billing-RETRY-EVENTS",
        "READ on topic billing-RETRY-POLICY",
        "WRITE on topic billing-RETRY-POLICY",
        "READ on group billing-SPARK-*",
        "WRITE on transactional-id billing-SPARK-*",
    }


def test_in_mode_spark_the_service_is_the_queries_and_there_is_no_sidecar() -> None:
    assert words(User.SIDECAR, OF_SPARK) == set()
    assert words(User.SERVICE, OF_SPARK) == {
        "READ on topic orders",
        "READ on topic billing-RETRY",
        "READ on topic billing-RETRY-10s",
        "WRITE on topic billing-RETRY-10s",
        "DESCRIBE_CONFIGS on topic billing-RETRY-10s",
        "WRITE on topic billing-DLQ",
        "READ on topic billing-RETRY-EVENTS",
        "WRITE on topic billing-RETRY-EVENTS",
        "READ on topic billing-RETRY-POLICY",
        "WRITE on topic billing-RETRY-POLICY",
        "READ on group billing-SPARK-*",
        "DESCRIBE on group billing",
        "DESCRIBE on group billing-RETRY",
        "WRITE on transactional-id billing-SPARK-*",
    }


def test_the_views_job_reads_events_alone_and_tells_how_far() -> None:
    assert words(User.SPARK, replace(PUSH, source="spark")) == {
        "READ on topic billing-RETRY-EVENTS",
        "WRITE on topic billing-RETRY-VIEW",
        "READ on group billing-RETRY-VIEW",
    }


@pytest.mark.parametrize("group", EVERY, ids=["push", "relay", "spark", "broadcast", "prefixed"])
@pytest.mark.parametrize("user", list(User))
def test_nobody_writes_main_topics_and_no_prefix_reaches_a_topic(user: User, group: GroupShape) -> None:
    rights = permissions_of(user, group)
    assert len(set(rights)) == len(rights)
    assert not [right for right in rights if right.name in group.topics and right.operation is Operation.WRITE]
    assert not [right for right in rights if right.prefixed and right.resource is Resource.TOPIC]


@pytest.mark.parametrize("group", EVERY, ids=["push", "relay", "spark", "broadcast", "prefixed"])
def test_the_ui_changes_nothing(group: GroupShape) -> None:
    assert {right.operation for right in permissions_of(User.UI, group)} <= {"READ", "DESCRIBE", "DESCRIBE_CONFIGS"}


@pytest.mark.parametrize("group", EVERY, ids=["push", "relay", "spark", "broadcast", "prefixed"])
@pytest.mark.parametrize("user", list(User))
def test_no_right_is_listed_that_another_one_carries(user: User, group: GroupShape) -> None:
    rights = set(permissions_of(user, group))
    for right in rights:
        if right.operation is Operation.DESCRIBE:
            carriers = (Operation.READ, Operation.WRITE, Operation.DELETE)
            assert not rights & {Permission(right.resource, right.name, carrier) for carrier in carriers}


def test_a_dashboard_in_the_sidecar_adds_the_rights_to_look_and_a_token_those_to_redrive() -> None:
    looking, acting = replace(PUSH, ui=True), replace(PUSH, ui=True, redrives=True)
    assert words(User.SIDECAR, looking) == words(User.SIDECAR, PUSH) | words(User.UI, PUSH)
    assert words(User.SIDECAR, acting) - words(User.SIDECAR, looking) == {
        "READ on group billing-DLQ-REDRIVE",
        "WRITE on transactional-id billing-DLQ-REDRIVE",
    }
    assert words(User.SIDECAR, acting) - words(User.SIDECAR, PUSH) - words(User.UI, PUSH) < words(User.ADMIN, PUSH)


def test_levels_of_a_removed_topic_keep_the_rights_that_levels_have() -> None:
    """Given a level that outlived its main topic, then every role has the same rights on it as on the others."""
    names = Names("billing", "{topic}-{group}")
    kept = names.level(10_000, "orders")
    removed = names.level(10_000, "old")
    group = GroupShape(names, ("orders",), (10_000,), ui=True, redrives=True, removed=(removed,))
    for user in User:
        rights = permissions_of(user, group)
        of = {name: {right.operation for right in rights if right.name == name} for name in (kept, removed)}
        assert of[removed] == of[kept]
    assert {right.operation for right in permissions_of(User.SIDECAR, group) if right.name == removed} >= {"READ"}
