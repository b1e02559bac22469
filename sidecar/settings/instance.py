"""The name of this process within its group: in the transactional ids, the events and the client ids."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from sidecar.settings.model import Settings


def instance_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """The pod's name, with its namespace where it is told, or host and API address.

    It must survive the restart of a container, so that the new process ends the transaction that the old one left
    open (0.6 s instead of 20), and differ between processes of one host, which cannot share their API address. Two
    namespaces may have a pod of one name (a StatefulSet's) in one group: by the name alone they would fence each other.
    """
    if pod := environ.get("POD_NAME"):
        namespace = environ.get("POD_NAMESPACE")
        return _plain(f"{pod}.{namespace}" if namespace else pod)
    return _plain(f"{socket.gethostname()}-{settings.api.listen.rpartition(':')[2]}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", name).strip("-")[:120]
