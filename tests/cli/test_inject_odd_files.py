"""`reconsume inject` on files as they come: directives, lists, shared parts, pods that opt out or do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.test_inject import DEPLOYMENT, WISH, changed, inject, sidecar, template, variables

BOTH = ("--workload", "deployment/billing", "--many")
OUT = '    metadata:\n      labels:\n        reconsume.io/inject: "false"   # not this one\n'
LABELS = "    metadata:\n      labels:\n        app: billing\n"


def refused(text: str, *words: str) -> str:
    shown = inject(*words, stdin=text)
    assert (shown.exit_code, shown.stdout) == (78, "")
    return shown.stderr


def test_directives_before_a_document_stay_where_they_are() -> None:
    text = f"# made by hand\n%YAML 1.1\n---\n{DEPLOYMENT}...\n%YAML 1.1\n---\n{DEPLOYMENT}"
    shown = changed(text, *WISH, *BOTH)
    assert shown.startswith("# made by hand\n%YAML 1.1\n---\n# The billing service\n")
    assert shown.count("%YAML 1.1\n---\n") == 2
    assert [sidecar(template(one))["name"] for one in yaml.safe_load_all(shown)] == ["reconsume", "reconsume"]
    assert changed(shown, "--remove") == text


def test_windows_line_ends_stay_in_every_document(tmp_path: Path) -> None:
    before = f"{DEPLOYMENT}---\n{DEPLOYMENT}".replace("\n", "\r\n").encode()
    (tmp_path / "deploy.yaml").write_bytes(before)
    assert inject("-f", tmp_path / "deploy.yaml", "-i", *WISH, *BOTH).exit_code == 0
    after = (tmp_path / "deploy.yaml").read_bytes()
    assert after.count(b"\n") == after.count(b"\r\n") > before.count(b"\n")
    assert inject("-f", tmp_path / "deploy.yaml", "-i", "--remove").exit_code == 0
    assert (tmp_path / "deploy.yaml").read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        DEPLOYMENT.replace(LABELS, OUT),
        DEPLOYMENT.replace("  name: billing ", '  labels: {reconsume.io/inject: "false"}\n  name: billing '),
    ],
    ids=["pod", "workload"],
)
def test_a_workload_that_opts_out_is_passed_over(text: str) -> None:
    """Given the label "false" on the pod or on its workload, as in a stream where only some shall have a sidecar."""
    assert "inject" in text
    shown = inject(*WISH, stdin=f"{text}---\n{DEPLOYMENT}")
    assert shown.stderr.splitlines() == ["deployment/billing: passed over", "deployment/billing: sidecar added"]
    assert shown.stdout.startswith(f"{text}---\n")


def test_a_list_of_one_kind_is_a_list_too() -> None:
    text = yaml.safe_dump({"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [yaml.safe_load(DEPLOYMENT)]})
    shown = inject(*WISH, stdin=text)
    assert shown.stderr == "deployment/billing: sidecar added\n"
    assert sidecar(template(yaml.safe_load(shown.stdout)["items"][0]))["restartPolicy"] == "Always"


def test_an_empty_list_is_something_of_kubernetes() -> None:
    text = "apiVersion: v1\nitems: []\nkind: List\n"  # what `kubectl get deployments -o yaml` prints for none
    shown = inject(*WISH, stdin=text)
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, text, "list/?: passed over\n")


def test_a_time_to_end_of_null_is_the_usual_one() -> None:
    text = DEPLOYMENT.replace("terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: null")
    assert variables(template(yaml.safe_load(changed(text, *WISH))))["RECONSUME_DRAIN_TIMEOUT"] == "35s"


def test_what_is_shared_by_an_anchor_is_told_as_such() -> None:
    text = DEPLOYMENT.replace("      labels:\n        app", "      labels: &ours\n        app")
    assert "shared" in refused(f"{text}      nodeSelector: *ours\n", *WISH)


def test_a_part_that_has_an_anchor_and_is_not_shared_is_added_to() -> None:
    text = DEPLOYMENT.replace("      labels:\n        app", "      labels: &ours\n        app")
    text = text.replace("      containers:\n", "      containers: &all\n").replace("    spec:\n", "    spec: !!map\n")
    pod = template(yaml.safe_load(changed(text, *WISH, "--plain")))
    assert ([one["name"] for one in pod["spec"]["containers"]], len(pod["metadata"]["labels"])) == (
        ["billing", "reconsume"],
        2,
    )
    assert changed(changed(text, *WISH, "--plain"), "--remove") == text


@pytest.mark.parametrize("words", [WISH, ("--remove",)])
def test_a_container_of_that_name_that_is_not_the_sidecar_is_left_alone(words: tuple[str, ...]) -> None:
    text = DEPLOYMENT.replace("- name: billing", "- name: reconsume")
    assert "has a container reconsume that is not the sidecar" in refused(text, *words)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("      securityContext: {runAsUser: 0}\n", "runAsUser = 0: the sidecar does not run as root"),
        (
            "      initContainers: [{name: a, restartPolicy: Always, ports: [{containerPort: 8472}]}]\n",
            "a has port 8472",
        ),
    ],
)
def test_a_pod_in_which_it_could_not_run_is_refused(more: str, why: str) -> None:
    assert why in refused(DEPLOYMENT + more, *WISH)


def test_a_port_of_the_service_that_is_the_sidecars_is_refused() -> None:
    port = "        - name: billing\n          ports: [{name: http, containerPort: 8472}]\n"
    assert "billing has port 8472" in refused(DEPLOYMENT.replace("        - name: billing\n", port), *WISH)
