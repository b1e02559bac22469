"""The sidecar in the charts of teams: the plugin for Argo CD and the library chart, with the real Helm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.deploy.annotations import SidecarAnnotations
from reconsume.sidecar.deploy.choice import choose
from reconsume.sidecar.deploy.workload import with_sidecar
from tests.support.kubernetes.kubectl import SECONDS, Object, check, documents, kustomized, named, pod_of, run, tool
from tests.support.sidecar.process import REPOSITORY

PLUGIN = REPOSITORY / "deploy" / "argocd" / "plugin.yaml"
LIBRARY = REPOSITORY / "deploy" / "helm" / "reconsume-sidecar"
NAMES = ("wait-for-kafka", "migration")
POD = """\
      containers:
        - {name: billing, image: "billing:1.0.0"}
      initContainers:
        - {name: wait-for-kafka, image: "wait:1"}
        - {name: migration, image: "billing:1.0.0"}
"""
DEPLOYMENT = f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: billing
  labels: {{reconsume.io/inject: "true"}}
spec:
  selector: {{matchLabels: {{app: billing}}}}
  template:
    metadata:
      labels: {{app: billing}}
    spec:
{POD}"""
REDIS = """\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: redis}
spec:
  selector: {matchLabels: {app: redis}}
  template:
    metadata: {labels: {app: redis}}
    spec: {containers: [{name: redis, image: "redis:8"}]}
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The chart of a team: its service and a database."""
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: billing\nversion: 1.0.0\n")
    (folder / "values.yaml").write_text("image: billing:1.0.0\n")
    (folder / "templates" / "billing.yaml").write_text(DEPLOYMENT.replace("billing:1.0.0", "{{ .Values.image }}"))
    (folder / "templates" / "redis.yaml").write_text(REDIS)
    return folder


def generated(chart: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """What the plugin prints for a chart, with the variables that Argo CD sets."""
    generate = yaml.safe_load(PLUGIN.read_text())["spec"]["generate"]
    path = os.pathsep.join([str(Path(tool("helm")).parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"ARGOCD_APP_NAME": "billing", "ARGOCD_APP_NAMESPACE": "shop", "HOME": str(chart.parent), "PATH": path}
    variables |= {f"ARGOCD_ENV_{name}": value for name, value in values.items()}
    words = [*generate["command"], *generate["args"]]
    return subprocess.run(words, cwd=chart, env=variables, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_the_plugin_puts_it_into_the_workload_that_the_application_names(chart: Path) -> None:
    made = generated(chart, WORKLOAD="deployment/billing", CONFIG_MAP="billing-reconsume")
    assert made.returncode == 0, made.stderr
    rendered = documents(made.stdout)
    pod = pod_of(named(rendered, "Deployment", "billing")) or {}
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["reconsume", *NAMES]
    assert "reconsume" not in yaml.safe_dump(named(rendered, "StatefulSet", "redis"))


@pytest.mark.parametrize(
    ("workload", "template"), [("deployment/billing", "{{ fail `no` }}"), ("deployment/absent", "")]
)
def test_where_helm_or_inject_fails_the_sync_fails_and_nothing_is_printed(
    chart: Path, workload: str, template: str
) -> None:
    (chart / "templates" / "more.yaml").write_text(template)
    made = generated(chart, WORKLOAD=workload, CONFIG_MAP="billing-reconsume")
    assert (made.returncode != 0, made.stdout) == (True, "")


def test_the_library_chart_makes_the_pod_that_inject_makes(chart: Path) -> None:
    """Given a chart whose template includes the library's parts, then Helm renders what the command would."""
    (chart / "Chart.yaml").write_text(
        "apiVersion: v2\nname: billing\nversion: 1.0.0\n"
        f"dependencies: [{{name: reconsume-sidecar, version: 0.3.0, repository: 'file://{LIBRARY}'}}]\n"
    )
    included = (
        DEPLOYMENT.replace("labels: {app: billing}", 'labels: {app: billing, reconsume.io/inject: "true"}')
        .replace(
            "initContainers:\n", 'initContainers: {{- include "reconsume.container" (dict "grace" 40) | nindent 8 }}\n'
        )
        .replace(
            "    spec:\n",
            "    spec:\n      terminationGracePeriodSeconds: 40\n"
            '      volumes: {{- include "reconsume.volumes" (dict "configMap" "billing") | nindent 8 }}\n',
        )
    )
    (chart / "templates" / "billing.yaml").write_text(included)
    for words in (("dependency", "build", chart), ("template", "billing", chart)):
        done = run("helm", *words)
        assert done.returncode == 0, done.stderr
    made = named(documents(done.stdout), "Deployment", "billing")
    check(made, "1.34")
    bare = yaml.safe_load(DEPLOYMENT.replace("    spec:\n", "    spec:\n      terminationGracePeriodSeconds: 40\n"))
    expected = with_sidecar(bare, SidecarAnnotations(config_map="billing"))
    assert made["spec"]["template"]["spec"] == expected["spec"]["template"]["spec"]
    assert made["spec"]["template"]["metadata"]["labels"] == expected["spec"]["template"]["metadata"]["labels"]


def test_the_component_puts_it_in_the_same_place_as_inject(tmp_path: Path) -> None:
    """Given two foreign init containers, then Kustomize's component and the command make the same pod of them."""
    (tmp_path / "deployment.yaml").write_text(DEPLOYMENT)
    component = os.path.relpath(REPOSITORY / "deploy" / "k8s" / "components" / "sidecar", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(f"resources: [deployment.yaml]\ncomponents: [{component}]\n")
    made = pod_of(named(documents(kustomized(tmp_path)), "Deployment", "billing")) or {}
    bare: Object = yaml.safe_load(DEPLOYMENT)
    assert choose([bare], ()).chosen == [bare], "both take what has the label"
    expected = pod_of(with_sidecar(bare, SidecarAnnotations(config_map="reconsume"))) or {}
    assert [one["name"] for one in made["spec"]["initContainers"]] == ["reconsume", *NAMES]
    for part in ("initContainers", "containers", "volumes"):
        assert made["spec"][part] == expected["spec"][part], part
