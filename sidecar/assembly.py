"""From the settings to the parts of a sidecar: policy, lanes, push client, HTTP servers. Nothing is started here."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from sidecar.core.gate import Gate
from sidecar.core.intake import Terms
from sidecar.core.order import By
from sidecar.core.pace import Pace
from sidecar.core.policy import InPlace, Policy
from sidecar.core.tags import Subscriptions, parse_tags
from sidecar.edges.access import LOOPBACK_NAMES
from sidecar.edges.api import Access, Operated, build_app, build_probe_app
from sidecar.edges.clock import now
from sidecar.edges.delivery import Delivery
from sidecar.edges.engine import Engine, Plan
from sidecar.edges.metrics import LaneSource, Sources, TransactionMeter
from sidecar.edges.push.pool import Push
from sidecar.edges.push.settings import PushSettings
from sidecar.edges.push.target import parse_target
from sidecar.edges.server import Server
from sidecar.errors import ConfigError
from sidecar.settings.deliver import Deliver
from sidecar.settings.model import Settings
from topics.durations import render_duration


def policy_of(settings: Settings, instance: str) -> Policy:
    """The retry policy that the settings describe."""
    return Policy(
        names=settings.names,
        topics=settings.topic_names,
        ladder=settings.ladder,
        table=settings.retry.levels,
        delays=settings.delays,
        max_reconsume_times=settings.retry.max_reconsume_times,
        instance=instance,
        in_place=in_place_of(settings),
        nack_delay=settings.retry.nack_redelivery_delay,
        relay=settings.deliver.mode == "relay",
        broadcast=settings.deliver.broadcast,
    )


def in_place_of(settings: Settings) -> InPlace | None:
    """How an ordered group retries; None when it is not ordered."""
    if settings.deliver.order == "none":
        return None
    return InPlace(settings.retry.ordered_interval, settings.retry.ordered_max_times)


def pace_of(settings: Settings) -> Pace:
    """How many deliveries may be out. Only a service that is pushed to can be away."""
    deliver = settings.deliver
    if deliver.mode == "pull":
        return Pace(settings.pull.max_leased)
    return Pace(
        deliver.concurrency * deliver.batch.max_size,
        failures=deliver.outage_failures,
        guarded=deliver.health_url is not None,
    )


def plans_of(settings: Settings) -> tuple[Plan, ...]:
    """The lanes: main and retry; in relay mode the service reads main topics and ready topic itself."""
    match settings.deliver:
        case Deliver(mode="relay"):
            return (retry_plan(settings, with_ready=False),)
        case _:
            return (main_plan(settings), retry_plan(settings, with_ready=True))


def main_plan(settings: Settings) -> Plan:
    """The lane of the service's own topics."""
    terms = Terms(settings.deliver.max_held, order_of(settings), wanted_of(settings))
    understand, lock = settings.retry.understand, settings.lock_timeout / 1000
    return Plan("main", settings.group, settings.topic_names, {}, settings.start, lock, terms, understand)


def retry_plan(settings: Settings, *, with_ready: bool) -> Plan:
    """The lane of level topics and ready topic. Its records were wanted once, whatever is subscribed to now."""
    names = settings.names
    waits = {names.level(delay, topic): delay for delay in settings.delays for topic in settings.topic_names}
    if with_ready:
        waits[names.ready] = 0
    terms = Terms(settings.deliver.max_held, order_of(settings))
    # A level's record without a committed offset is a waiting retry: it must never be passed over.
    return Plan("retry", names.retry_group, tuple(waits), waits, "earliest", settings.lock_timeout / 1000, terms)


def order_of(settings: Settings) -> By | None:
    """What is delivered one at a time, if anything."""
    return None if settings.deliver.order == "none" else settings.deliver.order


def wanted_of(settings: Settings) -> Subscriptions | None:
    """Which records are wanted; None, which costs nothing, when all are."""
    tags = {topic.name: parse_tags(topic.tags) for topic in settings.topics}
    return None if all(wanted is None for wanted in tags.values()) else Subscriptions(tags)


def delivery_of(settings: Settings, gate: Gate) -> Delivery:
    """Who hands records to the service; ConfigError when the URL cannot be used."""
    return push_of(settings)


def push_of(settings: Settings) -> Push:
    """The push client that the settings describe; ConfigError when the URL cannot be used."""
    deliver = settings.deliver
    push = PushSettings(
        group=settings.group,
        timeout_ms=deliver.timeout,
        concurrency=deliver.concurrency,
        forward_headers=deliver.forward_headers,
        envelope=deliver.envelope,
        dead_letter_statuses=frozenset(deliver.dead_letter_statuses),
    )
    try:
        return Push(parse_target(deliver.url or "", deliver.allow_remote), push, now)
    except ValueError as fault:
        raise ConfigError([f"deliver.url: {fault}"]) from None


def needed_topics(settings: Settings) -> frozenset[str]:
    """Every topic that the sidecar reads or writes."""
    names, mains = settings.names, settings.topic_names
    return frozenset(
        {*mains, *names.levels_of(settings.delays, mains), *names.dlqs_of(mains), names.ready, names.events}
    )


def sources_of(
    settings: Settings, engines: list[Engine], gate: Gate, delivery: Delivery, transactions: TransactionMeter
) -> Sources:
    """What a scrape of the metrics reads."""
    return Sources(
        lanes=tuple(
            LaneSource(engine.lane, engine.driver.records_lost, engine.assignment.rebalances, engine.ends)
            for engine in engines
        ),
        gate=gate,
        deliveries=delivery.durations,
        transactions=transactions,
        topics=settings.topic_names,
        levels=(*map(render_duration, settings.delays), "ready"),
        version=version("reconsume"),
        now=now,
    )


def servers_of(settings: Settings, sidecar: Operated, scrape: Callable[[], bytes]) -> list[Server]:
    """The API for the service, and the probes for the kubelet where they have an address of their own."""
    listen, token = settings.listen, settings.api.token_file
    hosts = LOOPBACK_NAMES if listen.path is not None else (*LOOPBACK_NAMES, listen.host)
    access = Access(None if token is None else Path(token), hosts)
    servers = [Server(build_app(sidecar, scrape, access, settings.drain_timeout / 1000), listen)]
    if settings.probe_listen is not None:
        servers.append(Server(build_probe_app(sidecar, scrape), settings.probe_listen))
    return servers
