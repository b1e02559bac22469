"""Build the sidecar's container and the volumes of its pod: the one source of every manifest in `deploy/k8s`.

Tests compare the Kustomize component and the admission policy with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from reconsume.sidecar.deploy.annotations import (
    CONFIG_VOLUME,
    SECRET_VOLUME,
    SidecarAnnotations,
    config_volume,
    millicores,
    secret_volume,
)
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.process_settings import shared_memory

NAME = "reconsume"
FOLDER = "/etc/reconsume"
FILE = "reconsume.yaml"
SECRETS = "/etc/reconsume-secrets"
TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
NO_TOKEN = "reconsume-no-token"
"""The volume that is mounted over the folder of the service account's token, which the service's own containers may
need: Kubernetes puts none into a container that has a mount there."""
SECRET_MODE = 0o440
"""For owner and group alone. The owner is root, so it needs a pod with an `fsGroup`, by which the sidecar may read."""
PROBE_PORT = 8472
GRACE = 40
"""Seconds. The grace period that a pod gets which does not set one: the default drain of 35 s, and SPARE."""
SPARE = 5
"""Seconds of the grace period that are left after the drain. The exit takes under 2."""
LONGEST_DRAIN_S = 3_600
USUAL_CPU = "50m"
REQUEST_MIB, REQUEST_MORE_MIB = 96, 5
"""The memory that a pod requests for the sidecar, and for each further group."""
USUAL_MEMORY = "256Mi"
"""The result of `memory_limit` for the default settings."""

ANSWER_TIMES = 6
"""How many times its size a large JSON answer takes at most while it is decoded (`delivery/verdict.py`)."""

Object = dict[str, Any]


def image() -> str:
    """Return the image of this version, for a pod that names none."""
    return f"{NAME}:{version('reconsume')}"


def memory_limit(
    buffer_memory: int = 16 << 20, concurrency: int = 256, max_answer: int = 64 << 10, groups: int = 1
) -> int:
    """Return the memory limit in MiB, rounded up to 64 MiB, for these settings of `deliver`.

    `buffer_memory` and `max_answer` are in bytes, `concurrency` is the number of requests in flight, of all groups.
    """
    # In this order: a process that writes failures at full speed; the records that two lanes hold, and half as much
    # for copies that Kafka refuses (`core/room.py`), which all groups share; what the clients of each group fetch
    # ahead (16 and 4 MiB); an answer of 64 KiB for each request in flight; and a larger answer while it is decoded.
    decoded = ANSWER_TIMES * max_answer if max_answer > 64 << 10 else 0
    most = (128 << 20) + 3 * buffer_memory + groups * (20 << 20) + concurrency * (64 << 10) + decoded
    return -(-most // (64 << 20)) * 64


def memory_of_groups(groups: Sequence[Settings]) -> int:
    """Return the memory limit in MiB of a process with these groups."""
    delivers = [settings.deliver for settings in groups]
    in_flight, longest = sum(one.most_requests for one in delivers), max(one.max_answer for one in delivers)
    return memory_limit(shared_memory(delivers[0].buffer_memory, len(groups)), in_flight, longest, len(groups))


def drain_seconds(grace: int) -> int:
    """Return the seconds that a drain may take in a pod with this grace period (seconds)."""
    return min(max(grace - SPARE, 1), LONGEST_DRAIN_S)


def container(annotations: SidecarAnnotations, grace: int) -> Object:
    """Return the container. `grace`: the pod's grace period in seconds."""
    options = [word for folder in _folders(annotations).values() for word in ("-c", f"{folder}/{FILE}")]
    made: Object = {
        "name": NAME,
        "image": annotations.image or image(),
        "args": ["run", *options],
        "env": [*_who(), *_settings(annotations, grace)],
        "ports": [{"name": NAME, "containerPort": PROBE_PORT}],
        # It checks this process only. The service starts after a native sidecar, and must not wait for Kafka.
        "startupProbe": _probe("/livez", periodSeconds=1, failureThreshold=60),
        "livenessProbe": _probe("/livez", periodSeconds=10, timeoutSeconds=5, failureThreshold=6),
        "readinessProbe": _probe("/readyz", periodSeconds=10, timeoutSeconds=5, failureThreshold=3),
        # All preStop hooks of a pod run at once: it drains while the service still answers. SIGTERM comes later.
        "lifecycle": {"preStop": {"exec": {"command": ["reconsume", "drain", *options]}}},
        "resources": _resources(annotations),
        "securityContext": security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if not annotations.plain:
        made["restartPolicy"] = "Always"  # in initContainers: a native sidecar (KEP-753)
    made["volumeMounts"] = _mounts(annotations)
    return made


def volumes(annotations: SidecarAnnotations, *, grouped: bool = False) -> list[Object]:
    """Return the volumes that the pod needs for the sidecar. `grouped`: whether the pod has an `fsGroup`."""
    names = zip(_folders(annotations), annotations.config_maps, strict=True)
    configured = [{"name": volume, "configMap": {"name": name}} for volume, name in names]
    mode = {"defaultMode": SECRET_MODE} if grouped else {}
    secrets = annotations.secret_names
    return [
        *configured,
        *({"name": secret_volume(name), "secret": {"secretName": name, **mode}} for name in secrets),
        {"name": NO_TOKEN, "emptyDir": {}},
    ]


def is_ours(volume: str) -> bool:
    """Whether a volume of a pod belongs to the sidecar."""
    return volume in (CONFIG_VOLUME, NO_TOKEN) or volume.startswith((SECRET_VOLUME, f"{CONFIG_VOLUME}-"))


def security() -> Object:
    """Return the container's security context.

    It is what the "restricted" profile of Pod Security requires, with a read-only root file system.
    """
    return {
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _resources(annotations: SidecarAnnotations) -> Object:
    limit, groups = annotations.cpu_limit, max(1, len(annotations.config_maps))
    memory = annotations.memory_limit or f"{memory_limit(concurrency=groups * 256, groups=groups)}Mi"
    # A request above the limit is refused by the API server.
    usual = limit if limit and millicores(limit) < millicores(USUAL_CPU) else USUAL_CPU
    return {
        "requests": {
            "cpu": annotations.cpu_request or usual,
            "memory": f"{REQUEST_MIB + (groups - 1) * REQUEST_MORE_MIB}Mi",
        },
        "limits": {"memory": memory, **({"cpu": limit} if limit else {})},
    }


def _who() -> list[Object]:
    """Return the variables that identify this instance, from the downward API.

    They are used in client ids, transactional ids, events and metrics.
    """
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    return [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}} for name, field in fields.items()]


def _settings(annotations: SidecarAnnotations, grace: int) -> list[Object]:
    variables = {**annotations.settings(), "RECONSUME_DRAIN_TIMEOUT": f"{drain_seconds(grace)}s"}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _folders(annotations: SidecarAnnotations) -> dict[str, str]:
    """Return where each ConfigMap is mounted, by its volume: the only one in FOLDER, several in folders of their names.

    A `base` is relative to its file, so it is a key of the same ConfigMap.
    """
    if len(annotations.config_maps) == 1:
        return {CONFIG_VOLUME: FOLDER}
    return {config_volume(name): f"{FOLDER}/{name}" for name in annotations.config_maps}


def _probe(path: str, **more: int) -> Object:
    return {"httpGet": {"path": path, "port": NAME}, **more}


def _mounts(annotations: SidecarAnnotations) -> list[Object]:
    paths = _folders(annotations)
    paths |= {secret_volume(name): f"{SECRETS}/{name}" for name in annotations.secret_names}
    paths[NO_TOKEN] = TOKEN_FOLDER
    return [{"name": name, "mountPath": path, "readOnly": True} for name, path in paths.items()]
