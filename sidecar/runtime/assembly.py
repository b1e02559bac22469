"""Build the parts of a sidecar from the settings: policy, pace, lanes, delivery. Nothing is started here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.lane import LaneOptions
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.pace.rates import DeliveryLimits, TopicTerms
from reconsume.sidecar.core.pace.refusals import Refusals
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Delivery, NoDelivery
from reconsume.sidecar.delivery.idempotency import producer_key_of
from reconsume.sidecar.delivery.pace_monitor import PaceMonitor, log_refused
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.sidecar.delivery.push.access import Access, ServiceCredentials, health_access
from reconsume.sidecar.delivery.push.batch import BatchPush, Limits
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.settings import calls_of, push_settings_of
from reconsume.sidecar.delivery.push.target import Target, parse_target
from reconsume.sidecar.delivery.relay.post_writer import PostWriter
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.target_topics import KnownOutputs
from reconsume.sidecar.runtime.lane_runner import LaneRunner, LaneSpec
from reconsume.sidecar.settings.deliver import Deliver
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import allowed_outputs_of
from reconsume.topics.outputs import OutputTopics
from reconsume.topics.tags import TagFilter, parse_tags


def build_pace(settings: Settings) -> Pace:
    """Return the pace: how many deliveries may be out. Only a service in push mode can have an outage."""
    deliver = settings.deliver
    if deliver.mode == "pull":
        return Pace(settings.pull.max_leased, since=now())
    if deliver.mode == "relay":
        return Pace(1, since=now())  # never used: records that are due go to the ready topic
    return Pace(
        deliver.most_requests * deliver.batch.max_size,
        failures=deliver.outage_failures,
        interval_ms=deliver.outage_interval,
        guarded=deliver.health_url is not None,
        start=deliver.batch.max_size,
        since=now(),
    )


def build_dispatcher(settings: Settings) -> Dispatcher:
    """Return what sends the records: at this pace, within these limits."""
    deliver, unit = settings.deliver, settings.deliver.batch.max_size
    terms = {
        topic.name: TopicTerms(None if topic.concurrency is None else topic.concurrency * unit, topic.rate)
        for topic in settings.topics
        if topic.concurrency is not None or topic.rate is not None
    }
    at_receive = deliver.mode == "pull"
    limits = DeliveryLimits(deliver.rate, deliver.group_rate, terms, now().steady_ms, at_receive=at_receive)
    dispatcher = Dispatcher(build_pace(settings), unit, limits)
    if deliver.mode == "push":
        dispatcher.set_concurrency(deliver.fixed_concurrency)
    return dispatcher


def build_pace_monitor(
    settings: Settings,
    dispatcher: Dispatcher,
    runners: list[LaneRunner],
    credentials: ServiceCredentials,
    delivery: Delivery,
) -> PaceMonitor:
    """Return the monitor of the pace. Raises ConfigError if the health URL cannot be used."""
    deliver, lanes = settings.deliver, [runner.lane for runner in runners]
    health, access = None, None
    if deliver.health_url is not None:
        health = target_of("deliver.health_url", deliver.health_url, deliver)
        access = health_access(credentials, target_of("deliver.url", deliver.url or "", deliver), health)
    pace_monitor = PaceMonitor(dispatcher.pace, lanes, health, deliver.health_timeout, access)
    dispatcher.at_close.append(pace_monitor.close)
    if isinstance(delivery, Push | BatchPush):
        pace_monitor.watch_deaths(delivery.deaths)
    return pace_monitor


def build_lane_specs(settings: Settings, read_since_ms: int | None = None) -> tuple[LaneSpec, ...]:
    """Return the lanes: main and retry. `read_since_ms`: as in `LaneSpec`.

    In relay mode only retry: the service reads the main topics and the ready topic itself. In broadcast only main.
    """
    match settings.deliver:
        case Deliver(mode="relay"):
            return (retry_plan(settings, with_ready=False),)
        case Deliver(broadcast=True):
            return (replace(broadcast_plan(settings), read_since_ms=read_since_ms),)
        case _:
            return (main_plan(settings), retry_plan(settings, with_ready=True))


def main_plan(settings: Settings) -> LaneSpec:
    """Return the lane of the service's own topics."""
    weight = 100 - settings.retry.share
    terms = LaneOptions(settings.deliver.buffer_memory, settings.order_by, wanted_of(settings), weight=weight)
    understand, lock = settings.retry.understand, settings.release_wait / 1000
    subscribed = settings.group, settings.topic_names
    return LaneSpec("main", *subscribed, {}, settings.start, lock, terms, understand, settings.drains)


def broadcast_plan(settings: Settings) -> LaneSpec:
    """Return the only lane of an instance that gets every record."""
    name = f"{settings.group}-BROADCAST"
    # The client requires a group name even without a group. Headers of other systems are of no use without retries.
    return replace(main_plan(settings), group=name, understand=(), broadcast=True)


