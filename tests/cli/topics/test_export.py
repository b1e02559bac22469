"""`topics export` and `acls export`: for other tools, whatever the cluster has."""

from __future__ import annotations

from pathlib import Path

import yaml

from sidecar.kafka.admin.cluster import Cluster
from tests.conftest import MakeTopic
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import write_good

SECONDS = 30.0


def test_topics_are_exported_as_apply_would_create_them(
    kafka: Broker, make_topic: MakeTopic, group: str, tmp_path: Path
) -> None:
    main = make_topic(2, max_message_bytes=2_000_000)
    sets = [f"group={group}", f"topics=[{main}]", f"kafka.bootstrap.servers={kafka.bootstrap}"]
    words = ["-c", str(write_good(tmp_path)), *(word for text in sets for word in ("--set", text))]
    shown = reconsume(*words, "topics", "export", "--format", "strimzi", "--cluster", "main")
    assert shown.exit_code == 0, shown.stderr
    made = {document["spec"]["topicName"]: document for document in yaml.safe_load_all(shown.stdout)}
    assert {document["metadata"]["labels"]["strimzi.io/cluster"] for document in made.values()} == {"main"}
    assert main not in made
    assert Cluster({"bootstrap.servers": kafka.bootstrap}).find(made) == {}
    reconsume(*words, "topics", "apply", "--yes")
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap})
    # The controller has made them; the broker that is asked hears of it a moment later.
    until(lambda: cluster.find(made).keys() == made.keys(), SECONDS, "the broker knows the topics")
    found = cluster.find(made)
    for name, document in made.items():
        spec = document["spec"]
        assert (found[name].partitions, found[name].replication) == (spec["partitions"], spec["replicas"])
        assert {key: str(value) for key, value in spec["config"].items()}.items() <= found[name].config.items()


def test_rights_are_exported_without_a_broker(tmp_path: Path) -> None:
    shown = reconsume("-c", write_good(tmp_path), "acls", "export")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert all(line.startswith("kafka-acls.sh --bootstrap-server localhost:9092 --add ") for line in lines)
    assert {line.split("--allow-principal ")[1].split()[0] for line in lines} == {
        f"User:billing-{role}" for role in ("sidecar", "spark", "admin", "ui")
    }
    assert "the service needs no rights in this mode" in shown.stderr


def test_users_are_exported_with_the_names_that_were_given(tmp_path: Path) -> None:
    words = ["--format", "strimzi", "--role", "ui", "--principal", "User:grafana", "--authentication", "tls"]
    shown = reconsume("-c", write_good(tmp_path), "acls", "export", *words)
    (user,) = yaml.safe_load_all(shown.stdout)
    assert (user["kind"], user["metadata"]["name"]) == ("KafkaUser", "grafana")
    assert user["spec"]["authentication"] == {"type": "tls"}


def test_a_principal_without_its_role_is_wrong_usage(tmp_path: Path) -> None:
    shown = reconsume("-c", write_good(tmp_path), "acls", "export", "--principal", "User:one")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "ROLE=User:NAME" in shown.stderr
