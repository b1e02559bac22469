"""Specifications: the group's topics are as the contract says, whatever its main topics are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconsume.topics.levels import LONGEST, TABLE
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import HEADER_ROOM, Source, TopicSpec, group_specs

DAY = 86_400_000
ORDERS = Source("orders", partitions=6, replication=3, max_message_bytes=1_048_588, min_insync_replicas=2)
INVOICES = Source("invoices", partitions=3, replication=2, max_message_bytes=5_000_000, min_insync_replicas=1)
BILLING = Names("billing")
TDMQ = Names("billing", "{topic}-{group}")
SOURCES = st.lists(
    st.builds(
        Source,
        name=st.from_regex(r"[a-z]{1,8}", fullmatch=True),
        partitions=st.integers(1, 500),
        replication=st.integers(1, 5),
        max_message_bytes=st.integers(0, 2**31 - 1),
        min_insync_replicas=st.integers(1, 5),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda source: source.name,
)


def by_name(names: Names, *sources: Source, delays: tuple[int, ...] = TABLE) -> dict[str, TopicSpec]:
    return {spec.name: spec for spec in group_specs(names, sources, delays, rows=True)}


def test_a_level_topic_is_as_the_contract_says() -> None:
    assert by_name(BILLING, ORDERS, INVOICES)["billing-RETRY-2h"] == TopicSpec(
        "billing-RETRY-2h",
        Kind.LEVEL,
        6,
        3,
        {
            "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime",
            "retention.ms": str(7_200_000 + 7 * DAY),
            "retention.bytes": "-1",
            "max.message.bytes": str(5_000_000 + 16_384),
            "min.insync.replicas": "2",
        },
    )


def test_a_queue_topic_has_as_many_partitions_as_its_main_topic() -> None:
    wide = Source("wide", partitions=50, replication=3, max_message_bytes=1_048_588, min_insync_replicas=2)
    specs = {spec.name: spec for spec in group_specs(BILLING, [ORDERS, wide], (), ordered=True)}
    assert {name: spec.partitions for name, spec in specs.items() if spec.kind is Kind.ORDERED} == {
        "billing-ORDERED-orders": 6,
        "billing-ORDERED-wide": 50,
    }
    config = specs["billing-ORDERED-wide"].config
    assert (config["cleanup.policy"], config["message.timestamp.type"]) == ("delete", "LogAppendTime")
    assert int(config["retention.ms"]) >= 2 * LONGEST
    assert int(config["max.message.bytes"]) == 1_048_588 + HEADER_ROOM


def test_a_group_has_a_level_topic_a_delay_and_four_more_and_two_for_sparks_view() -> None:
    plain = {spec.name for spec in group_specs(BILLING, [ORDERS, INVOICES], TABLE)}
    specs = group_specs(BILLING, [ORDERS, INVOICES], TABLE, rows=True)
    assert [spec.kind for spec in specs].count(Kind.LEVEL) == len(TABLE)
    others = {spec.name: spec.kind for spec in specs if spec.kind is not Kind.LEVEL}
    assert others == {
        "billing-RETRY": Kind.READY,
        "billing-DLQ": Kind.DLQ,
        "billing-RETRY-EVENTS": Kind.EVENTS,
        "billing-RETRY-VIEW": Kind.VIEW,
        "billing-RETRY-POLICY": Kind.POLICY,
    }
    assert {spec.name for spec in specs} - plain == {"billing-RETRY-VIEW"}


def test_a_group_has_as_many_partitions_as_its_widest_main_topic_but_at_most_six() -> None:
    kinds = ("RETRY", "DLQ", "RETRY-10s")
    for widest, expected in ((1, 1), (5, 5), (6, 6), (48, 6)):
        specs = by_name(BILLING, replace(ORDERS, partitions=1), replace(INVOICES, partitions=widest), delays=(10_000,))
        assert {specs[f"billing-{kind}"].partitions for kind in kinds} == {expected}


def test_with_the_topic_prefix_levels_and_dlq_follow_their_own_source() -> None:
    specs = by_name(TDMQ, ORDERS, INVOICES, delays=(10_000,))
    level, dlq = specs["invoices-billing-RETRY-10s"], specs["invoices-billing-DLQ"]
    for spec in (level, dlq):
        assert (spec.partitions, spec.replication, spec.config["min.insync.replicas"]) == (3, 2, "1")
    assert specs["orders-billing-DLQ"].config["max.message.bytes"] == str(1_048_588 + 16_384)
    assert len(specs) == 2 * 2 + 4
    assert specs["billing-RETRY"].replication == 3


@pytest.mark.parametrize(
    ("name", "cleanup"),
    [
        ("billing-RETRY", "delete"),
        ("billing-DLQ", "delete"),
        ("billing-RETRY-EVENTS", "delete"),
        ("billing-RETRY-VIEW", "compact,delete"),
        ("billing-RETRY-POLICY", "compact"),
    ],
)
def test_each_topic_is_cleaned_up_as_the_contract_says(name: str, cleanup: str) -> None:
    assert by_name(BILLING, ORDERS)[name].config["cleanup.policy"] == cleanup


def test_dead_letters_are_kept_for_thirty_days_with_their_create_time() -> None:
    config = by_name(BILLING, ORDERS)["billing-DLQ"].config
    assert config["retention.ms"] == str(30 * DAY)
    assert config["message.timestamp.type"] == "CreateTime"


def test_events_and_sums_are_kept_for_a_week() -> None:
    specs = by_name(BILLING, ORDERS)
    assert specs["billing-RETRY-EVENTS"].config["retention.ms"] == str(7 * DAY)


def test_the_view_remembers_at_least_as_long_as_the_dlq() -> None:
    specs = by_name(BILLING, ORDERS)
    assert int(specs["billing-RETRY-VIEW"].config["retention.ms"]) >= int(specs["billing-DLQ"].config["retention.ms"])


def test_the_policy_topic_has_the_control_log_and_a_partition_for_transactions_and_the_brokers_times() -> None:
    policy = by_name(BILLING, ORDERS)["billing-RETRY-POLICY"]
    assert policy.partitions == 2
    assert policy.config["message.timestamp.type"] == "LogAppendTime"
    assert (policy.config["segment.ms"], policy.config["min.cleanable.dirty.ratio"]) == ("600000", "0.1")


def test_a_group_without_main_topics_has_no_specification() -> None:
    with pytest.raises(ValueError, match="without main topics"):
        group_specs(BILLING, [], TABLE)


def test_a_delay_given_twice_has_one_topic() -> None:
    assert len(by_name(BILLING, ORDERS, delays=(1_000, 1_000))) == len(by_name(BILLING, ORDERS, delays=(1_000,)))


@given(SOURCES, st.sets(st.integers(1, LONGEST), min_size=1, max_size=4), st.sampled_from([BILLING, TDMQ]))
def test_no_copy_is_deleted_while_it_waits_nor_too_large_nor_less_safe(
    sources: list[Source], delays: set[int], names: Names
) -> None:
    specs = group_specs(names, sources, tuple(delays))
    topics = {source.name for source in sources}
    assert len({spec.name for spec in specs}) == len(specs)
    assert {spec.name for spec in specs if spec.kind is Kind.LEVEL} == set(names.levels_of(delays, topics))
    for spec in specs:
        role = names.role(spec.name, topics)
        assert role is not None
        assert role.kind is spec.kind
        own = [source for source in sources if role.topic in (None, source.name)]
        assert spec.replication == max(source.replication for source in own)
        assert int(spec.config["min.insync.replicas"]) == max(source.min_insync_replicas for source in own)
        assert spec.partitions >= 1
        if spec.kind in (Kind.LEVEL, Kind.READY, Kind.DLQ):
            assert spec.partitions == min(6, max(source.partitions for source in own))
            assert spec.config["cleanup.policy"] == "delete"
            assert spec.config["retention.bytes"] == "-1"
            assert int(spec.config["retention.ms"]) >= (role.delay or 0) + 7 * DAY
            room = max(source.max_message_bytes for source in own) + HEADER_ROOM
            assert int(spec.config["max.message.bytes"]) == min(room, 2**31 - 1)
