"""From the settings to the group's policy, and to the name under which an instance writes."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from reconsume.sidecar.core.policy import InPlace, Policy
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.outputs import AllowedOutputs


def build_policy(settings: Settings, instance: str) -> Policy:
    """Return the retry policy that the settings describe."""
    return Policy(
        names=settings.names,
        topics=settings.topic_names,
        ladder=settings.ladder,
        table=settings.table,
        delays=settings.delays,
        max_reconsume_times=settings.retry.max_reconsume_times,
        max_deaths=deaths_of(settings),
        instance=instance,
        in_place=in_place_of(settings),
        nack_delay_ms=settings.retry.nack_redelivery_delay,
        relay=settings.deliver.mode == "relay",
        broadcast=settings.deliver.broadcast,
        traced=settings.tracing.enabled,
        postpone_limit=settings.retry.postpone_limit,
        unknown_topic=settings.retry.unknown_topic,
        queued=settings.queued,
        drained=settings.drained,
        parks=settings.queued and settings.retry.ordered_exhausted == "park",
        max_waiting=settings.retry.ordered_max_waiting,
        retry_rules=settings.retry_rules,
        max_age=settings.retry.max_age,
        jitter=settings.retry.jitter,
    )


def allowed_outputs_of(settings: Settings) -> AllowedOutputs | None:
    """Return the topics to which the service may have records written; None: none (contract 1.12)."""
    outputs = settings.deliver.outputs
    return AllowedOutputs(outputs, settings.topic_names) if outputs else None


def deaths_of(settings: Settings) -> int | None:
    """Return how often a record may be out while the service or the sidecar crashes.

    None if nothing is delivered, or if nothing is kept of it.
    """
    spared = settings.deliver.mode == "relay" or settings.deliver.broadcast
    return None if spared else settings.retry.max_deaths


def in_place_of(settings: Settings) -> InPlace | None:
    """Return how an ordered group retries; None if it is not ordered, or has a ladder."""
    if settings.deliver.order == "none" or settings.queued:
        return None
    return InPlace(settings.retry.ordered_interval, settings.retry.ordered_max_times)


def instance_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the pod's name, with its namespace if that is known; without a pod, the host and the API address.

    The name must survive the restart of a container. The new process then ends the transaction that the old one left
    open (0.6 s instead of 20). It must also differ between processes of one host, which cannot share their API address.
    Two namespaces may have a pod of the same name (a StatefulSet's) in one group. With the name alone they would fence
    each other.
    """
    if pod := environ.get("POD_NAME"):
        namespace = environ.get("POD_NAMESPACE")
        return _plain(f"{pod}.{namespace}" if namespace else pod)
    return _plain(f"{socket.gethostname()}-{settings.api.listen.rpartition(':')[2]}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", name).strip("-")[:120]
