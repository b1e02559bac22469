"""The Compose file, the manifests and the placeholder that `init` writes."""

from __future__ import annotations

import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml

from reconsume.sidecar.deploy.annotations import SidecarAnnotations
from reconsume.sidecar.deploy.container import container, image
from reconsume.sidecar.deploy.starter import compose as compose_file
from reconsume.sidecar.deploy.starter.configuration import Answers
from reconsume.sidecar.deploy.starter.manifests import workload_name
from reconsume.sidecar.deploy.starter.placeholder import placeholder
from reconsume.sidecar.dev.kafka.releases import USUAL
from reconsume.sidecar.settings.reference import MODELINE
from tests.cli.test_init import COMMON, MODES, refused
from tests.support.deadline import until
from tests.support.service.service import free_port
from tests.support.sidecar.cli import reconsume

SECONDS = 60.0


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def composed(mode: str) -> dict[str, Any]:
    """The services of the Compose file."""
    assert reconsume("init", *COMMON, *MODES[mode], "--compose").exit_code == 0
    services: dict[str, Any] = yaml.safe_load(Path("compose.yaml").read_text("utf-8"))["services"]
    return services


@pytest.mark.parametrize("mode", MODES)
def test_the_compose_file_runs_the_sidecar_beside_the_service(mode: str) -> None:
    services = composed(mode)
    sidecar = services["sidecar"]
    assert sidecar["image"] == image()
    assert sidecar["network_mode"] == "service:service"
    assert sidecar["command"] == ["run", "-c", sidecar["volumes"][0]["target"]]
    assert sidecar["volumes"][0]["source"] == "./reconsume.yaml"
    assert sidecar["environment"] == services["group-topics"]["environment"]
    for name, service in services.items():
        assert service["image"].rpartition(":")[2] not in ("", "latest"), f"{name} has a pinned tag"
    assert services["kafka"]["image"] == compose_file.KAFKA_IMAGE
    assert compose_file.KAFKA_IMAGE.partition(":")[2].startswith(USUAL)
    script = services["main-topics"]["command"][-1]
    assert [line.rpartition("=")[2] for line in script.splitlines()[1:]] == ["orders", "invoices"]


def test_the_compose_file_has_no_variable_of_compose() -> None:
    composed("push")
    assert "$" not in Path("compose.yaml").read_text("utf-8")


@pytest.mark.parametrize("url", ["unix:/run/app/app.sock:/events", "http://[::1]:8080/events"])
def test_a_placeholder_at_another_address_is_refused(url: str) -> None:
    refused(reconsume("init", *COMMON, "--url", url, "--compose"), "placeholder")
    assert reconsume("init", *COMMON, "--url", url).exit_code == 0


def test_the_manifests_have_the_sidecar_of_inject() -> None:
    assert reconsume("init", *COMMON, *MODES["push"], "--kubernetes", "deploy/k8s").exit_code == 0
    folder = Path("deploy/k8s")
    deployment = (folder / "deployment.yaml").read_text("utf-8")
    pod = yaml.safe_load(deployment)["spec"]["template"]["spec"]
    assert pod["initContainers"] == [container(SidecarAnnotations(config_map="billing"), 40)]
    again = reconsume("inject", "-f", folder / "deployment.yaml")
    assert (again.exit_code, again.stdout) == (0, deployment)
    assert "unchanged" in again.stderr
    copy = (folder / "reconsume.yaml").read_text("utf-8")
    assert copy.startswith("# A copy of reconsume.yaml,")
    assert copy.endswith("\n\n" + Path("reconsume.yaml").read_text("utf-8").removeprefix(MODELINE))
    made = yaml.safe_load((folder / "kustomization.yaml").read_text("utf-8"))["configMapGenerator"]
    assert made == [{"name": "billing", "files": ["reconsume.yaml"]}]


@pytest.mark.parametrize("group", ["Billing_1", "1", "...", "b" * 200, "-x-", "true"])
def test_any_group_has_a_name_for_kubernetes(group: str) -> None:
    words = ("--group", group, "--topics", "orders", "--bootstrap-servers", "kafka:9092", "--mode", "pull")
    assert reconsume("init", *words, "--kubernetes", "k8s").exit_code == 0
    name = workload_name(group)
    assert name[0].isalpha()
    assert len(name) <= 46
    assert yaml.safe_load(Path("k8s/deployment.yaml").read_text("utf-8"))["metadata"]["name"] == name


def test_the_placeholder_of_push_takes_json_and_fails_the_rest() -> None:
    port = free_port()
    answers = Answers("billing", ("orders",), "kafka:9092", "push", f"http://127.0.0.1:{port}/events")
    process = subprocess.Popen([sys.executable, "-c", placeholder(answers)], stderr=subprocess.DEVNULL)
    try:
        assert until(lambda: status_of(port, b"{}"), SECONDS, "the placeholder answers") == 200
        assert status_of(port, b"no json") == 500
    finally:
        process.kill()
        process.wait()


