"""What `init` prints at its end: the commands that come next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.deploy.starter.compose import VARIABLE
from reconsume.sidecar.deploy.starter.token import TOKENS
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.addresses import is_loopback
from reconsume.sidecar.settings.load import DEFAULT_FILE

COMPOSE = "compose.yaml"
IMAGE = "make image   # in a clone of Reconsume's repository: no registry serves the image"


def next_commands(servers: str, path: Path, *, compose: bool, kubernetes: Path | None) -> None:
    """Print what to do now, with the files that were written. `servers`: the brokers of the configuration `path`."""
    talk("")
    if compose or kubernetes is not None:
        talk(IMAGE)
    if kubernetes is None:
        for line in by_hand(path):
            talk(line)
    if compose:
        file = printable(str(path.parent / COMPOSE))
        variable = f"{VARIABLE}=$(cat {printable(str(path.parent / TOKENS))})"
        talk(f"{variable} docker compose -f {file} up   # all of it on this machine; needs Docker Compose 2.23.1")
    if kubernetes is not None:
        for line in in_a_cluster(servers, kubernetes):
            talk(line)
    file = printable(str(path.parent / TOKENS))
    talk(f"kubectl create secret generic reconsume-ui --from-file=token={file}   # operators' token, in a cluster")


def by_hand(path: Path) -> Iterator[str]:
    """Yield the commands that need the configuration alone."""
    file = None if path == DEFAULT_FILE else path
    yield f"{hint('config check', file)}   # finds every fault at once"
    yield f"{hint('topics apply', file)}   # creates the topics of the group; the main topics must exist"
    yield f"{hint('run', file)}            # the sidecar"
    yield f"{hint('dev up', path)}   # or all of it with a Kafka of its own, to try it out"


def in_a_cluster(servers: str, folder: Path) -> Iterator[str]:
    """Yield what the manifests in a folder need."""
    where = printable(str(folder))
    yield f"push it to the registry of the cluster, and name that under `images` in {where}/kustomization.yaml"
    yield f"kubectl apply -k {where}   # the service, its sidecar, and a Job for the topics of the group"
    yield "the main topics must exist"
    if is_loopback(servers.split(",")[0].rpartition(":")[0]):
        yield f"in a pod localhost is the pod itself: name the cluster's brokers in {where}/reconsume.yaml"
