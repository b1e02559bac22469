"""Names: both ways, exactly, for every legal group, topic and delay."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reconsume.topics.levels import LONGEST, TABLE
from reconsume.topics.names import TEMPLATES, Kind, Names, Role, build_names, check_name, group_fault

LEGAL = st.from_regex(r"[a-zA-Z0-9._-]{1,60}", fullmatch=True).filter(lambda name: name not in (".", ".."))
TRAPS = st.sampled_from(
    [
        "billing",
        "billing-RETRY",
        "billing-RETRY-10s",
        "RETRY",
        "10s",
        "-RETRY-",
        "billing-DLQ",
        "billing-ORDERED",
        "billing-ORDERED-x",
    ]
)
NAME = LEGAL | TRAPS
DELAYS = st.sets(st.integers(1, LONGEST), min_size=1, max_size=5)
TOPICS = ["orders", "invoices"]
BILLING = Names("billing")
TDMQ = Names("billing", "{topic}-{group}")


def test_the_names_of_the_contract() -> None:
    assert BILLING.level(10_000, "orders") == "billing-RETRY-10s"
    assert BILLING.level(7_200_000, "orders") == "billing-RETRY-2h"
    assert BILLING.dlq("orders") == "billing-DLQ"
    assert BILLING.ready == "billing-RETRY"
    assert BILLING.events == "billing-RETRY-EVENTS"
    assert BILLING.view == "billing-RETRY-VIEW"
    assert BILLING.policy == "billing-RETRY-POLICY"
    assert BILLING.retry_group == "billing-RETRY"
    assert BILLING.redrive_group == "billing-DLQ-REDRIVE"
    assert BILLING.view_group == "billing-RETRY-VIEW"


def test_each_main_topic_has_its_queue_topic() -> None:
    assert BILLING.ordered("orders") == "billing-ORDERED-orders"
    assert TDMQ.ordered("orders") == "orders-billing-ORDERED"
    for names in (BILLING, TDMQ):
        assert names.role(names.ordered("orders"), TOPICS) == Role(Kind.ORDERED, topic="orders")
        assert names.role(names.ordered("others"), TOPICS) is None


def test_the_topic_prefix_is_for_level_topics_and_dlq_only() -> None:
    assert TDMQ.level(10_000, "orders") == "orders-billing-RETRY-10s"
    assert TDMQ.dlq("orders") == "orders-billing-DLQ"
    shared = [(n.ready, n.events, n.view, n.policy, n.retry_group, n.redrive_group) for n in (BILLING, TDMQ)]
    assert shared[0] == shared[1]


def test_all_topics_of_a_group_share_its_level_topics() -> None:
    assert BILLING.levels_of((60_000, 10_000), TOPICS) == ("billing-RETRY-10s", "billing-RETRY-1m")
    assert BILLING.dlqs_of(TOPICS) == ("billing-DLQ",)


def test_with_the_topic_prefix_each_topic_has_its_own() -> None:
    assert TDMQ.levels_of((10_000,), TOPICS) == ("invoices-billing-RETRY-10s", "orders-billing-RETRY-10s")
    assert TDMQ.dlqs_of(TOPICS) == ("invoices-billing-DLQ", "orders-billing-DLQ")


@pytest.mark.parametrize(
    "name",
    [
        "billing-RETRY-RETRY-10s",  # a level of the group billing-RETRY
        "billing-RETRY-RETRY",
        "billing-RETRY-EVENTS-1",
        "billing-RETRY-60s",  # not our spelling of 1m
        "billing-RETRY-010s",
        "billing-RETRY-0s",
        "billing-RETRY-10",
        "billing-RETRY-10s-2",
        "billing-RETRY-",
        "billing-RETRY-10S",
        "billing-RETRY-events",
        "billingxRETRY",
        "mybilling-RETRY-10s",
        "billing-DLQ-REDRIVE",
        "billing",
        "orders-billing-RETRY-10s",  # the other prefix
        "",
    ],
)
def test_a_name_that_only_looks_like_ours_has_no_role(name: str) -> None:
    assert BILLING.role(name, TOPICS) is None


def test_a_dot_in_a_group_is_no_pattern() -> None:
    assert Names("a.b").role("axb-RETRY-10s", TOPICS) is None
    assert Names("a.b").role("a.b-RETRY-10s", TOPICS) == Role(Kind.LEVEL, 10_000)


def test_a_level_of_an_unknown_source_topic_has_no_role() -> None:
    assert TDMQ.role("payments-billing-RETRY-10s", TOPICS) is None
    assert TDMQ.role("billing-RETRY-10s", TOPICS) is None
    assert TDMQ.role("orders-billing-RETRY-10s", TOPICS) == Role(Kind.LEVEL, 10_000, "orders")


@given(NAME, st.sampled_from(TEMPLATES), st.sets(NAME, min_size=1, max_size=4), DELAYS)
def test_every_name_of_a_group_leads_back_to_its_role(
    group: str, template: str, topics: set[str], delays: set[int]
) -> None:
    try:
        names = build_names(group, topics, delays, template)
    except ValueError as fault:
        assume("cannot be a main topic" not in str(fault))
        raise
    per_topic = template != "{group}"
    for topic in topics:
        source = topic if per_topic else None
        assert names.role(topic, topics) == Role(Kind.MAIN, topic=topic)
        assert names.role(names.dlq(topic), topics) == Role(Kind.DLQ, topic=source)
        for delay in delays:
            assert names.role(names.level(delay, topic), topics) == Role(Kind.LEVEL, delay, source)
    for name, kind in [
        (names.ready, Kind.READY),
        (names.events, Kind.EVENTS),
        (names.view, Kind.VIEW),
        (names.policy, Kind.POLICY),
    ]:
        assert names.role(name, topics) == Role(kind)


@given(NAME, st.sampled_from(TEMPLATES), st.sets(NAME, max_size=4), NAME | st.text(max_size=30))
def test_a_name_with_a_role_is_one_that_the_group_itself_would_write(
    group: str, template: str, topics: set[str], name: str
) -> None:
    names = Names(group, template)
    match names.role(name, topics):
        case None:
            assert name not in topics
        case Role(kind=Kind.LEVEL, delay=int(delay), topic=topic):
            assert names.level(delay, topic or "") == name
        case Role(kind=Kind.DLQ, topic=topic):
            assert names.dlq(topic or "") == name
        case Role(kind=Kind.MAIN):
            assert name in topics
        case Role(kind=kind):
            assert name == getattr(names, kind)


@given(NAME, NAME, st.sampled_from(TEMPLATES), st.integers(1, LONGEST))
def test_two_groups_never_share_a_level_topic_of_one_source(one: str, other: str, template: str, delay: int) -> None:
    assume(one != other)
    assert Names(one, template).level(delay, "orders") != Names(other, template).level(delay, "orders")


@pytest.mark.parametrize("topic", ["billing-RETRY", "billing-RETRY-10s", "billing-DLQ", "billing-RETRY-EVENTS"])
def test_a_main_topic_cannot_be_one_of_the_groups_own(topic: str) -> None:
    with pytest.raises(ValueError, match="cannot be a main topic"):
        build_names("billing", ["orders", topic], TABLE)


@pytest.mark.parametrize("template", ["{topic}", "", "x-{group}", "{group}-{topic}", "{group.__class__}"])
def test_only_the_two_templates_are_prefixes(template: str) -> None:
    with pytest.raises(ValueError, match="is not a prefix"):
        build_names("billing", TOPICS, TABLE, template)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a:b", "é", "１", "a\n", "a" * 250])
def test_a_name_that_kafka_refuses_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Kafka"):
        check_name(name)
    with pytest.raises(ValueError, match="Kafka"):
        build_names(name, TOPICS, TABLE)
    with pytest.raises(ValueError, match="Kafka"):
        build_names("billing", [name], TABLE)


@pytest.mark.parametrize("name", ["a", "...", "a" * 249, "A.b_c-9"])
def test_a_name_that_kafka_takes_is_taken(name: str) -> None:
    check_name(name)


def test_the_longest_name_of_the_group_decides() -> None:
    longest = 249 - len("-RETRY-POLICY")
    build_names("g" * longest, TOPICS, TABLE)
    with pytest.raises(ValueError, match="250 characters"):
        build_names("g" * (longest + 1), TOPICS, TABLE)


def test_the_longest_level_decides_too() -> None:
    delays = (93_784_005,)  # 1d2h3m4s5ms
    group = "g" * (249 - len("orders--RETRY-1d2h3m4s5ms"))
    build_names(group, ["orders"], delays, "{topic}-{group}")
    with pytest.raises(ValueError, match="251 characters"):
        build_names(group, ["invoices"], delays, "{topic}-{group}")


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ("sec-RETRY", "must not end in -RETRY: the group sec uses that name for itself"),
        ("sec-RETRY-VIEW", "must not end in -RETRY-VIEW"),
        ("sec-DLQ-REDRIVE", "must not end in -DLQ-REDRIVE"),
        ("sec-BROADCAST", "must not end in -BROADCAST"),
        ("a-b-RETRY", "the group a-b uses"),
        ("sec-main-x", "must not contain -main-: rights of the group sec are on sec-main-*"),
        ("sec-main", "must not contain -main-"),
        ("sec-retry-x", "must not contain -retry-"),
        ("sec-post-x", "must not contain -post-"),
        ("sec", ""),
        ("main-x", ""),
        ("post", ""),
        ("RETRY", ""),
        ("sec-RETRY-x", "must not contain -RETRY"),
        ("sec-ORDERED-x", "must not contain -ORDERED"),
        ("sec-ORDERED", "must not contain -ORDERED"),
        ("sec-DLQ", "must not contain -DLQ: the topics of the group sec have such names"),
        ("sec-DLQs", "must not contain -DLQ"),
        ("sec-ORDEREDLY", ""),
        ("DLQ", ""),
        ("sec-retries", ""),
        ("sec-mainly-x", ""),
        ("secRETRY", ""),
    ],
)
def test_a_group_is_not_called_as_another_group_calls_what_is_its_own(group: str, says: str) -> None:
    assert says in group_fault(group)
    assert bool(group_fault(group)) == bool(says)


@given(NAME)
def test_no_name_that_a_group_derives_from_its_own_may_be_a_groups(group: str) -> None:
    """Given any group, then a group of the same name as one of its consumer groups or transactional ids is refused."""
    names = Names(group)
    ids = (f"{group}-main-pod-0", f"{group}-retry-pod-0", f"{group}-post-pod-0")
    for derived in (names.retry_group, names.view_group, names.redrive_group, f"{group}-BROADCAST", *ids):
        assert group_fault(derived)


@given(NAME, NAME, st.lists(NAME, min_size=1, max_size=3), st.lists(NAME, min_size=1, max_size=3), DELAYS)
def test_no_two_groups_share_a_topic(
    one: str, other: str, mains: list[str], others: list[str], delays: set[int]
) -> None:
    """Given any two groups whose names are accepted, then no topic of one is a topic of the other."""
    assume(one != other and not group_fault(one) and not group_fault(other))
    first, second = Names(one), Names(other)
    theirs = {*second._shared(), *second.dlqs_of(others), *second.levels_of(delays, others), *second.queues_of(others)}
    assert not theirs & {*first._shared(), *first.dlqs_of(mains), *first.levels_of(delays, mains)}
    assert not theirs & first.queues_of(mains).keys()


def test_main_topics_that_differ_only_by_dot_and_underscore_cannot_both_exist() -> None:
    with pytest.raises(ValueError, match=r"shop\.x and shop_x differ only by"):
        build_names("billing", ["shop.x", "shop_x"], [])
    build_names("billing", ["shop.x", "shop_y"], [])
