"""The manifests, rendered as kubectl would apply them: valid to the last field, and locked down."""

from __future__ import annotations

import base64
import re
from importlib.metadata import version

import pytest

from reconsume.sidecar.http.tokens import tokens_in
from tests.support.kubernetes.kubectl import (
    K8S,
    Object,
    chart,
    check,
    of_kind,
    overlay,
    parts,
    pod_of,
    sidecars,
)
from tests.support.kubernetes.manifests import (
    FULL,
    OURS,
    OVERLAYS,
    WITH_SIDECAR,
    everything,
    ours,
)
from tests.support.rings import inner

VERSIONS = {"plain-container": "1.28", "injection": "1.36", "injection-v1beta1": "1.34"}
"""The oldest Kubernetes that an overlay is for; the others are for the first with native sidecars."""
NATIVE = "1.29"
EGRESS = ("networkPolicy.egress.enabled=true",)


def test_the_overlays_are_those_that_are_told_of() -> None:
    assert set(OVERLAYS) == {
        "dev", "hardened", "injection", "injection-v1beta1", "keda", "plain-container", "strimzi"
    }  # fmt: skip


@pytest.mark.parametrize("name", inner("hardened", OVERLAYS))
def test_an_overlay_is_valid_to_the_last_field(name: str) -> None:
    """Unknown fields too are an error, for the oldest Kubernetes that the overlay is for and for the newest."""
    for document in overlay(name):
        for wanted in {VERSIONS.get(name, NATIVE), *(() if name == "injection-v1beta1" else ("1.37",))}:
            check(document, wanted)


@pytest.mark.parametrize(
    "sets", [(), FULL, ("view.enabled=false",), ("ui.enabled=false", "networkPolicy.enabled=false"), EGRESS]
)
def test_the_chart_is_valid_to_the_last_field(sets: tuple[str, ...]) -> None:
    for document in chart(*sets):
        check(document, NATIVE)


def test_a_misspelled_field_would_be_seen() -> None:
    """Given a field that no API server knows, in a core kind and in custom ones, then the check fails."""
    for kind, name in (("Deployment", "keda"), ("ScaledObject", "keda")):
        (document, *_) = of_kind(overlay(name), kind)
        with pytest.raises(Exception, match="restartPolcy"):
            check({**document, "spec": {**document["spec"], "restartPolcy": "Always"}}, NATIVE)


def test_every_component_is_in_an_overlay() -> None:
    used = " ".join((K8S / "overlays" / name / "kustomization.yaml").read_text() for name in OVERLAYS)
    assert {folder.name for folder in (K8S / "components").iterdir()} <= {*re.findall(r"components/([\w-]+)", used)}


def test_every_container_of_ours_passes_the_restricted_profile_and_cannot_write_its_root() -> None:
    checked = [part for part in parts(everything()) if ours(part)]
    assert len(checked) > 10
    for part in checked:
        security = part.container["securityContext"]
        if part.container["name"] == "billing":  # the example's own service: the pod says the rest
            security = {**part.pod["spec"]["securityContext"], **security}
        assert security["runAsNonRoot"] is True, part.where
        assert security["readOnlyRootFilesystem"] is True, part.where
        assert security["allowPrivilegeEscalation"] is False, part.where
        assert security["capabilities"] == {"drop": ["ALL"]}, part.where
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, part.where


def templates() -> list[tuple[str, Object]]:
    """The security context of every pod that the manifests lead to, by its place."""
    found = []
    for document in everything():
        where, pod = f"{document['kind']}/{document['metadata']['name']}", pod_of(document)
        if pod is not None:
            found.append((where, pod["spec"].get("securityContext", {})))
    return found


def test_every_pod_has_the_seccomp_profile_of_its_runtime_and_no_root() -> None:
    """Also for containers that are put in by others later: what a container does not say, its pod does."""
    assert len(templates()) > 10
    for where, security in templates():
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert security["runAsNonRoot"] is True, where


def test_no_sidecar_sees_the_token_of_its_pods_service_account() -> None:
    """Given a service that needs its token, then an empty folder lies over it in the sidecar's container alone."""
    found = [part for name in WITH_SIDECAR for part in sidecars(overlay(name))]
    assert len(found) == len(WITH_SIDECAR)
    for part in found:
        mounts = {one["mountPath"]: one for one in part.container["volumeMounts"]}
        over = mounts["/var/run/secrets/kubernetes.io/serviceaccount"]
        (volume,) = (one for one in part.pod["spec"]["volumes"] if one["name"] == over["name"])
        assert (over["readOnly"], volume["emptyDir"]) == (True, {}), part.where
        others = [one for one in part.pod["spec"]["containers"] if one["name"] != "reconsume"]
        assert not any(over["name"] == one["name"] for other in others for one in other.get("volumeMounts", []))


def test_secrets_are_for_owner_and_group_alone_and_each_pod_has_that_group() -> None:
    """Root owns them: without an fsGroup nobody of ours could read what is mounted with 0440."""
    seen = []
    for document in everything():
        pod = pod_of(document)
        spec = {} if pod is None else pod["spec"]
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, document["metadata"]["name"]
                assert spec["securityContext"]["fsGroup"], document["metadata"]["name"]
                seen.append(document["kind"])
    assert {*seen} == {"Deployment"}


def test_no_pod_of_ours_gets_a_token_or_the_host() -> None:
    for document in everything():
        pod = pod_of(document)
        if pod is None:
            continue
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, document["metadata"]["name"]
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & {*spec}
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}


def test_the_dashboard_of_the_try_out_takes_its_own_token() -> None:
    (secret,) = (one for one in of_kind(overlay("dev"), "Secret") if one["metadata"]["name"].startswith("reconsume-ui"))
    assert not tokens_in(base64.b64decode(secret["data"]["token"])).fault


def test_the_dev_namespace_enforces_the_restricted_profile() -> None:
    (namespace,) = of_kind(overlay("dev"), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for part in parts(overlay("dev")):
        security = {**part.pod["spec"]["securityContext"], **part.container["securityContext"]}
        assert (security["runAsNonRoot"], security["allowPrivilegeEscalation"]) == (True, False), part.where


def test_images_are_of_this_version() -> None:
    for part in parts(everything()):
        name, _, tag = part.container["image"].rpartition(":")
        assert tag not in ("", "latest"), part.where
        assert name not in OURS or tag == version("reconsume"), part.where


def test_what_has_no_readiness_is_called_by_nobody_and_its_life_is_watched() -> None:
    """That is the view; each other container that runs on has all three probes, and Jobs have none."""
    for found in (overlay("dev"), overlay("keda"), chart()):
        services = [one["spec"]["selector"] for one in of_kind(found, "Service")]
        for part in parts(found):
            if ours(part) and "ports" in part.container and "readinessProbe" not in part.container:
                assert part.container["name"] == "view"
                assert part.container["livenessProbe"]["httpGet"]["path"] == "/livez"
                labels = part.pod["metadata"]["labels"]
                assert not any(selector.items() <= labels.items() for selector in services)


def test_every_container_says_what_it_needs() -> None:
    for part in parts(everything()):
        if ours(part) or part.container["name"] == "billing":
            resources = part.container["resources"]
            assert resources["requests"].keys() == {"cpu", "memory"}, part.where
            assert "memory" in resources["limits"], part.where
