"""From the settings to the parts of a sidecar: policy, lanes, push client, HTTP servers. Nothing is started here."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from sidecar.core.gate import Gate
from sidecar.core.policy import Policy
from sidecar.edges.access import LOOPBACK_NAMES
from sidecar.edges.api import Access, Operated, build_app, build_probe_app
from sidecar.edges.clock import now
from sidecar.edges.engine import Engine, Plan
from sidecar.edges.metrics import LaneSource, Sources, TransactionMeter
from sidecar.edges.push.pool import Push
from sidecar.edges.push.settings import PushSettings
from sidecar.edges.push.target import parse_target
from sidecar.edges.server import Server
from sidecar.errors import ConfigError
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
    )


def plans_of(settings: Settings) -> tuple[Plan, Plan]:
    """The main lane and the retry lane."""
    names, lock = settings.names, settings.lock_timeout / 1000
    waits = {names.level(delay, topic): delay for delay in settings.delays for topic in settings.topic_names}
    waits[names.ready] = 0
    return (
        Plan("main", settings.group, settings.topic_names, {}, settings.start, lock, settings.retry.understand),
        # A level's record without a committed offset is a waiting retry: it must never be passed over.
        Plan("retry", names.retry_group, tuple(waits), waits, "earliest", lock),
    )


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
    settings: Settings, engines: list[Engine], gate: Gate, push: Push, transactions: TransactionMeter
) -> Sources:
    """What a scrape of the metrics reads."""
    return Sources(
        lanes=tuple(
            LaneSource(engine.lane, engine.driver.records_lost, engine.assignment.rebalances, engine.ends)
            for engine in engines
        ),
        gate=gate,
        deliveries=push.durations,
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
