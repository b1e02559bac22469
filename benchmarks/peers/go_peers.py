"""Peers in Go: one is built from its modules, another one is taken from PATH. Each gets its files for each job."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.peers.job import Command, Job
from benchmarks.peers.python_peers import run
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.java.jars import cache_folder

SOURCES = Path(__file__).with_name("go")
Files = Callable[[Job], Mapping[str, object]]
"""What the files of a job hold, by name: JSON, which any reader of YAML takes."""
Words = Callable[[Job, Path], list[str]]
"""The arguments for a job whose files are in this folder."""

DAPR_HTTP, DAPR_GRPC, DAPR_INTERNAL = 19_991, 19_992, 19_993
RETRIES = 4


def built(name: str, files: Files, words: Words) -> Callable[[], Command]:
    """How a peer is prepared that is a program of `go`: its modules are fetched and it is built, some minutes once."""
    return lambda: started(str(binary_of(SOURCES / name)), name, files, words)


def installed(name: str, files: Files, words: Words) -> Callable[[], Command]:
    """How a peer is prepared that is a program on PATH. Raises SetupError if it is not there."""

    def prepare() -> Command:
        binary = shutil.which(name)
        if binary is None:
            raise SetupError(f"it needs {name}, which is not on PATH")
        return started(binary, name, files, words)

    return prepare


def binary_of(source: Path) -> Path:
    """Build a program on the first call, and return it. Raises SetupError if it cannot be built."""
    go = shutil.which("go")
    if go is None:
        raise SetupError("it is built with Go, which is not on PATH")
    texts = {file.name: file.read_bytes() for file in sorted(source.iterdir())}
    folder = cache_folder().parent / "peers" / hashlib.sha256(repr([go, texts]).encode()).hexdigest()[:16]
    binary = folder / source.name
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_bytes(text)
        run([go, "build", "-C", str(folder), "-mod=mod", "-o", source.name, "."])
    return binary


def started(binary: str, name: str, files: Files, words: Words) -> Command:
    """How a program is started, which reads the files of a job from a folder of its own."""

    def command(job: Job) -> list[str]:
        folder = cache_folder().parent / "peers" / f"{name}-jobs" / job.group
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files(job).items():
            (folder / file).write_text(json.dumps(content))
        return [binary, *words(job, folder)]

    return command


def dapr_files(job: Job) -> dict[str, object]:
    """A component, a subscription with a dead letter topic, and retries that the component leaves to them."""
    broker = {"brokers": job.bootstrap, "consumerGroup": job.group, "authType": "none", "initialOffset": "oldest"}
    metadata = [{"name": name, "value": value} for name, value in {**broker, "consumeRetryEnabled": "false"}.items()]
    retry = {"policy": "constant", "duration": f"{job.delay}s", "maxRetries": RETRIES}
    inbound = {"components": {"broker": {"inbound": {"retry": "again"}}}}
    topic = {"pubsubname": "broker", "topic": job.topic, "deadLetterTopic": f"{job.group}-dlq"}
    return {
        "component.yaml": resource(
            "v1alpha1", "Component", "broker", {"type": "pubsub.kafka", "version": "v1", "metadata": metadata}
        ),
        "subscription.yaml": resource(
            "v2alpha1", "Subscription", "records", {**topic, "routes": {"default": urlsplit(job.url).path or "/"}}
        ),
        "resiliency.yaml": resource(
            "v1alpha1", "Resiliency", "retries", {"policies": {"retries": {"again": retry}}, "targets": inbound}
        ),
    }


def resource(version: str, kind: str, name: str, spec: object) -> dict[str, object]:
    """A resource of Dapr."""
    return {"apiVersion": f"dapr.io/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def dapr_words(job: Job, folder: Path) -> list[str]:
    """Dapr's options: beside a service on this machine, and nothing of it in the network."""
    ports = {"dapr-http-port": DAPR_HTTP, "dapr-grpc-port": DAPR_GRPC, "dapr-internal-grpc-port": DAPR_INTERNAL}
    here = {"dapr-listen-addresses": "127.0.0.1", "dapr-internal-grpc-listen-address": "127.0.0.1"}
    service = {"app-id": job.group, "app-port": urlsplit(job.url).port, "app-protocol": "http"}
    rest = {"enable-metrics": "false", "log-level": "warn", "resources-path": folder}
    return [f"--{name}={value}" for name, value in (ports | here | service | rest).items()]


def connect_files(job: Job) -> dict[str, object]:
    """A pipeline from Kafka to the service; what fails too often goes to a dead letter topic."""
    wait = f"{job.delay}s"
    post = {"url": job.url, "verb": "POST", "retries": RETRIES, "retry_period": wait, "max_retry_backoff": wait}
    source = {"seed_brokers": [job.bootstrap], "topics": [job.topic], "consumer_group": job.group}
    letters = {"seed_brokers": [job.bootstrap], "topic": f"{job.group}-dlq"}
    return {
        "pipeline.yaml": {
            "http": {"enabled": False},
            "logger": {"level": "WARN"},
            "input": {"kafka_franz": source},
            "output": {"fallback": [{"http_client": post}, {"kafka_franz": letters}]},
        }
    }


def connect_words(_job: Job, folder: Path) -> list[str]:
    """Redpanda Connect runs one pipeline."""
    return ["run", str(folder / "pipeline.yaml")]
