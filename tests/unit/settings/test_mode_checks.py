"""Which modes go together, and that the others are refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings.checks import CHECKS, CONFLICTS
from reconsume.sidecar.settings.model import ROWS
from reconsume.sidecar.settings.policy import build_policy
from tests.support.sidecar.settings import good, problems, write_good


def test_every_check_reads_settings_that_exist() -> None:
    known = {".".join(path) for path in ROWS}
    assert {name for one in CONFLICTS for name in (*one.settings, *one.when)} <= known
    assert {name for _, reads in CHECKS for name in reads} <= known


ORDER, BROADCAST = "deliver.order=key", "deliver.broadcast=true"
LADDER = "retry.ordered_ladder=[10s, 1h]"


@pytest.mark.parametrize(
    ("sets", "key", "reason"),
    [
        ((ORDER, "deliver.batch.max_size=2"), "deliver.order", "one record at a time"),
        ((ORDER, "deliver.mode=pull", "deliver.url=null"), "deliver.order", "is for push mode"),
        ((ORDER, "deliver.mode=relay", "deliver.url=null"), "deliver.order", "relay mode"),
        ((ORDER, "retry.understand=[pulsar]"), "deliver.order", "another system made wait"),
        (("retry.ordered_ladder=pulsar",), "retry.ordered_ladder", "deliver.order is none"),
        ((ORDER, LADDER, "retry.ordered_max_times=3"), "retry.ordered_max_times", "max_reconsume_times decides"),
        ((ORDER, "retry.ordered_exhausted=park"), "retry.ordered_exhausted", "in place nothing waits"),
        ((ORDER, LADDER, "deliver.mode=pull", "deliver.url=null"), "deliver.order", "is for push mode"),
        ((BROADCAST, "deliver.mode=pull", "deliver.url=null"), "deliver.broadcast", "is for push mode"),
        ((BROADCAST, "deliver.mode=relay", "deliver.url=null"), "deliver.broadcast", "relay mode"),
        ((BROADCAST, "deliver.order=partition"), "deliver.broadcast", "never retries"),
        (("deliver.envelope=true", "deliver.content_type=text/csv"), "deliver.content_type", "is for bare values"),
        (("deliver.batch.max_size=2", "deliver.content_type=text/csv"), "deliver.content_type", "is for bare values"),
    ],
)
def test_modes_that_contradict_each_other_are_refused_once(
    tmp_path: Path, sets: tuple[str, ...], key: str, reason: str
) -> None:
    (problem,) = problems(write_good(tmp_path), sets)
    assert problem.startswith((f"{key} = ", f"{key}: "))
    assert ' = "":' not in problem, "a value is shown as it was given, or not at all"
    assert reason in problem


@pytest.mark.parametrize(
    "sets", [(ORDER,), ("deliver.order=partition",), (BROADCAST,), (BROADCAST, "topics=[{name: a, tags: X}]")]
)
def test_these_modes_are_taken(tmp_path: Path, sets: tuple[str, ...]) -> None:
    assert good(tmp_path, *sets).deliver.mode == "push"


def test_a_group_with_a_ladder_for_ordered_records_has_queues_and_no_levels(tmp_path: Path) -> None:
    settings = good(tmp_path, ORDER, LADDER)
    policy = build_policy(settings, "billing-0")
    assert (policy.queued, policy.delays, policy.in_place) == (True, (), None)
    assert policy.ladder.delays == (10_000, 3_600_000)


def test_a_queue_topic_has_a_name_that_kafka_takes(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), [ORDER, LADDER, f"topics=[{'o' * 240}]"])
    assert "Kafka takes at most 249" in problem


def test_a_broadcast_has_no_view(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), [BROADCAST, "view.enabled=true"])
    assert problem.startswith("view.enabled = true: has no effect in broadcast mode")


def test_a_broadcast_may_be_in_batches(tmp_path: Path) -> None:
    assert good(tmp_path, BROADCAST, "deliver.batch.max_size=8").deliver.broadcast


@pytest.mark.parametrize("name", ["tls.ca_file", "bearer_token_file", "signing_secret_file"])
@pytest.mark.parametrize("mode", ["pull", "relay"])
def test_what_requests_are_sent_with_is_refused_where_none_are_sent(tmp_path: Path, mode: str, name: str) -> None:
    sets = (f"deliver.mode={mode}", "deliver.url=null", f"deliver.{name}=/run/secrets/file")
    (problem,) = problems(write_good(tmp_path), sets)
    assert problem.startswith(f"deliver.{name.partition('.')[0]}")


def test_a_key_without_its_certificate_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(
        write_good(tmp_path), ["deliver.url=https://localhost/", "deliver.tls.key_file=/run/secrets/tls.key"]
    )
    assert problem.startswith("deliver.tls.key_file = /run/secrets/tls.key: is the key of deliver.tls.cert_file")


@pytest.mark.parametrize(
    "topic",
    ["g-RETRY-POLICY", "other-RETRY", "other-RETRY-*", "*-DLQ", "other-ORDERED-orders", "__consumer_offsets", "__*"],
)
def test_outputs_to_topics_of_a_group_or_of_kafka_are_refused_whoever_names_them(tmp_path: Path, topic: str) -> None:
    (problem,) = problems(write_good(tmp_path), [f'deliver.outputs=[invoices, "{topic}"]'])
    assert problem.startswith(f"deliver.outputs[1] = {topic}")
    assert "take no outputs" in problem


def test_a_header_that_the_sidecar_adds_itself_is_not_forwarded(tmp_path: Path) -> None:
    named = "deliver.forward_headers=[x-tenant, Authorization]"
    assert good(tmp_path, named).deliver.forward_headers == ("x-tenant", "Authorization")
    (problem,) = problems(write_good(tmp_path), [named, "deliver.bearer_token_file=/run/secrets/token"])
    assert problem.startswith("deliver.forward_headers[1] = Authorization: is a header that the sidecar adds itself")
