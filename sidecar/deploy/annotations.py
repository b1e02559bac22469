"""The options for a workload's sidecar, as its annotations give them. The admission policy reads the same ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from sidecar.settings.faults import sentence
from sidecar.settings.layers import Layers, read_environment
from sidecar.settings.load import STAND_INS, validate

DOMAIN = "reconsume.io"
LABEL = f"{DOMAIN}/inject"
"""The label of a pod. `"true"`: it has a sidecar, or needs one from the admission policy. Monitoring finds pods by
it."""
NATIVE, PLAIN = "native", "plain"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,44}[a-z0-9])?")
"""The name of a ConfigMap or Secret. It is short because a volume's name, of 63 characters at most, ends with it."""
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|k|M|G)?")
URL = "http://127.0.0.1:1/"
"""A stand-in for the URL that is in the ConfigMap."""


@dataclass(frozen=True, slots=True)
class SidecarAnnotations:
    """The options for a sidecar. Each field is an annotation of the pod: `config_map` is reconsume.io/config-map.

    An empty field is not given.
    """

    image: str = ""
    config_map: str = ""
    """The ConfigMap whose key reconsume.yaml is the configuration. The fields below are laid over it."""
    group: str = ""
    topics: str = ""
    """The main topics as in a YAML list: `orders, invoices`, or `orders, {name: invoices, tags: TagA}`."""
    url: str = ""
    mode: str = ""
    bootstrap_servers: str = ""
    secrets: str = ""
    """Names of Secrets, separated by commas. Each is a folder of its name below /etc/reconsume-secrets."""
    memory_limit: str = ""
    container: str = ""
    """`native` (default), or `plain` for Kubernetes before 1.29."""

    @property
    def plain(self) -> bool:
        """Whether it is an ordinary container. Such a container does not start before the service and end after it."""
        return self.container == PLAIN

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The names of the Secrets to mount."""
        return tuple(name.strip() for name in self.secrets.split(",") if name.strip())

    def annotations(self) -> dict[str, str]:
        """Return the pod's annotations for these options."""
        return {annotation(name): getattr(self, name) for name in names() if getattr(self, name)}

    def settings(self) -> dict[str, str]:
        """Return the environment variables that are laid over the ConfigMap."""
        said = {
            "RECONSUME_GROUP": self.group,
            "RECONSUME_TOPICS": f"[{self.topics}]" if self.topics else "",
            "RECONSUME_DELIVER__MODE": self.mode,
            "RECONSUME_DELIVER__URL": self.url,
            "RECONSUME_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap_servers,
        }
        return {name: value for name, value in said.items() if value}

    def over(self, given: Mapping[str, str | None]) -> SidecarAnnotations:
        """Return these options with the given ones on top. An empty text clears a field, None keeps it."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def names() -> list[str]:
    """Return the names of the fields, in the order of their annotations."""
    return [field.name for field in fields(SidecarAnnotations)]


def annotation(name: str) -> str:
    """Return the annotation of a field."""
    return f"{DOMAIN}/{name.replace('_', '-')}"


def read_annotations(annotations: Mapping[str, str]) -> SidecarAnnotations:
    """Return the options that a pod's annotations give."""
    return SidecarAnnotations(**{name: str(annotations.get(annotation(name)) or "") for name in names()})


def faults(annotations: SidecarAnnotations) -> list[str]:
    """Return the faults of the options, one sentence for each, which names the annotation or the setting."""
    found = []
    if annotations.container not in ("", NATIVE, PLAIN):
        found.append(f"{annotation('container')} = {annotations.container}: must be {NATIVE} or {PLAIN}")
    for name in (annotations.config_map, *annotations.secret_names):
        if name and not NAME.fullmatch(name):
            found.append(f"{name}: must be the name of a ConfigMap or Secret, of 46 characters at most")
    if annotations.memory_limit and not QUANTITY.fullmatch(annotations.memory_limit):
        found.append(f"{annotation('memory_limit')} = {annotations.memory_limit}: must be like 256Mi")
    return found + _setting_faults(annotations)


def _setting_faults(annotations: SidecarAnnotations) -> list[str]:
    """Return the faults of the settings that are given here.

    If no ConfigMap is named, missing settings are faults too.
    """
    layers = Layers()
    read_environment(layers, annotations.settings())
    if annotations.config_map:
        deliver = layers.tree.get("deliver", {})
        if deliver.get("mode", "push") == "push":
            deliver = {"url": URL, **deliver}
        layers.tree = {**STAND_INS, **layers.tree, "deliver": deliver}
    _, wrong = validate(layers.tree)
    found = [sentence(fault, layers) for fault in wrong]
    if found and not annotations.config_map:
        found.append(
            "without a ConfigMap, group, topics, bootstrap servers and the URL (or another mode) must be given"
        )
    return layers.faults + found
