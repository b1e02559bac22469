"""`topics export` and `acls export`: for other tools, whatever the cluster has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.cli.costs import cost_of
from reconsume.sidecar.cli.exports import kafka_topics_commands, terraform_topics
from reconsume.sidecar.cli.topics import unused_levels, unused_sums, warnings_of
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings.model import group_of
from reconsume.topics.names import Kind
from reconsume.topics.specs import Source, TopicSpec, group_specs
from tests.conftest import MakeTopic
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import good, write_good

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
    assert Cluster({"bootstrap.servers": kafka.bootstrap}).find_topics(made) == {}
    reconsume(*words, "topics", "apply", "--yes")
    cluster = Cluster({"bootstrap.servers": kafka.bootstrap})
    # The controller has made them; the broker that is asked hears of it a moment later.
    until(lambda: cluster.find_topics(made).keys() == made.keys(), SECONDS, "the broker knows the topics")
    found = cluster.find_topics(made)
    for name, document in made.items():
        spec = document["spec"]
        assert (found[name].partitions, found[name].replication) == (spec["partitions"], spec["replicas"])
        assert {key: str(value) for key, value in spec["config"].items()}.items() <= found[name].config.items()


OFFLINE = ("topics", "export", "--format", "terraform")


def test_topics_are_exported_without_a_broker_where_the_main_topics_are_described(tmp_path: Path) -> None:
    file = write_good(tmp_path)
    words = ("-c", file, "--set", "topics=[orders, bills]", "--set", "kafka.bootstrap.servers=127.0.0.1:1")
    once = reconsume(*words, *OFFLINE, "--partitions", "orders=12,bills=2", "--replicas", "3")
    assert once.exit_code == 0, once.stderr
    topics = json.loads(once.stdout)["resource"]["kafka_topic"]
    sources = [Source("orders", 12, 3, 1_048_588, 2), Source("bills", 2, 3, 1_048_588, 2)]
    settings = good(tmp_path, "topics=[orders, bills]")
    assert topics.keys() == {spec.name for spec in group_specs(settings.names, sources, settings.delays)}
    assert {topic["partitions"] for topic in topics.values()} == {6, 2}
    assert {topic["replication_factor"] for topic in topics.values()} == {3}
    again = reconsume(*words, *OFFLINE, "--partitions", "bills=2", "--partitions", "orders=12")
    assert again.stdout == once.stdout


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--partitions", "orders"), "must be TOPIC=NUMBER, like orders=12"),
        (("--partitions", "orders=0"), "must be TOPIC=NUMBER"),
        (("--partitions", "orders=1,orders=2"), "gives orders more than once: 1 and 2"),
        (("--partitions", "bills=1"), "--partitions lacks orders"),
        (("--partitions", "orders=1,bills=1"), "names bills, which is no main topic"),
        (("--replicas", "3"), "--replicas goes with --partitions"),
    ],
)
def test_what_describes_no_main_topic_is_wrong_usage(tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    shown = reconsume("-c", write_good(tmp_path), *OFFLINE, *given)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert says in shown.stderr


@pytest.mark.parametrize(
    "words", [("topics", "export", "--format", "kafka-topics", "--partitions", "orders=1"), ("acls", "export")]
)
def test_commands_carry_the_login_of_whoever_runs_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    shown = reconsume("-c", write_good(tmp_path), *words, "--command-config", "my admin.properties")
    assert shown.exit_code == 0, shown.stderr
    begin = "--bootstrap-server localhost:9092 --command-config 'my admin.properties' --"
    assert all(begin in line for line in shown.stdout.splitlines())
    assert (
        reconsume("-c", write_good(tmp_path), *words[:2], "--command-config", "f", "--format", "strimzi").exit_code == 2
    )


def test_rights_are_exported_without_a_broker(tmp_path: Path) -> None:
    shown = reconsume("-c", write_good(tmp_path), "acls", "export", "--set", "view.source=spark")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert all(line.startswith("kafka-acls.sh --bootstrap-server localhost:9092 --add ") for line in lines)
    assert {line.split("--allow-principal ")[1].split()[0] for line in lines} == {
        f"User:billing-{role}" for role in ("sidecar", "spark", "admin", "ui", "oncall")
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


SPECS = (
    TopicSpec("billing-RETRY-10s", Kind.LEVEL, 12, 3, {"retention.ms": "900", "min.insync.replicas": "2"}),
    TopicSpec("9.billing-DLQ", Kind.DLQ, 1, 1, {"cleanup.policy": "compact,delete"}),
    TopicSpec("plain", Kind.READY, 2, 1, {}),
)


def test_commands_of_kafka_topics_create_what_is_missing() -> None:
    assert kafka_topics_commands("kafka:9092", SPECS[:1]) == (
        "kafka-topics.sh --bootstrap-server kafka:9092 --create --if-not-exists --topic billing-RETRY-10s "
        "--partitions 12 --replication-factor 3 --config retention.ms=900 --config min.insync.replicas=2\n"
    )


def test_terraform_has_a_resource_for_each_topic() -> None:
    topics = json.loads(terraform_topics(SPECS))["resource"]["kafka_topic"]
    assert list(topics) == ["billing-RETRY-10s", "_9_billing-DLQ", "plain"]
    assert topics["_9_billing-DLQ"] == {
        "name": "9.billing-DLQ",
        "partitions": 1,
        "replication_factor": 1,
        "config": {"cleanup.policy": "compact,delete"},
    }


COSTS = {
    (): "cost: 10 topics, 56 partitions, 168 replicas, ",
    ("retry.levels=ladder",): "cost: 20 topics, 116 partitions, 348 replicas",
    ("retry.levels=table",): "cost: 22 topics",
    ("retry.ladder=[5s, 10s, 30s]",): "cost: 7 topics",
    ("deliver.order=key",): "cost: 4 topics",
}


@pytest.mark.parametrize(("sets", "says"), COSTS.items(), ids=map(str, COSTS))
def test_a_plan_says_what_the_topics_of_a_group_cost(tmp_path: Path, sets: tuple[str, ...], says: str) -> None:
    settings = good(tmp_path, *sets)
    specs = group_specs(settings.names, [Source("orders", 12, 3, 1_000_000, 2)], settings.delays)
    sentence = cost_of(settings, specs, group_of(settings))
    assert sentence.startswith(says), sentence


@pytest.mark.parametrize(
    ("sets", "copies"),
    [
        ((), "37 times"),
        (("retry.levels=ladder",), "16 times"),
        (("retry.levels=[10s, 1m, 10m, 1h]",), "58 times"),
        (("retry.ladder=[5s, 10s, 30s]",), "16 times"),
        (("retry.max_reconsume_times=1",), "1 time"),
        (("deliver={mode: relay}",), "53 times"),
        (("deliver.order=key",), "0 times"),
        (("deliver.order=key", "retry.ordered_ladder=rocketmq"), "16 times"),
    ],
)
def test_a_plan_says_how_many_copies_a_record_costs_that_uses_up_its_retries(
    tmp_path: Path, sets: tuple[str, ...], copies: str
) -> None:
    settings = good(tmp_path, *sets)
    assert cost_of(settings, (), group_of(settings)).endswith(f"; a record that uses up its retries is copied {copies}")


def test_a_plan_warns_where_short_waits_have_no_level(tmp_path: Path) -> None:
    assert list(warnings_of(good(tmp_path))) == []
    (warning,) = warnings_of(good(tmp_path, "retry.levels=[10m, 1h]"))
    assert "the shortest level is 10m" in warning


def test_levels_of_an_earlier_configuration_are_named(tmp_path: Path) -> None:
    there = ["billing-RETRY-1s", "billing-RETRY-10s", "billing-RETRY-7h", "billing-RETRY", "other-RETRY-1s", "orders"]
    (said,) = unused_levels(good(tmp_path), there)
    assert said.startswith("2 topics of an earlier configuration: billing-RETRY-1s, billing-RETRY-7h; ")
    assert list(unused_levels(good(tmp_path, "retry.levels=table"), there[:2])) == []


def test_a_topic_of_former_sums_is_named_and_left_alone(tmp_path: Path) -> None:
    (said,) = unused_sums(good(tmp_path), ["billing-RETRY-STATS", "other-RETRY-STATS"])
    assert said.startswith("billing-RETRY-STATS is no longer used")
    assert list(unused_sums(good(tmp_path), ["other-RETRY-STATS"])) == []
