"""The manifests of this repository, whole, and what the program would make of a container in them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from reconsume.sidecar.settings import load
from tests.support.kubernetes.kubectl import K8S, Object, Part, chart, named, overlay, parts

OVERLAYS = sorted(folder.name for folder in (K8S / "overlays").iterdir())
WITH_SIDECAR = ["dev", "hardened", "keda", "plain-container", "strimzi"]
FULL = ("monitoring.enabled=true",)
"""Values with which the chart has all that it can have."""
OURS = ("reconsume", "reconsume-spark")


def everything() -> list[Object]:
    """All documents of all overlays, and of the chart with everything switched on."""
    return [document for name in OVERLAYS for document in overlay(name)] + chart(*FULL)


def ours(part: Part) -> bool:
    """Whether a container runs an image of ours."""
    return part.container["image"].split(":")[0] in OURS


def settings_of(part: Part, found: list[Object]) -> Any:
    """The settings that the container would have: its ConfigMap's file, under its variables."""
    volumes = {volume["name"]: volume for volume in part.pod["spec"].get("volumes", [])}
    map_name = volumes["reconsume-config"]["configMap"]["name"]
    text = named(found, "ConfigMap", map_name)["data"]["reconsume.yaml"]
    variables = {one["name"]: one["value"] for one in part.container.get("env", []) if "value" in one}
    return load_text(text, variables)


def load_text(text: str, variables: dict[str, str]) -> Any:
    """The settings of a file with this text, under these variables."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reconsume.yaml"
        file.write_text(text)
        return load(file, (), variables)


def configured() -> list[tuple[str, Part, list[Object]]]:
    """Every container that runs `reconsume`, with where it is and the documents around it."""
    sources = [(name, overlay(name)) for name in OVERLAYS] + [("chart", chart(*FULL))]
    return [
        (f"{name}: {part.where}", part, found)
        for name, found in sources
        for part in parts(found)
        if ours(part) and "args" in part.container
    ]
