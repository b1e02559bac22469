"""The doctor against a real broker: the whole command, and topics."""

from __future__ import annotations

import json
import time
from pathlib import Path

from reconsume.sidecar.doctor.checks.topics import topics as check_topics
from reconsume.sidecar.doctor.findings import Status
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.acls import GroupShape
from tests.support.deadline import SOON
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.service.listener import listener
from tests.support.service.service import Service
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.doctoring import DELAYS, configured, nothing, worst

# --- the whole command ---------------------------------------------------------------------------------------------


def config(topics: GroupTopics, folder: Path, url: str, **more: object) -> Path:
    file = folder / "reconsume.yaml"
    tree = {
        "group": topics.group,
        "topics": list(topics.mains),
        "kafka": {"bootstrap.servers": topics.bootstrap},
        "deliver": {"url": url},
        "retry": {"ladder": ["1s"], "levels": ["1s"]},
        **more,
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return file


def test_all_is_well_with_a_fresh_group(topics: GroupTopics, tmp_path: Path) -> None:
    with Service(tmp_path / "ledger") as there:
        shown = reconsume("-c", config(topics, tmp_path, there.url), "doctor", "-o", "json")
    rows = json.loads(shown.stdout)
    by_status = {row["check"]: row["status"] for row in rows if row["status"] != "ok"}
    unknown = ("clock", "instances-differ", "instances", "failures", "dead-letters", "lag")
    assert by_status == dict.fromkeys(unknown, "not checked"), "no instance runs"
    assert [row["check"] for row in rows][:4] == ["kafka", "service", "rights", "topics"]
    assert rows[2]["finding"] == "the cluster has no authorizer: every user may do everything"
    assert shown.exit_code == 0
    assert "20 checks: 0 failed, 0 with a warning, 6 not checked" in shown.stderr


def test_what_fails_ends_with_1_and_has_a_line_and_a_mend(topics: GroupTopics, tmp_path: Path) -> None:
    configured(topics.bootstrap, topics.dlq, "cleanup.policy", "compact")
    shown = reconsume("-c", config(topics, tmp_path, "http://127.0.0.1:1/"), "doctor")
    rows = {row["check"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert shown.exit_code == 1
    assert {name for name, row in rows.items() if row["status"] == "fail"} == {"service", "topics"}
    assert rows["topics"]["finding"].startswith(f"{topics.dlq}: cleanup.policy is compact and must be delete")
    assert rows["topics"]["repair"].startswith("kafka-configs.sh --bootstrap-server ")
    assert [found["status"] for found in rows["topics"]["findings"]] == ["fail"]


def test_a_broker_that_hangs_is_one_failure_and_no_hang(topics: GroupTopics, tmp_path: Path) -> None:
    with listener(lambda connection: connection.recv(1 << 16)) as address:
        file = config(topics, tmp_path, "http://127.0.0.1:1/", deliver={"mode": "pull"})
        began = time.monotonic()
        shown = reconsume("-c", file, "doctor", "--set", f"kafka.bootstrap.servers={address}")
    rows = {row["check"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert shown.exit_code == 1
    assert [name for name, row in rows.items() if row["status"] == "fail"] == ["kafka"]
    assert "nobody answers" in rows["kafka"]["finding"]
    assert time.monotonic() - began < SOON


# --- topics --------------------------------------------------------------------------------------------------------


def test_missing_topics_are_failures_unless_retries_go_on_without_them(kafka: Broker, cluster: Cluster) -> None:
    topics = fresh_group(kafka.bootstrap, delays=DELAYS)
    create_group(topics, leave_out=[topics.dlq])
    group = GroupShape(topics.names, topics.mains, topics.delays)
    found = {found.finding: found.status for found in check_topics(cluster, group, nothing)}
    assert found == {
        f"{topics.dlq} does not exist": Status.FAIL,
        f"{topics.names.policy} does not exist": Status.WARN,
    }


def test_a_missing_main_topic_is_a_failure(cluster: Cluster, kafka: Broker) -> None:
    topics = fresh_group(kafka.bootstrap)
    status, text = worst(check_topics(cluster, GroupShape(topics.names, topics.mains, topics.delays), nothing))
    assert (status, text) == (Status.FAIL, f"main topic {topics.main} does not exist")
