"""What a real API server says, where there is one: RECONSUME_KUBE_APISERVER names it, and etcd is on PATH.

`build_api_server.sh` builds it. Nothing runs in it but the API: pods are admitted and kept, and no node takes them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconsume.sidecar.deploy.annotations import annotation
from reconsume.sidecar.deploy.workload import read_annotations, with_sidecar
from tests.deploy.test_admission_policy import CASES, STATUS
from tests.support.deadline import until
from tests.support.kubernetes.kubectl import K8S, Object, chart, kustomized, overlay, run, tool
from tests.support.kubernetes.manifests import FULL, OVERLAYS
from tests.support.service.service import free_port

PROGRAM = os.environ.get("RECONSUME_KUBE_APISERVER")
ETCD = shutil.which("etcd")
TOKEN = "of-this-test"
STARTED = 180.0
"""Seconds; it makes its certificates first."""
OURS = {"admissionregistration.k8s.io", "apps", "batch", "networking.k8s.io", "v1"}

pytestmark = pytest.mark.skipif(
    PROGRAM is None or ETCD is None, reason="RECONSUME_KUBE_APISERVER and etcd are not there"
)


class Api:
    """The API of one server."""

    def __init__(self, port: int) -> None:
        self._how = ["--server", f"https://127.0.0.1:{port}", "--token", TOKEN, "--insecure-skip-tls-verify"]

    def kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl there."""
        return run("kubectl", *self._how, *words, stdin=stdin)

    def expect(self, *words: str, stdin: str | None = None) -> str:
        """As `kubectl`; what it printed. It must go well."""
        done = self.kubectl(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    folder = tmp_path_factory.mktemp("api")
    tool("kubectl")
    with ExitStack() as stack:
        client, peer, port = free_port(), free_port(), free_port()
        start(stack, folder / "etcd.log", etcd(folder, client, peer))
        start(stack, folder / "api.log", api_server(folder, client, port))
        found = Api(port)
        until(lambda: found.kubectl("get", "--raw", "/readyz").stdout == "ok", STARTED, "the API server is ready")
        found.expect("create", "namespace", "shop")
        found.expect("apply", "-f", "-", stdin=kustomized(K8S / "overlays" / "injection"))
        yield found


def start(stack: ExitStack, log: Path, command: list[str]) -> None:
    """Start a program that is killed at the end."""
    process = subprocess.Popen(command, stdout=stack.enter_context(log.open("wb")), stderr=subprocess.STDOUT)
    stack.callback(process.wait, 20)
    stack.callback(process.kill)


def etcd(folder: Path, client: int, peer: int) -> list[str]:
    """etcd on loopback."""
    urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
    words = [f"--listen-client-urls={urls['client']}", f"--advertise-client-urls={urls['client']}"]
    words += [f"--listen-peer-urls={urls['peer']}", f"--initial-advertise-peer-urls={urls['peer']}"]
    return [str(ETCD), *words, f"--initial-cluster=default={urls['peer']}", f"--data-dir={folder / 'etcd'}"]


def api_server(folder: Path, client: int, port: int) -> list[str]:
    """The API server, which lets the one token do everything."""
    key = folder / "account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True, timeout=60)
    (folder / "tokens.csv").write_text(f'{TOKEN},tester,tester,"system:masters"\n')
    return [
        str(PROGRAM),
        f"--etcd-servers=http://127.0.0.1:{client}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=AlwaysAllow",
        "--disable-admission-plugins=ServiceAccount",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    ]


def admitted(api: Api, pod: Object) -> Any:
    """The pod as the server would store it."""
    shown = api.expect("create", "--namespace=shop", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))
    return json.loads(shown)


def injected(api: Api, pod: Object) -> Any:
    """The same, once the server has taken up the policy."""

    def found() -> Any:
        made = admitted(api, pod)
        return made if "initContainers" in made["spec"] else None

    return until(found, 60, "the policy is in force")


@pytest.mark.parametrize("case", CASES)
def test_the_policy_really_injects_and_a_second_time_nothing(api: Api, case: str) -> None:
    """Given a pod, then the server makes of it what it makes of the pod that `reconsume inject` has changed."""
    pod = {**CASES[case], "metadata": {**CASES[case]["metadata"], "namespace": "shop"}}
    made = injected(api, pod)
    annotations = {annotation("config_map"): "reconsume", **pod["metadata"].get("annotations", {})}
    by_command = admitted(api, with_sidecar(pod, read_annotations(annotations)))
    assert made["spec"] == by_command["spec"]
    assert made["metadata"]["annotations"][STATUS] == "injected"
    again = admitted(api, {**made, "metadata": {**pod["metadata"], "annotations": made["metadata"]["annotations"]}})
    assert again["spec"] == made["spec"]


def test_a_pod_without_the_label_is_left_alone(api: Api) -> None:
    injected(api, CASES["a URL"])
    made = admitted(api, {**CASES["a URL"], "metadata": {"name": "other"}})
    assert "initContainers" not in made["spec"]


@pytest.mark.parametrize("name", [*OVERLAYS, "chart"])
def test_the_server_takes_every_document_to_the_last_field(api: Api, name: str) -> None:
    """By a dry run with strict validation; custom resources are not known to it."""
    for document in chart(*FULL) if name == "chart" else overlay(name):
        namespace = document["metadata"].get("namespace")
        group, _, level = document["apiVersion"].rpartition("/")
        if (group or level) not in OURS:
            continue
        if namespace not in (None, "shop"):
            api.kubectl("create", "namespace", namespace)
        words = ["--namespace", namespace or "shop", "--dry-run=server", "--validate=strict", "-f", "-"]
        api.expect("apply", *words, stdin=yaml.safe_dump(document))


def test_the_restricted_profile_lets_every_pod_of_ours_in(api: Api) -> None:
    """Given a namespace that enforces it, then pods with the sidecar are admitted."""
    api.kubectl("create", "namespace", "strict")
    api.expect("label", "namespace", "strict", "--overwrite", "pod-security.kubernetes.io/enforce=restricted")
    (deployment,) = (one for one in overlay("keda") if one["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x", **template["metadata"]}}
    api.expect("create", "--namespace=strict", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
