"""Add the sidecar to the pods of a workload, or remove it. The input is not changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

from reconsume.sidecar.deploy.annotations import (
    ADDED_GRACE,
    LABEL,
    SidecarAnnotations,
    annotation,
    names,
    read_annotations,
)
from reconsume.sidecar.deploy.container import GRACE, NAME, PROBE_PORT, container, is_ours, volumes
from reconsume.sidecar.deploy.mesh import PROXIES, lacks, mesh_annotations

TEMPLATES: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "Rollout": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""The path to the pod in each kind."""
ENDING = ("Job", "CronJob")
GRACE_PERIOD = "terminationGracePeriodSeconds"
API = {"Pod": "v1", "Job": "batch/v1", "CronJob": "batch/v1", "Rollout": "argoproj.io/v1alpha1"}
HOOKS = ("helm.sh/hook", "argocd.argoproj.io/hook")
"""Annotations of what runs once around a deployment: a test, a migration."""

Object = dict[str, Any]


class WrongManifestError(Exception):
    """A workload that cannot have a sidecar. The text says what is wrong with it."""


def is_workload(document: object) -> bool:
    """Whether the document is a Kubernetes object that is a pod or creates pods."""
    if not isinstance(document, dict):
        return False
    kind = document.get("kind")
    if not isinstance(kind, str) or document.get("apiVersion") != API.get(kind, "apps/v1") or kind not in TEMPLATES:
        return False
    return kind != "Rollout" or "workloadRef" not in (document.get("spec") or {})  # else its pods are a Deployment's


def has_unknown_pods(document: Object) -> bool:
    """Whether an object that is no workload has the template of a pod, as a Service of Knative has."""
    node: Any = document
    for key in ("spec", "template", "spec", "containers"):
        node = node.get(key) if isinstance(node, dict) else None
    return isinstance(node, list) and not is_workload(document)


def is_hook(document: Object) -> bool:
    """Whether an object is a hook of Helm or Argo CD."""
    return any(key in _metadata(document, "annotations") for key in HOOKS)


def wish_of(document: Object) -> bool | None:
    """Return what the label reconsume.io/inject says on the object or its pod; None without one, or with another
    value. False wins."""
    template = document
    for key in TEMPLATES.get(document["kind"], ("spec", "template")):
        template = template.get(key) if isinstance(template.get(key), dict) else {}  # type: ignore[assignment]
    labels = [_metadata(one, "labels") for one in (document, template)]
    wishes = {str(labelled[LABEL]).lower() for labelled in labels if LABEL in labelled}
    return False if "false" in wishes else True if "true" in wishes else None


def _metadata(document: Object, key: str) -> Mapping[str, Any]:
    metadata = document.get("metadata")
    values = metadata.get(key) if isinstance(metadata, dict) else None
    return values if isinstance(values, dict) else {}


def name_of(document: Object) -> str:
    """Return the kind and the name of an object, such as `deployment/orders`."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return f"{document['kind'].lower()}/{metadata.get('name') or metadata.get('generateName') or '?'}"


def has_sidecar(document: Object) -> bool:
    """Whether the workload's pods have a sidecar. Raises WrongManifestError."""
    spec = _pod(document)["spec"]
    return any(item["name"] == NAME for kind in ("initContainers", "containers") for item in spec.get(kind) or [])


def annotations_of(document: Object) -> SidecarAnnotations:
    """Return the sidecar's options from the annotations of the workload's pods. Raises WrongManifestError."""
    metadata = _pod(document).get("metadata")
    annotations = (metadata if isinstance(metadata, dict) else {}).get("annotations")
    return read_annotations(annotations if isinstance(annotations, Mapping) else {})


def with_sidecar(document: Object, annotations: SidecarAnnotations) -> Object:
    """Return the workload with this sidecar, new or updated. Raises WrongManifestError."""
    changed = copy.deepcopy(document)
    pod = _pod(changed)
    spec = pod["spec"]
    if annotations.plain and (changed["kind"] in ENDING or spec.get("restartPolicy", "Always") != "Always"):
        raise WrongManifestError("its pods end with their service, and an ordinary container would keep them running")
    _fits(spec)
    _describe(pod, annotations)
    kind, other = ("containers", "initContainers") if annotations.plain else ("initContainers", "containers")
    _drop(spec, other, NAME.__eq__)
    if not annotations.plain:
        _make_first(spec, NAME, PROXIES.get(annotations.mesh, ()))
    if spec.get(GRACE_PERIOD) is None:
        spec[GRACE_PERIOD] = GRACE
        pod["metadata"]["annotations"] = {**pod["metadata"].get("annotations", {}), ADDED_GRACE: str(GRACE)}
    _put(spec, kind, [container(annotations, _grace(spec))], NAME.__eq__)
    grouped = (spec.get("securityContext") or {}).get("fsGroup") is not None
    _put(spec, "volumes", volumes(annotations, grouped=grouped), is_ours)
    return changed


def _fits(spec: Object) -> None:
    """Raise WrongManifestError for a pod in which the sidecar could not run, or would not be safe.

    The admission policy leaves such pods unchanged.
    """
    if spec.get("hostNetwork") is True:
        raise WrongManifestError("hostNetwork: the sidecar's API would be on the node's loopback, for everybody there")
    if (spec.get("securityContext") or {}).get("runAsUser") == 0:
        raise WrongManifestError(
            "securityContext.runAsUser = 0: the sidecar does not run as root; say it in the containers that need it"
        )
    for kind in ("initContainers", "containers"):
        for item in spec.get(kind) or []:
            ports = [port.get("containerPort") for port in item.get("ports") or [] if isinstance(port, dict)]
            if item["name"] != NAME and PROBE_PORT in ports:
                raise WrongManifestError(f"{item['name']} has port {PROBE_PORT}, which is the sidecar's for probes")


