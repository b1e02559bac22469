"""The manifests agree with the program: the sidecar, every configuration, every command line."""

from __future__ import annotations

import pytest
import yaml

from reconsume.sidecar.deploy.annotations import SidecarAnnotations
from reconsume.sidecar.deploy.container import GRACE, container, memory_limit
from reconsume.sidecar.deploy.workload import with_sidecar
from tests.support.kubernetes.kubectl import (
    CHART,
    K8S,
    Part,
    chart,
    documents,
    kustomized,
    named,
    overlay,
    parts,
    pod_of,
    sidecars,
)
from tests.support.kubernetes.kubectl import run as run_tool
from tests.support.kubernetes.manifests import (
    WITH_SIDECAR,
    configured,
    settings_of,
)
from tests.support.sidecar.command_lines import parsed


def grace(part: Part) -> int:
    return int(part.pod["spec"].get("terminationGracePeriodSeconds", 30))


@pytest.mark.parametrize("name", ["keda", "plain-container"])
def test_the_component_does_what_inject_does(name: str) -> None:
    """Given the example without a sidecar, then the component and the command make the same pod of it."""
    wish = SidecarAnnotations(config_map="reconsume", container="plain" if name == "plain-container" else "")
    bare = named(documents(kustomized(K8S / "example")), "Deployment", "billing")
    expected = pod_of(with_sidecar(bare, wish)) or {}
    made = pod_of(named(overlay(name), "Deployment", "billing")) or {}
    config = next(volume for volume in made["spec"]["volumes"] if volume["name"] == "reconsume-config")
    config["configMap"]["name"] = "reconsume"  # kustomize puts a hash behind it
    for part in ("initContainers", "containers"):
        by_name = {one["name"]: one for one in made["spec"].get(part, [])}
        assert by_name == {one["name"]: one for one in expected["spec"].get(part, [])}
    assert made["spec"]["volumes"] == expected["spec"]["volumes"]
    assert made["metadata"]["labels"] == expected["metadata"]["labels"]


@pytest.mark.parametrize("name", WITH_SIDECAR)
def test_the_sidecar_ends_within_the_pods_time(name: str) -> None:
    """The drain leaves room to exit in time: grace − 2 s."""
    (part,) = sidecars(overlay(name))
    drain = next(int(v["value"].rstrip("s")) for v in part.container["env"] if v["name"] == "RECONSUME_DRAIN_TIMEOUT")
    assert drain <= grace(part) - 5
    command = part.container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "reconsume"
    assert parsed(command[1:])[0] == "drain"


@pytest.mark.parametrize("name", WITH_SIDECAR)
def test_the_sidecar_is_native_but_where_kubernetes_is_too_old(name: str) -> None:
    (part,) = sidecars(overlay(name))
    assert part.is_init is (name != "plain-container")
    assert part.container.get("restartPolicy") == ("Always" if part.is_init else None)


