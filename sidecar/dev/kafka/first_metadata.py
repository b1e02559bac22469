"""The first metadata of a node's empty data folder: written by Kafka's own tool once for a release, then copied.

The tool is a Java process, and a third of the CPU of a start. What it writes into `bootstrap.checkpoint` are the levels
of Kafka's features, which are the same for each node. Only `meta.properties` names the node.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from reconsume.sidecar.dev.kafka.node import Node
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.files import open_private, write_private
from reconsume.sidecar.java.jars import cache_folder

CHECKPOINT, META = "bootstrap.checkpoint", "meta.properties"


def is_formatted(data: Path) -> bool:
    """Whether a node with this data folder can start."""
    return (data / META).exists()


def format_folder(
    node: Node, tool: Sequence[str], lock: Path, cluster: str, features: Mapping[str, int], seconds: float
) -> None:
    """Make the data folder of a node ready for its first start.

    `tool` is the command line of `kafka-storage.sh` up to the command. `lock` fixes the release. Raises SetupError with
    the end of the node's log if the tool fails or takes more than `seconds`.
    """
    kept = kept_checkpoint(lock, features)
    if kept.exists():
        _copy(kept, node, cluster)
    else:
        _run(node, tool, cluster, features, seconds)
        with suppress(OSError):  # a cache that cannot be written costs the tool at the next start too
            keep(node.plan.data / CHECKPOINT, kept)


def kept_checkpoint(lock: Path, features: Mapping[str, int]) -> Path:
    """Return where the cache has, or will have, what the tool writes for a release with these levels of features."""
    what = f"{lock.read_text('utf-8')}{sorted(features.items())}"
    return cache_folder().with_name("kafka") / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.checkpoint"


def cluster_id(folders: Sequence[Path]) -> str:
    """Return the id under which these data folders were formatted before, else a new one."""
    for folder in filter(is_formatted, folders):
        for line in (folder / META).read_text("utf-8").splitlines():
            if line.startswith("cluster.id="):
                return line.partition("=")[2]
    return _new_id()


def keep(file: Path, kept: Path) -> None:
    """Put a copy of a file into the cache in one step, since other starts may be looking for it."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb") as source, tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as copy:
        try:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())  # after a power cut there is all of it or none
            Path(copy.name).replace(kept)
        except OSError:
            Path(copy.name).unlink(missing_ok=True)
            raise


def _copy(kept: Path, node: Node, cluster: str) -> None:
    data = node.plan.data
    data.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(kept, data / CHECKPOINT)
    lines = {"version": 1, "cluster.id": cluster, "node.id": node.id, "directory.id": _new_id()}
    write_private(data / META, "".join(f"{name}={value}\n" for name, value in lines.items()))


def _run(node: Node, tool: Sequence[str], cluster: str, features: Mapping[str, int], seconds: float) -> None:
    levels = (f"--feature={name}={level}" for name, level in features.items())
    # With `=`, because one id in 64 begins with a dash and would be read as an option.
    command = [*tool, "format", f"--cluster-id={cluster}", f"--config={node.plan.properties}", *levels]
    try:
        with open_private(node.plan.log) as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):  # its text is the whole class path
        raise SetupError(f"Kafka node {node.id} cannot format its data folder:", node.log_tail()) from None


def _new_id() -> str:
    """Return 16 random bytes in base64, as Kafka writes its ids."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
