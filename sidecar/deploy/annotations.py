"""The options for a workload's sidecar, as its annotations give them. The admission policy reads the same ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.load import STAND_INS, Layers, read_environment, validate
from reconsume.sidecar.settings.modes import expect_sidecar

DOMAIN = "reconsume.io"
LABEL = f"{DOMAIN}/inject"
"""The label of a pod. `"true"`: it has a sidecar, or needs one from the admission policy. Monitoring finds pods by
it."""
ADDED_GRACE = f"{DOMAIN}/added-grace-period"
"""The annotation of a pod that got its grace period with the sidecar: the seconds. It is no option."""
MESHES = ("istio", "linkerd")
SECRET_VOLUME = "reconsume-secret-"
CONFIG_VOLUME = "reconsume-config"
"""The volume of the only ConfigMap; of several, each name goes on with that of its ConfigMap."""
NATIVE, PLAIN = "native", "plain"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,44}[a-z0-9])?")
"""The name of a ConfigMap or Secret. It is short because a volume's name, of 63 characters at most, ends with it."""
CPU = re.compile(r"[0-9]+m|[0-9]+(\.[0-9]{1,3})?")
IPV6 = "ipv6"
PORTS = re.compile(r"[0-9]{1,5}(\s*,\s*[0-9]{1,5})*")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|k|M|G)?")
URL = "http://127.0.0.1:1/"
"""A stand-in for the URL that is in the ConfigMap."""


OF_ONE_GROUP = ("group", "topics", "url", "mode", "bootstrap_servers")
"""The fields that are laid over the settings of one group."""


@dataclass(frozen=True, slots=True)
class SidecarAnnotations:
    """The options for a sidecar. Each field is an annotation of the pod: `config_map` is reconsume.io/config-map.

    An empty field is not given.
    """

    image: str = ""
    config_map: str = ""
    """The ConfigMap whose key reconsume.yaml is the configuration. The fields below are laid over it. Several names,
    separated by commas, are several groups."""
    group: str = ""
    topics: str = ""
    """The main topics as in a YAML list: `orders, invoices`, or `orders, {name: invoices, tags: TagA}`."""
    url: str = ""
    mode: str = ""
    bootstrap_servers: str = ""
    secrets: str = ""
    """Names of Secrets, separated by commas. Each is a folder of its name below /etc/reconsume-secrets."""
    memory_limit: str = ""
    cpu_request: str = ""
    cpu_limit: str = ""
    """There is none by default: a limit makes every burst wait. A quota of limits.cpu needs one in each container."""
    ip_family: str = ""
    """`ipv6`: the pod has no address of IPv4, so the probes' port listens on IPv6."""
    mesh: str = ""
    """`istio` or `linkerd`: the pod's annotations leave the ports of probes and Kafka out of the mesh (`mesh.py`)."""
    kafka_ports: str = ""
    """The brokers' ports, separated by commas; those of the bootstrap servers, or 9092, where they are not given."""
    container: str = ""
    """`native` (default), or `plain` for Kubernetes before 1.29."""

    @property
    def plain(self) -> bool:
        """Whether it is an ordinary container. Such a container does not start before the service and end after it."""
        return self.container == PLAIN

    @property
    def config_maps(self) -> tuple[str, ...]:
        """The names of the ConfigMaps, each once; several are several groups."""
        return tuple(dict.fromkeys(name.strip() for name in self.config_map.split(",") if name.strip()))

    @property
    def groups(self) -> tuple[str, ...]:
        """What names the groups of the sidecar: its ConfigMaps, with a group that is laid over the only one."""
        return tuple(sorted(f"{name}/{self.group}" for name in self.config_maps or ("",)))

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The names of the Secrets to mount, each once."""
        return tuple(dict.fromkeys(name.strip() for name in self.secrets.split(",") if name.strip()))

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
            "RECONSUME_API__PROBE_LISTEN": "[::]:8472" if self.ip_family == IPV6 else "",
        }
        return {name: value for name, value in said.items() if value}

    def over(self, values: Mapping[str, str | None]) -> SidecarAnnotations:
        """Return these options with the given ones on top. An empty text clears a field, None keeps it."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})


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
    problems = []
    if annotations.container not in ("", NATIVE, PLAIN):
        problems.append(f"{annotation('container')} = {annotations.container}: must be {NATIVE} or {PLAIN}")
    for name in (*annotations.config_maps, *annotations.secret_names):
        if not NAME.fullmatch(name):
            problems.append(f"{name}: must be the name of a ConfigMap or Secret, of 46 characters at most")
    if len(annotations.config_maps) > 1:
        text = f"is of one group, and {annotation('config_map')} names several: write it in the ConfigMap"
        problems += [f"{annotation(name)} {text}" for name in OF_ONE_GROUP if getattr(annotations, name)]
    problems += _volume_faults(annotations)
    if annotations.memory_limit and not QUANTITY.fullmatch(annotations.memory_limit):
        problems.append(f"{annotation('memory_limit')} = {annotations.memory_limit}: must be like 256Mi")
    return problems + _cpu_faults(annotations) + _network_faults(annotations) + _setting_faults(annotations)


