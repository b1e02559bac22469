"""What stands in several manifests fits together: names, labels, ports, topics, users."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from reconsume.sidecar.cli.exports import strimzi_topic, yaml_documents
from reconsume.sidecar.deploy.annotations import LABEL
from reconsume.sidecar.settings import load
from reconsume.topics.names import Kind
from reconsume.topics.specs import Source, group_specs
from tests.support.kubernetes.kubectl import (
    CHART,
    K8S,
    chart,
    named,
    of_kind,
    overlay,
    parts,
    pod_of,
    run,
    sidecars,
)
from tests.support.kubernetes.manifests import (
    FULL,
    settings_of,
)
from tests.support.kubernetes.promql import alerts
from tests.support.sidecar.cli import reconsume

YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
STRIMZI = K8S / "overlays" / "strimzi"


def test_every_claim_and_secret_that_a_pod_asks_for_is_told_of() -> None:
    for found in (overlay("dev"), chart()):
        for document in found:
            for volume in (pod_of(document) or {"spec": {}})["spec"].get("volumes", []):
                if "persistentVolumeClaim" in volume:
                    named(found, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
                if "configMap" in volume:
                    named(found, "ConfigMap", volume["configMap"]["name"])


def test_services_and_policies_select_pods_that_are_there() -> None:
    for found in (overlay("dev"), overlay("keda"), chart()):
        labels = [(pod_of(one) or {})["metadata"]["labels"] for one in found if pod_of(one) is not None]
        selectors = [one["spec"]["selector"] for one in of_kind(found, "Service")]
        selectors += [one["spec"]["podSelector"]["matchLabels"] for one in of_kind(found, "NetworkPolicy")]
        assert selectors
        for selector in selectors:
            assert any(selector.items() <= pod.items() for pod in labels), selector


MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
ELSEWHERE = {"kubernetes.io/metadata.name": "elsewhere"}


def let_out(policies: list[Any], protocol: str, port: int) -> bool:
    """Whether a pod that these policies select may call a port: as Kubernetes computes it."""
    closing = [one for one in policies if "Egress" in one["spec"]["policyTypes"]]
    rules = [rule for policy in closing for rule in policy["spec"].get("egress", [])]
    return not closing or any(covers(one, protocol, port) for rule in rules for one in rule.get("ports", [{}]))


def admitted(policies: list[Any], namespace: dict[str, str], protocol: str, port: int) -> bool:
    """Whether a pod that these policies select takes a call from any pod of a namespace: as Kubernetes computes it.

    Policies add up; a rule without `from` admits every source, and one without `ports` every port.
    """
    rules = [rule for policy in policies for rule in policy["spec"].get("ingress", [])]
    return not policies or any(
        any(comes_from(peer, namespace) for peer in rule.get("from", [{}]))
        and any(covers(one, protocol, port) for one in rule.get("ports", [{}]))
        for rule in rules
    )


def comes_from(peer: dict[str, Any], namespace: dict[str, str]) -> bool:
    return peer.get("namespaceSelector", {}).get("matchLabels", {}).items() <= namespace.items()


def covers(one: dict[str, Any], protocol: str, port: int) -> bool:
    low = one.get("port", 1)
    return one.get("protocol", protocol if not one else "TCP") == protocol and low <= port <= one.get("endPort", low)


def test_the_network_policy_opens_nothing_that_was_closed_but_the_probes_port_to_prometheus() -> None:
    """Given a namespace whose default is to deny, then the component admits Prometheus' namespace to one port."""
    found = overlay("keda")
    ours = of_kind(found, "NetworkPolicy")
    (port,) = {one["containerPort"] for part in sidecars(found) for one in part.container["ports"]}
    deny = {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
    asked = [
        (namespace, protocol, number)
        for namespace in (MONITORING, ELSEWHERE)
        for protocol in ("TCP", "UDP", "SCTP")
        for number in (1, 53, 8080, 8471, port, 8473, 65_535)
    ]
    pods = {"reconsume.io/inject": "true"}
    of_pods = [one for one in ours if one["spec"]["podSelector"]["matchLabels"] == pods]
    assert [one for one in asked if admitted([deny], *one)] == []
    assert [one for one in asked if admitted([deny, *of_pods], *one)] == [(MONITORING, "TCP", port)]


def test_the_ways_out_are_names_and_kafka_where_they_are_closed_and_closed_where_that_is_asked_for() -> None:
    """Given the component `egress`, or its like in the chart, then only these ports; without it, no policy at all."""
    ports = [
        ("UDP", 53),
        ("TCP", 53),
        ("TCP", 443),
        ("TCP", 8080),
        *(("TCP", 9_091 + n) for n in range(5)),
        ("UDP", 9092),
    ]
    kafka = [("UDP", 53), ("TCP", 53), ("TCP", 9092), ("TCP", 9093), ("TCP", 9094)]
    labels = {"reconsume.io/inject": "true"}, {"app.kubernetes.io/part-of": "reconsume"}
    policies = of_kind(overlay("hardened"), "NetworkPolicy")
    for selected in labels:
        own = [one for one in policies if one["spec"]["podSelector"]["matchLabels"] == selected]
        assert [port for port in ports if let_out(own, *port)] == kafka
    (one,) = (
        policy
        for policy in of_kind(chart("networkPolicy.egress.enabled=true"), "NetworkPolicy")
        if policy["spec"]["policyTypes"] == ["Egress"]
    )
    assert [port for port in ports if let_out([one], *port)] == kafka
    for found in (overlay("dev"), overlay("keda"), overlay("strimzi"), chart()):
        assert all(let_out([policy], "TCP", 1) for policy in of_kind(found, "NetworkPolicy"))


def test_the_policy_that_opens_the_services_own_port_is_told_of() -> None:
    """Given the policy of docs/kubernetes.md beside ours, then the service's port is open, and no other."""
    text = (K8S.parents[1] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (theirs,) = (one for one in map(yaml.safe_load, YAML_BLOCK.findall(text)) if one.get("kind") == "NetworkPolicy")
    both = [theirs, named(overlay("keda"), "NetworkPolicy", "reconsume")]
    ports = [number for number in (8080, 8471, 8472, 8473) if admitted(both, ELSEWHERE, "TCP", number)]
    assert ports == [8080]


def test_alerts_lead_to_where_the_runbook_is_read() -> None:
    """Given an address, by a replacement of Kustomize or a value of the chart, then each alert links to its section."""
    page = "https://wiki.example.org/runbook"
    for found, address in (
        (overlay("keda"), "https://runbooks.example.org/reconsume/runbook.html"),
        (chart(*FULL, f"monitoring.runbookUrl={page}"), page),
        (chart(*FULL), "docs/runbook.md"),
    ):
        (rules,) = of_kind(found, "PrometheusRule")
        told = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules["spec"]["groups"][0]["rules"]}
        assert told == {name: f"{address}#{name.lower()}" for name in alerts()}
    assert "runbook" not in {one["metadata"]["name"] for one in of_kind(overlay("keda"), "ConfigMap")}


def test_monitoring_finds_every_pod_that_has_metrics() -> None:
    monitors = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay("keda"), "PodMonitor")}
    pods = {"reconsume": sidecars(overlay("keda"))[0]}
    for name in ("view", "ui"):
        pods[f"reconsume-{name}"] = next(part for part in parts(overlay("dev")) if part.container["name"] == name)
    assert monitors.keys() == pods.keys()
    for name, part in pods.items():
        labels = part.pod["metadata"]["labels"]
        assert monitors[name]["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = monitors[name]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in part.container["ports"]}
    assert monitors["reconsume"]["selector"]["matchLabels"] == {LABEL: "true"}


def test_the_rules_and_the_dashboard_are_shipped_by_both_ways() -> None:
    for found in (overlay("keda"), chart(*FULL)):
        (rule,) = of_kind(found, "PrometheusRule")
        assert len(rule["spec"]["groups"][0]["rules"]) > 5
        (dashboard,) = (one for one in of_kind(found, "ConfigMap") if "reconsume.json" in one["data"])
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(dashboard["data"]["reconsume.json"])["title"] == "Reconsume"


def test_thresholds_of_alerts_are_values_of_the_chart() -> None:
    """Given another threshold for one alert, then that alone changes; and each alert with a threshold can be set."""
    (plain,) = of_kind(chart(*FULL), "PrometheusRule")
    (changed,) = of_kind(chart(*FULL, "monitoring.thresholds.ReconsumeFailing=0.6"), "PrometheusRule")
    before, after = ({rule["alert"]: rule for rule in one["spec"]["groups"][0]["rules"]} for one in (plain, changed))
    assert after["ReconsumeFailing"]["expr"] == before["ReconsumeFailing"]["expr"].replace("0.25 #", "0.6 #")
    assert {name for name in before if before[name] != after[name]} == {"ReconsumeFailing"}
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    names = schema["properties"]["monitoring"]["properties"]["thresholds"]["propertyNames"]["enum"]
    assert set(names) == {name for name, rule in before.items() if "# threshold" in rule["expr"]}


def test_the_chart_is_whole_where_its_folder_is_copied_alone(tmp_path: Path) -> None:
    """Given the folder in a repository of its own, then it renders, and has what Kustomize has."""
    copied = shutil.copytree(CHART, tmp_path / "vendored", symlinks=True)
    done = run("helm", "template", "rel", copied, *(f"--set={one}" for one in FULL))
    assert done.returncode == 0, done.stderr
    for file in (CHART / "files").iterdir():
        source = K8S / "components" / "monitoring" / file.name
        assert file.read_text() == source.read_text(), f"make charts: {file.name}"


def test_scaling_looks_at_main_topics_and_at_what_is_late_only() -> None:
    """Never at the lag of level topics: what waits for its time is no work to share."""
    rendered = overlay("keda")
    (scaled,) = of_kind(rendered, "ScaledObject")
    settings = settings_of(sidecars(rendered)[0], rendered)
    lags = [trigger["metadata"] for trigger in scaled["spec"]["triggers"] if trigger["type"] == "kafka"]
    queries = [one["metadata"]["query"] for one in scaled["spec"]["triggers"] if one["type"] == "prometheus"]
    assert [lag["topic"] for lag in lags] == list(settings.topic_names)
    assert {lag["consumerGroup"] for lag in lags} == {settings.group}
    assert {lag["bootstrapServers"] for lag in lags} == {settings.kafka["bootstrap.servers"]}
    assert [re.findall(r"reconsume_\w+", query) for query in queries] == [["reconsume_overdue_seconds"]]
    assert all(f'group="{settings.group}"' in query and 'namespace="' in query for query in queries)
    named(rendered, "Deployment", scaled["spec"]["scaleTargetRef"]["name"])


def test_strimzis_topics_are_those_that_export_prints() -> None:
    settings = load(STRIMZI / "reconsume.yaml", (), {})
    specs = group_specs(settings.names, [Source("orders", 12, 3, 1_048_588, 2)], settings.delays)
    assert (STRIMZI / "topics.yaml").read_text() == yaml_documents(strimzi_topic(one, "kafka") for one in specs)
    # Queues are for groups whose ordered records wait by a ladder, VIEW for those whose view Spark writes.
    assert {one.kind for one in specs} == set(Kind) - {Kind.MAIN, Kind.ORDERED, Kind.VIEW}


def test_strimzis_users_are_those_that_export_prints() -> None:
    words = ["--format", "strimzi", "--cluster", "kafka", "--authentication", "tls", "-c", STRIMZI / "reconsume.yaml"]
    assert (STRIMZI / "users.yaml").read_text() == reconsume("acls", "export", *words).stdout


def test_the_sidecar_shows_the_certificate_of_its_user() -> None:
    found = overlay("strimzi")
    (part,) = sidecars(found)
    secrets = {one["secret"]["secretName"] for one in part.pod["spec"]["volumes"] if "secret" in one}
    assert secrets == {"kafka-cluster-ca-cert", "billing-sidecar"}
    assert "billing-sidecar" in {one["metadata"]["name"] for one in of_kind(found, "KafkaUser")}
    assert not of_kind(found, "Job")
