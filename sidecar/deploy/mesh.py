"""The annotations by which a service mesh leaves the sidecar's ports alone.

The kubelet and Prometheus come to the port of the probes from outside the mesh. Kafka speaks no HTTP and has its own
TLS and login; and a sidecar that starts before the mesh's proxy, or ends after it, could not reach Kafka through it.
Between sidecar and service, on the loopback, no mesh takes part.
"""

from __future__ import annotations

from reconsume.sidecar.deploy.annotations import SidecarAnnotations
from reconsume.sidecar.deploy.container import PROBE_PORT

KAFKA_PORT = "9092"
LEFT_OUT = {
    "istio": ("traffic.sidecar.istio.io/excludeInboundPorts", "traffic.sidecar.istio.io/excludeOutboundPorts"),
    "linkerd": ("config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"),
}
"""By mesh: the annotations of a pod that name the ports which come in, and go out, past the proxy."""
PROXIES = {"istio": ("istio-init", "istio-proxy"), "linkerd": ("linkerd-init", "linkerd-proxy")}
"""By mesh: its own init containers, where they are in the manifest."""


def mesh_annotations(annotations: SidecarAnnotations) -> dict[str, str]:
    """Return the mesh's annotations for the pod; empty without a mesh."""
    if not annotations.mesh:
        return {}
    inbound, outbound = LEFT_OUT[annotations.mesh]
    return {inbound: str(PROBE_PORT), outbound: ",".join(kafka_ports(annotations))}


def kafka_ports(annotations: SidecarAnnotations) -> list[str]:
    """Return the brokers' ports, each once."""
    if annotations.kafka_ports:
        ports = [port.strip() for port in annotations.kafka_ports.split(",")]
    else:
        servers = [server.strip() for server in annotations.bootstrap_servers.split(",") if server.strip()]
        texts = [server.rpartition(":")[2] for server in servers]
        ports = [port if port.isdigit() else KAFKA_PORT for port in texts] or [KAFKA_PORT]
    return list(dict.fromkeys(ports))


def lacks(there: str, ports: str) -> bool:
    """Whether an annotation that the pod has already leaves out fewer ports than these."""
    return not {port.strip() for port in ports.split(",")} <= {port.strip() for port in there.split(",")}
