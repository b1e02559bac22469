"""The plan of topics as a value: each rule of comparing."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from reconsume.sidecar.cli.topics import Step
from reconsume.sidecar.kafka.admin.descriptions import Topic
from reconsume.topics.names import Kind, Names
from reconsume.topics.specs import Source, TopicSpec, group_specs

SOURCE = Source("orders", partitions=3, replication=3, max_message_bytes=1_000_000, min_insync_replicas=2)
SPECS = group_specs(Names("billing"), [SOURCE], (1_000, 10_000), rows=True, ordered=True)
LEVEL = next(spec for spec in SPECS if spec.name == "billing-RETRY-10s")
QUEUE = next(spec for spec in SPECS if spec.name == "billing-ORDERED-orders")
BY_KIND = {spec.kind: spec for spec in SPECS}


def as_wanted(spec: TopicSpec) -> Topic:
    return Topic(spec.name, spec.partitions, spec.replication, {**spec.config, "flush.ms": "1"})


def with_config(spec: TopicSpec, **config: str) -> Topic:
    found = as_wanted(spec)
    return found._replace(config={**found.config, **{key.replace("_", "."): value for key, value in config.items()}})


def test_what_is_absent_is_created() -> None:
    assert {Step(spec, None).action for spec in SPECS} == {"create"}


def test_what_is_as_wanted_is_ok() -> None:
    assert {Step(spec, as_wanted(spec)).action for spec in SPECS} == {"ok"}


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cleanup_policy", "compact", "cleanup.policy is compact and must be delete: compaction would delete waiting"),
        ("cleanup_policy", "compact,delete", "cleanup.policy is compact,delete and must be delete"),
        ("retention_ms", "604800000", "retention.ms is 604800000 (7d) and must be at least 604810000 (7d10s)"),
        ("retention_bytes", "1000000", "retention.bytes is 1000000 and must be -1"),
        ("max_message_bytes", "1000000", "max.message.bytes is 1000000 and must be at least 1016384"),
        ("message_timestamp_type", "CreateTime", "message.timestamp.type is CreateTime and must be LogAppendTime"),
        ("min_insync_replicas", "1", "min.insync.replicas is 1 and must be at least 2"),
        ("retention_ms", "", "retention.ms is unset and must be at least"),
    ],
)
def test_a_setting_that_will_not_do_is_a_finding_with_its_repair(key: str, value: str, says: str) -> None:
    step = Step(LEVEL, with_config(LEVEL, **{key: value}))
    (finding,) = step.findings
    assert step.action == "differs"
    assert finding.finding.startswith(says)
    assert f"--entity-name billing-RETRY-10s --add-config {key.replace('_', '.')}=" in finding.repair


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention_ms", "-1"),
        ("retention_ms", "999999999999"),
        ("max_message_bytes", "2000000"),
        ("min_insync_replicas", "3"),
    ],
)
def test_more_than_wanted_is_ok(key: str, value: str) -> None:
    assert Step(LEVEL, with_config(LEVEL, **{key: value})).action == "ok"


@pytest.mark.parametrize("value", ["delete,compact", "compact, delete"])
def test_the_order_of_a_list_does_not_matter(value: str) -> None:
    view = BY_KIND[Kind.VIEW]
    assert Step(view, with_config(view, cleanup_policy=value)).action == "ok"


def test_a_list_in_a_repair_is_bracketed_as_the_tool_wants_it() -> None:
    view = BY_KIND[Kind.VIEW]
    (finding,) = Step(view, with_config(view, cleanup_policy="delete")).findings
    assert shlex.split(finding.repair)[-1] == "cleanup.policy=[compact,delete]"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cleanup_policy", "compact", "compaction would delete all but one of the records that wait behind a key"),
        ("retention_ms", "3600000", "retention.ms is 3600000 (1h) and must be at least"),
        ("retention_ms", "86399999", "what waits is written again before it is 12 h old, but not while no instance"),
        ("max_message_bytes", "1000000", "a copy with our headers would not fit"),
    ],
)
def test_a_queue_that_would_lose_what_waits_is_named_with_its_repair(key: str, value: str, says: str) -> None:
    (finding,) = Step(QUEUE, with_config(QUEUE, **{key: value})).findings
    assert says in finding.finding
    assert f"--entity-name billing-ORDERED-orders --add-config {key.replace('_', '.')}=" in finding.repair
    (level,) = Step(LEVEL, with_config(LEVEL, **{key: value})).findings
    assert (level.finding == finding.finding) == (key == "max_message_bytes"), "a level topic has its own reason"


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        (Kind.LEVEL, {"partitions": 1}, "it has 1 partition and should have 3, to be shared"),
        (
            Kind.EVENTS,
            {"partitions": 1},
            "it has 1 partition and should have 6, to be shared; add them when the view's",
        ),
        (Kind.LEVEL, {"replication": 2}, "it has 2 replicas and should have 3"),
        (Kind.POLICY, {"partitions": 1}, "it has 1 partition and must have 2: what owners note in transactions"),
        (
            Kind.ORDERED,
            {"partitions": 2},
            "it has 2 partitions, and its main topic has 3: what fails in the partitions",
        ),
        (Kind.ORDERED, {"partitions": 4}, "it has 4 partitions, and its main topic has 3: nobody reads what waits"),
    ],
)
def test_too_few_or_too_many_partitions_and_replicas(kind: Kind, change: dict[str, Any], says: str) -> None:
    spec = BY_KIND[kind]
    (finding,) = Step(spec, as_wanted(spec)._replace(**change)).findings
    assert finding.finding.startswith(says)


def test_only_a_policy_topic_with_one_partition_is_grown() -> None:
    policy = BY_KIND[Kind.POLICY]
    assert Step(policy, as_wanted(policy)._replace(partitions=1)).action == "grow"
    assert Step(policy, as_wanted(policy)._replace(partitions=3)).action == "ok"
    assert Step(LEVEL, as_wanted(LEVEL)._replace(partitions=1)).action == "differs"


@pytest.mark.parametrize(("ratio", "action"), [("0.05", "ok"), ("0.1", "ok"), ("0.5", "differs"), ("", "differs")])
def test_a_policy_topic_is_compacted_early(ratio: str, action: str) -> None:
    policy = BY_KIND[Kind.POLICY]
    assert Step(policy, with_config(policy, min_cleanable_dirty_ratio=ratio)).action == action


def test_more_partitions_are_ok_where_order_does_not_matter() -> None:
    assert Step(LEVEL, as_wanted(LEVEL)._replace(partitions=50)).action == "ok"