def secret_volume(secret: str) -> str:
    """Return the name of the volume of a Secret. A volume's name has no dots."""
    return f"{SECRET_VOLUME}{secret.replace('.', '-')}"


def config_volume(config_map: str) -> str:
    """Return the name of the volume of one ConfigMap of several."""
    return f"{CONFIG_VOLUME}-{config_map.replace('.', '-')}"


def _volume_faults(annotations: SidecarAnnotations) -> list[str]:
    """Return a fault for each ConfigMap or Secret whose volume would have the name of another one's."""
    by_volume: dict[str, str] = {}
    problems = []
    configs = [("config_map", config_volume(name), name) for name in annotations.config_maps]
    secrets = [("secrets", secret_volume(name), name) for name in annotations.secret_names]
    for field, volume, name in (*configs, *secrets):
        other = by_volume.setdefault(volume, name)
        if other != name:
            text = f"{name} and {other} would be one volume, as a volume's name has no dots; rename one of them"
            problems.append(f"{annotation(field)}: {text}")
    return problems


def _cpu_faults(annotations: SidecarAnnotations) -> list[str]:
    amounts = {name: getattr(annotations, name) for name in ("cpu_request", "cpu_limit") if getattr(annotations, name)}
    wrong = {name: value for name, value in amounts.items() if not CPU.fullmatch(value)}
    problems = [f"{annotation(name)} = {value}: must be like 250m or 0.5" for name, value in wrong.items()]
    if len(amounts) == 2 and not wrong and millicores(amounts["cpu_request"]) > millicores(amounts["cpu_limit"]):
        problems.append(f"{annotation('cpu_request')} = {amounts['cpu_request']}: is above {annotation('cpu_limit')}")
    return problems


def _network_faults(annotations: SidecarAnnotations) -> list[str]:
    problems = []
    if annotations.ip_family not in ("", "ipv4", IPV6):
        problems.append(f"{annotation('ip_family')} = {annotations.ip_family}: must be ipv4 or {IPV6}")
    if annotations.mesh not in ("", *MESHES):
        problems.append(f"{annotation('mesh')} = {annotations.mesh}: must be {' or '.join(MESHES)}")
    if annotations.kafka_ports and not PORTS.fullmatch(annotations.kafka_ports):
        problems.append(f"{annotation('kafka_ports')} = {annotations.kafka_ports}: must be like 9092 or 9092,9093")
    return problems


def millicores(cpu: str) -> float:
    """Return a quantity of CPU in thousandths of a core."""
    return float(cpu.removesuffix("m")) * (1 if cpu.endswith("m") else 1_000)


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
    settings, wrong = validate(layers.tree)
    if settings is not None:
        try:
            expect_sidecar(settings)
        except ConfigError as refused:
            return refused.problems
    problems = [
        f"kafka.bootstrap.servers{text[5:]}" if text == "kafka: is required" else text
        for text in layers.problems(wrong)
    ]
    if wrong and not annotations.config_map:
        problems.append(
            "without --config-map, give --group, --topics, --bootstrap-servers, and --url or another --mode"
        )
    return problems
