"""The manifests and the Compose file of `reconsume init`, against the schemas of those who read them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.test_init import COMMON, MODES
from tests.support.kubernetes.kubectl import check, documents, kustomized, named, sidecars
from tests.support.kubernetes.manifests import settings_of
from tests.support.sidecar.cli import reconsume

NATIVE, NEWEST = "1.29", "1.37"
"""The oldest Kubernetes with native sidecars, and the newest whose schemas there are."""
SECONDS = 120.0
COMPOSE_SCHEMA = ("--builtin-schema", "vendor.compose-spec", "--output-format", "json")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def made(mode: str) -> None:
    """All files for a mode, in this folder."""
    assert reconsume("init", *COMMON, *MODES[mode], "--compose", "--kubernetes", "k8s").exit_code == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_manifests_are_valid_to_the_last_field(mode: str) -> None:
    made(mode)
    found = documents(kustomized(Path("k8s").resolve()))
    assert [document["kind"] for document in found] == ["ConfigMap", "Deployment", "Job"]
    for document in found:
        for version in (NATIVE, NEWEST):
            check(document, version)


@pytest.mark.parametrize("mode", MODES)
def test_the_sidecar_reads_the_configuration_that_kustomize_puts_beside_it(mode: str) -> None:
    made(mode)
    found = documents(kustomized(Path("k8s").resolve()))
    (sidecar,) = sidecars(found)
    name = sidecar.pod["spec"]["volumes"][0]["configMap"]["name"]
    assert name == named(found, "ConfigMap", "billing")["metadata"]["name"]
    assert settings_of(sidecar, found).deliver.mode == mode


@pytest.mark.parametrize("mode", MODES)
def test_every_container_passes_the_restricted_profile(mode: str) -> None:
    made(mode)
    pod = documents(kustomized(Path("k8s").resolve()))[1]["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        security = {**pod["securityContext"], **container["securityContext"]}
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("mode", MODES)
def test_every_container_has_the_resources_that_a_quota_asks_for(mode: str) -> None:
    made(mode)
    pods = [one["spec"]["template"]["spec"] for one in documents(kustomized(Path("k8s").resolve()))[1:]]
    for container in (one for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])):
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert "memory" in resources["limits"]


@pytest.mark.parametrize("group", ["billing", "Billing_1", "true", "1"])
def test_the_monitor_finds_the_pods_and_leaves_the_group_to_the_sidecar(group: str) -> None:
    """The sidecar states it. A label of the target would rename that one to `exported_group`."""
    words = ("--group", group, *COMMON[2:], *MODES["pull"], "--kubernetes", "k8s")
    assert reconsume("init", *words).exit_code == 0
    monitor = yaml.safe_load(Path("k8s/monitoring/podmonitor.yaml").read_text("utf-8"))
    check(monitor, NEWEST)
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint.keys() == {"port", "path", "interval"}


def test_the_image_can_be_named_once_for_the_sidecar_and_the_job() -> None:
    made("push")
    kustomization = Path("k8s/kustomization.yaml")
    kustomization.write_text(kustomization.read_text("utf-8").replace("# images:", "images:"), "utf-8")
    pods = [one["spec"]["template"]["spec"] for one in documents(kustomized(Path("k8s").resolve()))[1:]]
    images = {
        one["image"].rpartition(":")[0] for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])
    }
    assert images == {"registry.example/reconsume", "python"}


def compose_faults(*texts: str) -> list[str]:
    """What the Compose specification's own schema says against these files."""
    files = [Path(f"checked-{number}.yaml") for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, "utf-8")
    words = [sys.executable, "-m", "check_jsonschema", *COMPOSE_SCHEMA, *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    said = json.loads(done.stdout)
    assert not said.get("parse_errors"), done.stdout
    return [f"{error['filename']}: {error['message']}" for error in said.get("errors", [])]


def compose_file(mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What `init --compose` writes into a folder."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    made(mode)
    return (folder / "compose.yaml").read_text("utf-8")


def test_the_compose_files_are_valid_and_a_misspelled_field_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [compose_file(mode, tmp_path / mode, monkeypatch) for mode in MODES]
    said = yaml.safe_load(texts[0])
    said["services"]["sidecar"]["comand"] = ["run"]
    (fault,) = compose_faults(*texts, yaml.safe_dump(said))
    assert fault.startswith(f"checked-{len(texts)}.yaml: ")


def test_the_jobs_configuration_is_the_sidecars() -> None:
    made("push")
    found = documents(kustomized(Path("k8s").resolve()))
    (job,) = (document for document in found if document["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["configMap"]["name"] == named(found, "ConfigMap", "billing")["metadata"]["name"]
    (container,) = pod["containers"]
    assert container["args"][:2] == ["topics", "apply"]
    assert container["args"][-1].startswith(container["volumeMounts"][0]["mountPath"])


def test_the_monitor_is_a_component_that_can_be_added() -> None:
    made("push")
    kustomization = Path("k8s/kustomization.yaml")
    kustomization.write_text(kustomization.read_text("utf-8").replace("# components:", "components:"), "utf-8")
    found = documents(kustomized(Path("k8s").resolve()))
    monitor = next(document for document in found if document["kind"] == "PodMonitor")
    (deployment,) = (document for document in found if document["kind"] == "Deployment")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= deployment["spec"]["template"]["metadata"]["labels"].items()
    ports = [port["name"] for one in deployment["spec"]["template"]["spec"]["initContainers"] for port in one["ports"]]
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_the_dashboard_of_compose_takes_the_operators_token_from_the_command_that_is_printed() -> None:
    made("push")
    first = yaml.safe_load(Path("compose.yaml").read_text("utf-8"))
    shown = reconsume("init", *COMMON, *MODES["push"], "--compose", "--force")
    (variable,) = first["configs"]["token"].values()
    assert f"{variable}=$(cat reconsume-operators.token) docker compose -f compose.yaml up" in shown.stderr
    assert len(Path("reconsume-operators.token").read_text("utf-8").strip()) >= 32
    dashboard = first["services"]["dashboard"]
    assert dashboard["ports"] == ["127.0.0.1:8473:8473"]