def status_of(port: int, body: bytes) -> int:
    """The status of the answer; 0 while there is none."""
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}/events", body)) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def test_the_placeholder_of_pull_acknowledges_json_and_retries_the_rest() -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    records = [{"handle": "a", "value_base64": "e30="}, {"handle": "b", "value_base64": None}]

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = yaml.safe_load(self.rfile.read(int(self.headers["Content-Length"])))
            answer = str({"records": [] if calls else records}).replace("'", '"').replace("None", "null").encode()
            calls.append((self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        program = placeholder(Answers(mode="pull")).replace(":8471/", f":{server.server_port}/")
        process = subprocess.Popen([sys.executable, "-c", program])
        try:
            until(lambda: len(calls) > 3, SECONDS, "both records are answered")
        finally:
            process.kill()
            process.wait()
            server.shutdown()
    assert calls[0] == ("/v1/receive", {"max": 10, "invisible": "30s", "wait": "10s"})
    assert calls[1] == ("/v1/ack", {"handles": ["a"]})
    assert calls[2] == ("/v1/reconsume-later", {"handles": ["b"], "reason": "no-json"})


EDITED = """\
# Mine, edited by hand.
group: billing
topics: [orders]
kafka: {bootstrap.servers: "kafka-1:9092"}
deliver: {url: "http://127.0.0.1:8081/mine", concurrency: 3}
"""


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["once", "forced"])
@pytest.mark.parametrize("words", [("--kubernetes", "k8s"), ("--compose",)], ids=["kubernetes", "compose"])
def test_a_configuration_that_is_there_is_taken_and_never_written(
    words: tuple[str, ...], force: tuple[str, ...]
) -> None:
    Path("reconsume.yaml").write_text(EDITED, "utf-8")
    for _ in range(1 + len(force)):
        shown = reconsume("init", *words, *force)
        assert (shown.exit_code, shown.stdout) == (0, "")
        assert "reconsume.yaml: is there, and is taken as it is" in shown.stderr
    assert Path("reconsume.yaml").read_text("utf-8") == EDITED
    if "--compose" in words:
        assert "8081" in Path("compose.yaml").read_text("utf-8"), "its placeholder listens where the sidecar posts"
    else:
        assert Path("k8s/reconsume.yaml").read_text("utf-8").endswith(EDITED)


def test_one_that_is_there_beside_given_values_is_told_how_it_can_stay() -> None:
    Path("reconsume.yaml").write_text(EDITED, "utf-8")
    refused(reconsume("init", *COMMON, *MODES["push"], "--kubernetes", "k8s"), "without --group", "taken as it is")
    assert (Path("reconsume.yaml").read_text("utf-8"), Path("k8s").exists()) == (EDITED, False)


def test_one_that_is_wrong_is_refused_and_nothing_is_written() -> None:
    Path("reconsume.yaml").write_text(EDITED.replace("[orders]", "[or ders]"), "utf-8")
    refused(reconsume("init", "--kubernetes", "k8s"), "topics")
    assert not Path("k8s").exists()


def test_a_configuration_in_the_folder_of_the_manifests_is_the_only_one() -> None:
    words = ("init", *COMMON, *MODES["push"], "--kubernetes", "k8s", "-c", "k8s/reconsume.yaml")
    assert reconsume(*words).exit_code == 0
    assert [path.parent.name for path in Path().rglob("reconsume.yaml")] == ["k8s"]
    assert "copy" not in Path("k8s/reconsume.yaml").read_text("utf-8")


def test_the_next_steps_of_the_manifests_begin_with_the_image_and_end_with_the_cluster() -> None:
    shown = reconsume("init", *COMMON, *MODES["push"], "--kubernetes", "k8s")
    steps = shown.stderr.partition("\n\n")[2].splitlines()
    assert [step.partition("   #")[0] for step in steps] == [
        "make image",
        "push it to the registry of the cluster, and name that under `images` in k8s/kustomization.yaml",
        "kubectl apply -k k8s",
        "the main topics must exist",
        "kubectl create secret generic reconsume-ui --from-file=token=reconsume-operators.token",
    ]
    assert "# images: [{name: reconsume, newName: registry.example/reconsume}]" in Path(
        "k8s/kustomization.yaml"
    ).read_text("utf-8")


def test_a_configuration_with_a_base_is_not_copied_into_manifests_without_it(tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text("kafka: {bootstrap.servers: 'kafka:9092'}\n", "utf-8")
    text = "base: common.yaml\ngroup: billing\ntopics: [orders]\ndeliver: {mode: pull}\n"
    (tmp_path / "reconsume.yaml").write_text(text, "utf-8")
    shown = reconsume("init", "-c", tmp_path / "reconsume.yaml", "--kubernetes", tmp_path / "k8s")
    assert shown.exit_code == 78
    assert "base: " in shown.stderr
    assert not (tmp_path / "k8s").exists()
