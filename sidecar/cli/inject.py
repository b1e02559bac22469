"""`inject`: put the sidecar into the pods of a manifest, for deployments that are kept in a repository."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from reconsume.sidecar.cli.terminal.confirm import NeverAsks
from reconsume.sidecar.cli.terminal.exit_codes import DONE, PARTLY
from reconsume.sidecar.cli.terminal.options import Options, Texts
from reconsume.sidecar.cli.terminal.output import talk, write
from reconsume.sidecar.deploy.annotations import SidecarAnnotations, faults
from reconsume.sidecar.deploy.choice import choose, expect_one_workload_each
from reconsume.sidecar.deploy.manifest_file import Changed, ManifestFile
from reconsume.sidecar.deploy.workload import (
    WrongManifestError,
    annotations_of,
    has_sidecar,
    name_of,
    with_sidecar,
    without_sidecar,
)
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import read_given, read_stream, replace_file
from reconsume.sidecar.printable import noun_of

STDIN = "-"
LARGEST = 16 * 1024 * 1024
"""Bytes of one file of manifests. The API server takes 3 MiB in one object."""

Files = Annotated[
    list[str], typer.Option("-f", "--file", metavar="FILE", help="The manifest; - is stdin; may be repeated.")
]
ANNOTATIONS: Texts = {
    "config_map": ("NAME,…", "The ConfigMap with reconsume.yaml, or one for each group; the rest is laid over one."),
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
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workload", metavar="KIND/NAME", help="Put it into this one, as deployment/orders; may be repeated."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give a sidecar that is there other groups than it has.")
    ] = False,
    many: Annotated[bool, typer.Option("--many", help="One group in several workloads is meant.")] = False,
    _yes: NeverAsks = False,
    **annotations: str | None,
) -> int:
    """Put the sidecar into the pods of a manifest.

    Into the workloads with the label reconsume.io/inject: "true", or those of --workload, or the only one that there
    is: a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job, CronJob, Pod or Rollout of Argo, also in a List. Never
    into a hook of Helm or Argo CD, or where the label says "false". The rest is passed on as it is, with its comments
    and its order. What is given is kept in annotations of the pod (reconsume.io/group and so on): a second run needs no
    options, changes nothing, and follows annotations that were edited. An empty value takes one back. Options that
    would give a sidecar other groups need --replace.
    Ends with 1 when several workloads are there and none is chosen, or two would be one group without --many, and with
    3 when what is chosen has a pod template that is not understood.

    \b
    Examples:
      reconsume inject -f deploy.yaml --config-map billing --url http://127.0.0.1:8080/events | kubectl apply -f -
      kustomize build . | reconsume inject -f - --config-map orders --workload deployment/orders
      reconsume inject -f deploy.yaml -i --config-map billing,shipping
      reconsume inject -f deploy.yaml -i --group billing --topics orders --mode pull --bootstrap-servers kafka:9092
    """
    options.expect_no_format("the manifest is printed as it is")
    if in_place and STDIN in files:
        raise typer.BadParameter("-i writes files, and stdin is none")
    if plain is not None:
        annotations["container"] = "plain" if plain else ""
    if remove and any(value is not None for value in annotations.values()):
        raise typer.BadParameter("--remove takes the sidecar out, so leave out what it shall be")
    manifests = read_all(files)
    if remove:
        return print_changed([file.changed(without_sidecar) for file in manifests], files, in_place=in_place)
    choice = choose([one for file in manifests for one in file.objects()], [name.lower() for name in workloads or ()])
    if not many:
        expect_one_workload_each(choice.chosen, lambda one: groups_of(one, annotations))
    code = print_changed(put_in(manifests, choice.chosen, annotations, replace=replace), files, in_place=in_place)
    for one in choice.unknown:
        talk(
            f"{name_of(one)}: has the template of a pod, and {one.get('apiVersion')} {one['kind']} is not a kind that "
            "is known: it is as it was; put the container in by a patch"
        )
    return PARTLY if choice.unknown else code


def groups_of(workload: dict[str, Any], options: dict[str, str | None]) -> tuple[object, ...]:
    """Return what names the groups of a workload's sidecar; for a malformed workload something of its own."""
    try:
        annotations = annotations_of(workload).over(options)
    except WrongManifestError:
        return (id(workload),)
    return annotations.groups


def put_in(
    manifests: Iterable[ManifestFile],
    chosen: Iterable[dict[str, Any]],
    options: dict[str, str | None],
    *,
    replace: bool,
) -> list[Changed]:
    """Put the sidecar into the chosen workloads of all files. `replace`: also where it has other groups. Raises
    ConfigError with all faults."""
    wanted = set(map(id, chosen))

    def put(workload: dict[str, Any]) -> dict[str, Any]:
        before = annotations_of(workload)
        annotations = before.over(options)
        if wrong := faults(annotations):
            raise WrongManifestError("; ".join(wrong))
        if not replace and has_sidecar(workload) and annotations.groups != before.groups:
            raise WrongManifestError(replaced_groups(before, annotations))
        return with_sidecar(workload, annotations)

    changed, problems = list[Changed](), list[str]()
    for file in manifests:
        try:
            changed.append(file.changed(put, lambda one: id(one) in wanted))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return changed


def replaced_groups(before: SidecarAnnotations, after: SidecarAnnotations) -> str:
    """Return the sentence about a sidecar that would get other groups than it has."""
    names = [shown_groups(one) for one in (before, after)]
    every = ",".join(dict.fromkeys((*before.config_maps, *after.config_maps)))
    both = f"; one sidecar has several groups: --config-map {every}" if before.config_maps and after.config_maps else ""
    return (
        f"it has a sidecar with {names[0]}, which would have {names[1]}, and nobody would consume what it leaves: "
        f"--replace does that{both}"
    )


def shown_groups(annotations: SidecarAnnotations) -> str:
    """Return what names the groups of a sidecar, in words."""
    maps = f"the {noun_of(len(annotations.config_maps), 'ConfigMap')} {', '.join(annotations.config_maps)}"
    group = f"the group {annotations.group}"
    return " and ".join([*([maps] if annotations.config_maps else []), *([group] if annotations.group else [])])


def read_all(files: list[str]) -> list[ManifestFile]:
    """Read every file. Raises ConfigError with all problems."""
    manifests, problems = list[ManifestFile](), list[str]()
    for name in files:
        try:
            manifests.append(ManifestFile("stdin" if name == STDIN else name, read(name)))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return manifests


def print_changed(changed: list[Changed], files: list[str], *, in_place: bool) -> int:
    """Say what was done with each object, and print or write the files. Return the exit code."""
    for name, result in zip(files, changed, strict=True):
        for row in result.objects:
            talk(f"{row.what}: {row.state}")
        if in_place:
            replace_file(Path(name), result.text)
    if not in_place:
        print_all([result.text for result in changed])
    return DONE


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
