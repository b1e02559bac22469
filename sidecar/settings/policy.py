"""From the settings to the group's policy, and to the name under which an instance writes."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from msgspec.structs import replace

from reconsume.sidecar.core.pace.pace import FailureEnd
from reconsume.sidecar.core.policy import HUNG_MS, InPlace, Policy
from reconsume.sidecar.settings.group_policy import agreed_values, follows_instances
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.agreement import digest_of
from reconsume.topics.levels import numbered
from reconsume.topics.outputs import AllowedOutputs
from reconsume.topics.policy_record import SubscriptionRecord, heartbeat_subscription


def build_policy(settings: Settings, instance: str, speed: int = 1) -> Policy:
    """Return the retry policy that the settings describe. `speed`: what waits are divided by, as in `GroupRules`."""
    deliver, rules, max_age = settings.deliver, settings.retry_rules, settings.retry.max_age
    if speed > 1:
        rules = tuple(replace(rule, max_age=rule.max_age and rule.max_age // speed) for rule in rules)
        max_age = max_age and max_age // speed
    return Policy(
        names=settings.names,
        topics=settings.topic_names,
        ladder=settings.ladder,
        table=numbered(settings.retry.levels),
        delays=settings.delays,
        max_reconsume_times=settings.retry.max_reconsume_times,
        # None if nothing is delivered, or if nothing is kept of a delivery.
        max_deaths=None if deliver.mode in ("relay", "spark") or deliver.broadcast else settings.retry.max_deaths,
        hang_ms=max(HUNG_MS, deliver.timeout, *(topic.timeout or 0 for topic in settings.topics)),
        instance=instance,
        in_place=in_place_of(settings),
        nack_delay_ms=-(-settings.retry.nack_redelivery_delay // speed),
        nack_max_times=settings.pull.nack_max_times,
        relay=deliver.mode == "relay",
        broadcast=deliver.broadcast,
        traced=settings.tracing.enabled,
        postpone_limit=settings.retry.postpone_limit // speed,
        unknown_topic=settings.retry.unknown_topic,
        queued=settings.queued,
        drained=settings.drained,
        parks=settings.queued and settings.retry.ordered_exhausted == "park",
        max_waiting=settings.retry.ordered_max_waiting,
        retry_rules=rules,
        max_age=max_age,
        jitter=settings.retry.jitter,
        speed=speed,
    )


def allowed_outputs_of(settings: Settings) -> AllowedOutputs | None:
    """Return the topics to which the service may have records written; None: none (contract 1.12)."""
    outputs = settings.deliver.outputs
    return AllowedOutputs(outputs, settings.topic_names) if outputs else None


def in_place_of(settings: Settings) -> InPlace | None:
    """Return how an ordered group retries; None if it is not ordered, or has a ladder."""
    if settings.deliver.order == "none" or settings.queued:
        return None
    return InPlace(settings.retry.ordered_interval, settings.retry.ordered_max_times)


def failure_end(settings: Settings) -> FailureEnd:
    """Return what becomes of a record that fails again and again."""
    if settings.deliver.broadcast:
        return FailureEnd.UNTOLD
    in_place = in_place_of(settings)
    if in_place is not None and in_place.max_times is None:
        return FailureEnd.NEVER
    is_parked = settings.queued and settings.retry.ordered_exhausted == "park"
    return FailureEnd.PARKED if is_parked else FailureEnd.DEAD_LETTER


def heartbeat_of(settings: Settings) -> SubscriptionRecord:
    """Return what an instance's heartbeats say of its configuration."""
    subscription, digest = heartbeat_subscription({topic.name: topic.tags for topic in settings.topics})
    return SubscriptionRecord(
        subscription,
        subscribed=digest,
        at=0,
        lock_timeout=settings.longest_release,
        drain_timeout=settings.longest_drain,
        settings=digest_of(agreed_values(settings)) if follows_instances(settings) else "",
        mode=settings.deliver.mode,
        order=settings.deliver.order,
        batch=settings.deliver.batch.max_size,
        labels=dict(settings.labels),
    )


def instance_name(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the pod's name, with its namespace if that is known; without a pod, the host and the API address.

    The name must survive the restart of a container. The new process then ends the transaction that the old one left
    open (0.6 s instead of 20). It must also differ between processes of one host, which cannot share their API address.
    Two namespaces may have a pod of the same name (a StatefulSet's) in one group. With the name alone they would fence
    each other.
    """
    name = f"{socket.gethostname()}-{settings.api.listen.path or settings.api.listen.port}"
    if pod := environ.get("POD_NAME"):
        name = ".".join(filter(None, (pod, environ.get("POD_NAMESPACE"))))
    return re.sub(r"[^a-zA-Z0-9._-]+", "-", name).strip("-")[:120]
