"""`inject`: put the sidecar into the pods of a manifest, for deployments that are kept in a repository."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from reconsume.sidecar.cli.terminal.confirm import NeverAsks
from reconsume.sidecar.cli.terminal.options import Options, Texts
from reconsume.sidecar.cli.terminal.output import talk, write
from reconsume.sidecar.deploy.annotations import faults
from reconsume.sidecar.deploy.manifest_file import Change, Changed, change_all
from reconsume.sidecar.deploy.workload import WrongManifestError, annotations_of, with_sidecar, without_sidecar
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import read_given, read_stream, replace_file

STDIN = "-"
LARGEST = 16 * 1024 * 1024
"""Bytes of one file of manifests. The API server takes 3 MiB in one object."""

Files = Annotated[
    list[str], typer.Option("-f", "--file", metavar="FILE", help="The manifest; - is stdin; may be repeated.")
]
ANNOTATIONS: Texts = {
    "config_map": ("NAME", "The ConfigMap with reconsume.yaml; what stands below is laid over it."),
    "group": ("GROUP", "The setting group."),
    "topics": ("TOPIC,…", "The setting topics: names with a comma between them."),
    "url": ("URL", "The setting deliver.url."),
    "mode": ("MODE", "The setting deliver.mode."),
    "bootstrap_servers": ("HOST:PORT,…", "The setting kafka.bootstrap.servers."),
    "secrets": ("NAME,…", "Secrets to mount, each as /etc/reconsume-secrets/NAME."),
    "image": ("IMAGE", "The sidecar's image; this version's where it is not given."),
    "memory_limit": ("QUANTITY", "The container's memory limit; 256Mi."),
    "cpu_request": ("QUANTITY", "The container's CPU request; 50m."),
    "cpu_limit": ("QUANTITY", "The container's CPU limit; none. A quota may need it."),
    "ip_family": ("FAMILY", "ipv6 where pods have no address of IPv4."),
    "mesh": ("MESH", "istio or linkerd: leave the ports of probes and of Kafka out of the mesh."),
    "kafka_ports": ("PORTS", "The brokers' ports; by default those of the bootstrap servers, or 9092."),
}
"""The options that become annotations of the pod."""


def inject(
    options: Options,
    /,
    files: Annotated[
        list[str], typer.Option("-f", "--file", metavar="FILE", help="The manifest; - is stdin; may be repeated.")
    ],
    in_place: Annotated[bool, typer.Option("-i", "--in-place", help="Write the files, not stdout.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the sidecar out again.")] = False,
    plain: Annotated[
        bool | None,
        typer.Option(
            "--plain/--native", help="An ordinary container, for Kubernetes before 1.29, or a native sidecar."
        ),
    ] = None,
    _yes: NeverAsks = False,
    **annotations: str | None,
) -> None:
    """Put the sidecar into the pods of a manifest.

    Into each Deployment, StatefulSet, DaemonSet, ReplicaSet, Job, CronJob and Pod, also in a List; the rest is passed
    on as it is, with its comments and its order. What is given is kept in annotations of the pod (reconsume.io/group
    and so on): a second run needs no options, changes nothing, and follows annotations that were edited. An empty value
    takes one back. The label reconsume.io/inject: "false" keeps a workload as it is.

    \b
    Examples:
      reconsume inject -f deploy.yaml --config-map billing --url http://127.0.0.1:8080/events | kubectl apply -f -
      kustomize build . | reconsume inject -f - --config-map reconsume
      reconsume inject -f deploy.yaml -i --group billing --topics orders --mode pull --bootstrap-servers kafka:9092
    """
    options.expect_no_format("the manifest is printed as it is")
    if in_place and STDIN in files:
        raise typer.BadParameter("-i writes files, and stdin is none")
    if plain is not None:
        annotations["container"] = "plain" if plain else ""
    if remove and any(value is not None for value in annotations.values()):
        raise typer.BadParameter("--remove takes the sidecar out, so leave out what it shall be")
    change_files(files, change_of(annotations, remove), in_place=in_place)


def change_of(options: dict[str, str | None], remove: bool) -> Change:
    """Return the change to make to each workload."""

    def put_in(workload: dict[str, Any]) -> dict[str, Any]:
        annotations = annotations_of(workload).over(options)
        if wrong := faults(annotations):
            raise WrongManifestError("; ".join(wrong))
        return with_sidecar(workload, annotations)

    return without_sidecar if remove else put_in


def change_files(files: list[str], change: Change, *, in_place: bool) -> None:
    """Change all files, or none if one of them cannot be changed. Raises ConfigError with all problems."""
    changed: list[tuple[str, Changed]] = []
    problems: list[str] = []
    for name in files:
        try:
            changed.append((name, change_all("stdin" if name == STDIN else name, read(name), change)))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    for name, result in changed:
        for row in result.objects:
            talk(f"{row.what}: {row.state}")
        if in_place:
            replace_file(Path(name), result.text)
    if not in_place:
        print_all([result.text for _, result in changed])


def read(name: str) -> str:
    """Return the text of a file or of stdin. Raises ConfigError if it cannot be read."""
    try:
        data = read_stream(sys.stdin.buffer, LARGEST) if name == STDIN else read_given(Path(name), LARGEST)
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError([f"{name}: cannot be read: {reason}"]) from error


def print_all(texts: list[str]) -> None:
    """Print all manifests as one stream."""
    for number, text in enumerate(texts):
        mark = "" if number == 0 or text.lstrip().startswith("---") else "---\n"
        write(mark + text.removesuffix("\n"))