def without_sidecar(document: Object) -> Object:
    """Return the workload without the sidecar. Raises WrongManifestError."""
    changed = copy.deepcopy(document)
    pod = _pod(changed)
    metadata = pod.get("metadata") or {}
    meshed = mesh_annotations(annotations_of(document))
    if str(pod["spec"].get(GRACE_PERIOD)) == (metadata.get("annotations") or {}).get(ADDED_GRACE):
        del pod["spec"][GRACE_PERIOD]
    ours_by_key = {"annotations": [ADDED_GRACE, *(annotation(name) for name in names())], "labels": [LABEL]}
    for metadata_key, ours in ours_by_key.items():
        if isinstance(metadata.get(metadata_key), dict):
            remaining = {
                key: value
                for key, value in metadata[metadata_key].items()
                if key not in ours and meshed.get(key) != value
            }
            if remaining != metadata[metadata_key]:
                _set(metadata, metadata_key, remaining)
    for kind in ("initContainers", "containers"):
        _drop(pod["spec"], kind, NAME.__eq__)
    _drop(pod["spec"], "volumes", is_ours)
    return changed


def _pod(document: Object) -> Object:
    """Return the pod, or the pod's template. Raises WrongManifestError if its `spec` is malformed."""
    node: Any = document
    path = TEMPLATES[document["kind"]]
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    spec = node.get("spec") if isinstance(node, dict) else None
    where = ".".join((*path, "spec"))
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        raise WrongManifestError(f"{where}.containers: must be a list")
    for kind in ("initContainers", "containers", "volumes"):
        items = spec.get(kind) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) and "name" in item for item in items):
            raise WrongManifestError(f"{where}.{kind}: must be a list of things with a name")
        if kind != "volumes" and any(item["name"] == NAME and not _is_ours(item) for item in items):
            raise WrongManifestError(f"{where}.{kind} has a container {NAME} that is not the sidecar")
    pod: Object = node
    return pod


def _is_ours(item: Object) -> bool:
    """Whether a container of our name is the sidecar: it runs `reconsume run`, however it was added."""
    arguments = item.get("args")
    return isinstance(arguments, list) and arguments[:1] == ["run"]


def _describe(pod: Object, annotations: SidecarAnnotations) -> None:
    """Set the label and the annotations. Remove annotations of ours that are no longer wanted."""
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        metadata = pod["metadata"] = {}
    _set(metadata, "labels", {**(metadata.get("labels") or {}), LABEL: "true"})
    said = _without_mesh(metadata.get("annotations") or {}, annotations)
    ours = {annotation(name) for name in names()}
    wanted = annotations.annotations() | mesh_annotations(annotations)
    kept = {key: wanted[key] if key in ours else value for key, value in said.items() if key not in ours - {*wanted}}
    _set(metadata, "annotations", {**kept, **{key: value for key, value in wanted.items() if key not in kept}})


def _without_mesh(said: Mapping[str, Any], annotations: SidecarAnnotations) -> dict[str, Any]:
    """Return a pod's annotations without those of a mesh that were written for other options.

    Raises WrongManifestError if one that somebody else has written leaves out fewer ports than are needed.
    """
    before, wanted = mesh_annotations(read_annotations(said)), mesh_annotations(annotations)
    kept = {key: value for key, value in said.items() if before.get(key) != value or wanted.get(key) == value}
    for key, ports in wanted.items():
        if key in kept and lacks(str(kept[key]), ports):
            raise WrongManifestError(f"annotation {key} = {kept[key]}: add {ports}, which the sidecar needs")
    return kept


def _grace(spec: Object) -> int:
    grace = spec[GRACE_PERIOD]
    if not isinstance(grace, int) or isinstance(grace, bool):
        raise WrongManifestError(f"{GRACE_PERIOD} = {grace}: must be a whole number of seconds")
    return grace


def _put(spec: Object, kind: str, items: list[Object], ours: Callable[[str], bool]) -> None:
    """Replace our items in place and append new ones. Remove items of ours that are no longer wanted."""
    wanted = {item["name"]: item for item in items}
    there = spec.get(kind) or []
    kept = [wanted.pop(item["name"], item) for item in there if item["name"] in wanted or not ours(item["name"])]
    _set(spec, kind, kept + list(wanted.values()))


def _make_first(spec: Object, name: str, proxies: Collection[str]) -> None:
    """Make a place for the sidecar before all other init containers, but behind those of a mesh.

    The Kustomize component and the admission policy put it there as well: it runs before a migration that may wait for
    Kafka, and behind what a mesh needs to reach the network.
    """
    there = spec.get("initContainers") or []
    items = [item for item in there if item["name"] != name]
    ours = next((item for item in there if item["name"] == name), {"name": name})
    number = max((index + 1 for index, item in enumerate(items) if item["name"] in proxies), default=0)
    spec["initContainers"] = [*items[:number], ours, *items[number:]]


def _drop(spec: Object, kind: str, ours: Callable[[str], bool]) -> None:
    if any(ours(item["name"]) for item in spec.get(kind) or []):
        _put(spec, kind, [], ours)


def _set(node: Object, key: str, value: Any) -> None:
    """Set the value. A value that becomes empty is removed; one that was empty stays as it is written."""
    if value:
        node[key] = value
    elif node.get(key):
        del node[key]
