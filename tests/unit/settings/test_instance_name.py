"""Whose transactions are whose: the name survives a container's restart, and differs between all that run at once."""

from __future__ import annotations

from pathlib import Path

from reconsume.sidecar.settings.policy import instance_name
from tests.support.sidecar.settings import good


def test_it_is_the_pods_name_and_its_namespace(tmp_path: Path) -> None:
    assert instance_name(good(tmp_path), {"POD_NAME": "billing-0", "POD_NAMESPACE": "shop"}) == "billing-0.shop"
    assert instance_name(good(tmp_path), {"POD_NAME": "billing-0"}) == "billing-0"


def test_pods_of_one_name_in_two_namespaces_are_two(tmp_path: Path) -> None:
    """Given two StatefulSets of one group, then neither fences the other."""
    settings = good(tmp_path)
    names = {instance_name(settings, {"POD_NAME": "billing-0", "POD_NAMESPACE": space}) for space in ("a", "b")}
    assert len(names) == 2


def test_without_a_pod_it_is_the_host_and_the_port(tmp_path: Path) -> None:
    named = instance_name(good(tmp_path, "api.listen=127.0.0.1:9999"), {"POD_NAMESPACE": "shop"})
    assert named.endswith("-9999")
    assert named != instance_name(good(tmp_path, "api.listen=127.0.0.1:9998"), {})