@pytest.mark.parametrize("name", WITH_SIDECAR)
def test_probes_ask_the_probe_listener_and_never_wait_for_kafka(name: str) -> None:
    """`/startupz` waits for Kafka: behind it a native sidecar would keep the service from starting."""
    (part,) = sidecars(overlay(name))
    port = int(settings_of(part, overlay(name)).api.probe_listen.port)
    assert part.container["ports"] == [{"name": "reconsume", "containerPort": port}]
    probes = {key: part.container[key]["httpGet"] for key in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {key: (get["path"], get["port"]) for key, get in probes.items()} == {
        "startupProbe": ("/livez", "reconsume"),
        "livenessProbe": ("/livez", "reconsume"),
        "readinessProbe": ("/readyz", "reconsume"),
    }


def test_every_kind_of_workload_is_patched() -> None:
    text = (K8S / "components" / "sidecar" / "kustomization.yaml").read_text()
    targets = {patch["target"]["kind"] for patch in yaml.safe_load(text)["patches"]}
    assert targets == {"Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"}
    patched = (yaml.safe_load((K8S / "components/sidecar" / name).read_text()) for name in ("pod.yaml", "cronjob.yaml"))
    assert [sidecars([patch])[0].container for patch in patched] == [
        container(SidecarAnnotations(config_map="reconsume"), GRACE)
    ] * 2


def test_the_memory_limit_is_that_of_the_formula() -> None:
    """As docs/kubernetes.md tells it."""
    assert memory_limit() == 256
    assert container(SidecarAnnotations(), 30)["resources"]["limits"]["memory"] == f"{memory_limit()}Mi"
    assert memory_limit(buffer_memory=64 << 20) == 384
    assert memory_limit(concurrency=4096) == 512


def test_every_command_line_is_one_that_reconsume_takes() -> None:
    seen = {parsed(part.container["args"])[0] for _, part, _ in configured()}
    assert seen == {"run", "topics apply", "ui", "view run"}


def test_every_configuration_is_one_that_the_program_takes() -> None:
    """With the file where the command line says it is, and the variables laid over it."""
    for where, part, found in configured():
        settings = settings_of(part, found)
        assert settings.group == "billing", where
        (mount,) = (one for one in part.container["volumeMounts"] if one["name"] == "reconsume-config")
        assert f"{mount['mountPath']}/reconsume.yaml" in part.container["args"], where


def test_every_file_that_is_named_is_mounted() -> None:
    for where, part, found in configured():
        mounts = [one["mountPath"] for one in part.container["volumeMounts"]]
        named_files = [word for word in part.container["args"] if word.startswith("/")]
        settings = settings_of(part, found)
        paths = [
            *settings.kafka.properties.values(),
            f"{settings.kafka_secret}/user.crt" if settings.kafka_secret else "",
        ]
        named_files += [path for path in paths if path.startswith("/")]
        for path in named_files:
            assert any(path.startswith(f"{mount}/") for mount in mounts), f"{where}: {path}"


def views() -> list[Part]:
    return [part for found in (overlay("dev"), chart()) for part in parts(found) if part.container["name"] == "view"]


def test_the_view_job_is_one_process_without_a_disk_which_kubernetes_restarts() -> None:
    assert len(views()) == 2
    for part in views():
        assert part.document["spec"]["replicas"] == 1
        pod = part.document["spec"]["template"]["spec"]
        assert pod.get("restartPolicy", "Always") == "Always"
        assert not any("persistentVolumeClaim" in volume for volume in pod["volumes"])


def test_the_views_limit_is_its_heap_and_a_gibibyte() -> None:
    for part in views():
        options = parsed(part.container["args"])[1]
        assert "spark.driver.memory=1g" in options["conf"]
        assert part.container["resources"]["limits"]["memory"] == "2Gi"


def test_the_views_groups_are_the_configured_one_those_named_or_a_pattern() -> None:
    def options(*sets: str) -> tuple[object, object]:
        (part,) = (part for part in parts(chart(*sets)) if part.container["name"] == "view")
        found = parsed(part.container["args"])[1]
        return found["groups"], found["pattern"]

    assert options() == (None, None)
    assert options("view.groups={a,b}") == ("a,b", None)
    assert options("view.pattern=team-.*") == (None, "team-.*")


def test_the_chart_takes_an_image_by_its_digest() -> None:
    digest = f"sha256:{'ab' * 32}"
    found = chart(f"image.digest={digest}", "image.repository=registry.example/reconsume", "image.tag=v9")
    images = {part.container["name"]: part.container["image"] for part in parts(found)}
    assert images == {"ui": f"registry.example/reconsume@{digest}", "view": images["view"]}
    assert images["view"].startswith("reconsume-spark:")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("view.heap=lots", "/view/heap"),
        ("view.keeep=1d", "keeep"),
        ("ui.tokenSecret=", "/ui/tokenSecret"),
        ("config=null", "config"),
        ("image.digest=latest", "/image/digest"),
        ("monitoring.runbookUrl=docs/runbook.md", "/monitoring/runbookUrl"),
    ],
)
def test_the_chart_refuses_values_that_it_does_not_know(value: str, why: str) -> None:
    done = run_tool("helm", "template", "rel", CHART, f"--set={value}")
    assert done.returncode != 0
    assert why in done.stderr
