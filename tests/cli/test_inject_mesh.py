"""`inject --mesh`: which annotations of a mesh a pod gets, and that they go again without a trace."""

from __future__ import annotations

import pytest
import yaml

from tests.cli.test_inject import DEPLOYMENT, WISH, changed, inject, sidecar, template

ISTIO_IN = "traffic.sidecar.istio.io/excludeInboundPorts"
ISTIO_OUT = "traffic.sidecar.istio.io/excludeOutboundPorts"
LINKERD_IN, LINKERD_OUT = "config.linkerd.io/skip-inbound-ports", "config.linkerd.io/skip-outbound-ports"


def mesh(text: str) -> dict[str, str]:
    """A pod's annotations that are a mesh's."""
    annotations = template(yaml.safe_load(text))["metadata"]["annotations"]
    return {key: value for key, value in annotations.items() if not key.startswith("reconsume.io/")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--mesh", "istio"), {ISTIO_IN: "8472", ISTIO_OUT: "9092"}),
        (("--mesh", "linkerd"), {LINKERD_IN: "8472", LINKERD_OUT: "9092"}),
        (("--mesh", "istio", "--kafka-ports", "9093, 9094"), {ISTIO_IN: "8472", ISTIO_OUT: "9093,9094"}),
        (
            ("--mesh", "linkerd", "--bootstrap-servers", "a:9093,[fd00::1]:9093,b"),
            {LINKERD_IN: "8472", LINKERD_OUT: "9093,9092"},
        ),
        ((), {}),
    ],
)
def test_a_mesh_leaves_out_the_ports_of_the_probes_and_of_kafka(
    words: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert mesh(changed(DEPLOYMENT, *WISH, *words)) == expected


def test_another_mesh_or_other_ports_replace_what_was_written_and_the_end_leaves_no_trace() -> None:
    istio = changed(DEPLOYMENT, *WISH, "--mesh", "istio")
    assert changed(istio) == istio, "a second run needs no options"
    assert mesh(changed(istio, "--kafka-ports", "9093")) == {ISTIO_IN: "8472", ISTIO_OUT: "9093"}
    assert mesh(changed(istio, "--mesh", "linkerd")) == {LINKERD_IN: "8472", LINKERD_OUT: "9092"}
    assert mesh(changed(istio, "--mesh", "")) == {}
    assert changed(istio, "--remove") == DEPLOYMENT


def test_an_annotation_of_somebody_else_is_kept_or_refused() -> None:
    own = changed(DEPLOYMENT, *WISH).replace(
        "reconsume.io/url:", f'{ISTIO_OUT}: "5432,9092"\n        reconsume.io/url:'
    )
    assert mesh(changed(own, "--mesh", "istio")) == {ISTIO_IN: "8472", ISTIO_OUT: "5432,9092"}
    result = inject("-f", "-", "--mesh", "istio", "--kafka-ports", "9093", stdin=own)
    assert result.exit_code != 0
    assert f"annotation {ISTIO_OUT} = 5432,9092: add 9093, which the sidecar needs" in result.stderr


def test_cpu_and_addresses_of_ipv6_are_given_by_options() -> None:
    pod = template(yaml.safe_load(changed(DEPLOYMENT, *WISH, "--cpu-limit", "20m", "--ip-family", "ipv6")))
    made = sidecar(pod)
    assert made["resources"] == {
        "requests": {"cpu": "20m", "memory": "96Mi"},
        "limits": {"memory": "256Mi", "cpu": "20m"},
    }
    assert {"name": "RECONSUME_API__PROBE_LISTEN", "value": "[::]:8472"} in made["env"]