def retry_plan(settings: Settings, *, with_ready: bool) -> LaneSpec:
    """Return the lane of the level topics and the ready topic."""
    names = settings.names
    waits = {names.level(delay, topic): delay for delay in settings.delays for topic in settings.topic_names}
    if with_ready:
        waits[names.ready] = 0
    # No filter: these records were wanted once, whatever the subscription is now.
    terms = LaneOptions(settings.deliver.buffer_memory, settings.order_by, weight=settings.retry.share)
    # "earliest": a record of a level without a committed offset is a waiting retry, and must never be skipped.
    return LaneSpec("retry", names.retry_group, tuple(waits), waits, "earliest", settings.release_wait / 1000, terms)


def wanted_of(settings: Settings) -> TagFilter | None:
    """Return the filter for the wanted records; None, which costs nothing, if all are wanted."""
    tags = {topic.name: parse_tags(topic.tags) for topic in settings.topics}
    return None if all(wanted is None for wanted in tags.values()) else TagFilter(tags, settings.tags_header)


def build_delivery(
    settings: Settings, dispatcher: Dispatcher, access: Access, outputs: OutputTopics | None = None
) -> Delivery:
    """Return what hands records to the service. Raises ConfigError if the URL cannot be used."""
    if settings.deliver.mode == "relay":
        return NoDelivery()
    if settings.deliver.mode == "pull":
        leases = PullQueue(now, dispatcher.limits)
        dispatcher.at_close.append(leases.close)
        return leases
    if settings.deliver.batch.max_size > 1:
        push: Push | BatchPush = build_batch_push(settings, dispatcher, access, outputs)
    else:
        push = build_push(settings, dispatcher, access, outputs)
    return push


def build_batch_push(
    settings: Settings, dispatcher: Dispatcher, access: Access, outputs: OutputTopics | None
) -> BatchPush:
    """Return the push client for many records in one request. Raises ConfigError if the URL cannot be used."""
    deliver, batch = settings.deliver, settings.deliver.batch
    split = batch.on_failure == "split"
    limits = Limits(batch.max_size, batch.max_bytes, batch.max_wait / 1000, deliver.most_requests, split, batch.mix)
    push = build_push(settings, dispatcher, access, outputs)
    target = target_of("deliver.url", deliver.url or "", deliver)
    render = RenderBatch(target, settings.group, deliver.timeout, producer_key_of(deliver.idempotency))
    return BatchPush(push, render, limits, dispatcher, now, calls_of(settings))


def build_push(settings: Settings, dispatcher: Dispatcher, access: Access, outputs: OutputTopics | None) -> Push:
    """Return the push client that the settings describe. Raises ConfigError if the URL cannot be used.

    From now on the dispatcher notices a service that rejects everything.
    """
    deliver, terms = settings.deliver, push_settings_of(settings, access, outputs)
    push = Push(target_of("deliver.url", deliver.url or "", deliver), terms, now, access)
    push.responses.meter = dispatcher
    dispatcher.refusals = Refusals(push.responses.sent, log_refused)
    return push


def target_of(name: str, url: str, deliver: Deliver) -> Target:
    """Return the target of a URL. Raises ConfigError, with the setting's name, if it cannot be used."""
    try:
        return parse_target(url, deliver.allow_remote)
    except ValueError as fault:
        raise ConfigError([f"{name}: {fault}"]) from None


def needed_topics(settings: Settings) -> frozenset[str]:
    """Return every topic that the lanes read or write."""
    names, mains = settings.names, settings.topic_names
    if settings.deliver.broadcast:
        return frozenset(mains)
    return frozenset(
        {
            *(*mains, *names.levels_of(settings.delays, mains), *names.dlqs_of(mains), names.ready, names.events),
            *(names.queues_of(mains) if settings.queued else ()),
        }
    )


def build_outputs(settings: Settings, registry: CredentialRegistry) -> KnownOutputs | None:
    """Return the thread that knows the topics for outputs; None if the operator allows none."""
    allowed = allowed_outputs_of(settings)
    return None if allowed is None else KnownOutputs(allowed, settings.kafka, registry)


def sized_topics(settings: Settings) -> tuple[str, ...]:
    """Return the topics whose largest record must fit a post: the main topics in relay mode, else none."""
    return settings.topic_names if settings.deliver.mode == "relay" else ()


def build_post_writer(
    settings: Settings, policy: Policy, observe: Callable[[str, float], None], registry: CredentialRegistry
) -> PostWriter | None:
    """Return the writer for the failures that services post; None if no service reads Kafka itself."""
    if settings.deliver.mode != "relay":
        return None
    identity = f"{policy.names.group}-post-{policy.instance}"
    return PostWriter(producer_config(settings.kafka, identity, f"reconsume-{identity}"), observe, registry)
