"""The parts of a sidecar that callers use: the API of each mode, the probes, the metrics. Nothing is started here."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from reconsume.sidecar.api.app import (
    Access,
    GroupCalls,
    GroupPaths,
    Operated,
    Status,
    build_app,
    build_group_app,
    build_probe_app,
)
from reconsume.sidecar.api.holds import hold_routes
from reconsume.sidecar.api.pull import RECEIVE, no_pull_routes, pull_routes
from reconsume.sidecar.api.reset import reset_routes
from reconsume.sidecar.api.retry import longest_post, retry_routes
from reconsume.sidecar.api.settle import settle_routes
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.counters import LaneCounters
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import Delivery
from reconsume.sidecar.delivery.idempotency import producer_key_of
from reconsume.sidecar.delivery.pull.queue import PullQueue
from reconsume.sidecar.delivery.push import Push
from reconsume.sidecar.delivery.push.batch import BatchPush
from reconsume.sidecar.delivery.relay.post_writer import PostWriter
from reconsume.sidecar.delivery.relay.posts import FailurePosts
from reconsume.sidecar.group_policy.hold_keeper import HoldKeeper
from reconsume.sidecar.group_policy.operations import HoldStore
from reconsume.sidecar.http.access import LOOPBACK_NAMES
from reconsume.sidecar.http.bodies import LONGEST
from reconsume.sidecar.http.calls import Call
from reconsume.sidecar.http.protocol import PROBE_LIMITS, Limits
from reconsume.sidecar.http.server import Server
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.observability.cached_answer import sparing
from reconsume.sidecar.observability.metric_sources import LaneSource, Sources, TransactionMeter
from reconsume.sidecar.release import this_release
from reconsume.sidecar.runtime.lane_runner import LaneRunner
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.durations import render_duration
from reconsume.topics.outputs import OutputTopics

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.settle_waiting import DecisionCalls
    from reconsume.sidecar.group_policy.position_reset import PositionStore


def build_metric_sources(
    settings: Settings,
    runners: list[LaneRunner],
    dispatcher: Dispatcher,
    delivery: Delivery,
    transactions: TransactionMeter,
) -> Sources:
    """Return what a scrape of the metrics reads."""
    return Sources(
        group=settings.group,
        mode=settings.deliver.shown_mode,
        labels=settings.labels,
        lanes=tuple(map(_lane_source, runners)),
        dispatcher=dispatcher,
        deliveries=delivery.durations,
        transactions=transactions,
        topics=settings.topic_names,
        levels=(*map(render_duration, settings.delays), "ready"),
        release=this_release(),
        now=now,
        late_verdicts=lambda: delivery.fenced if isinstance(delivery, PullQueue) else 0,
        odd_verdicts=lambda: odd_verdicts_of(delivery),
        service_deaths=lambda: delivery.deaths.count if isinstance(delivery, Push | BatchPush) else 0,
    )


def odd_verdicts_of(delivery: Delivery) -> Mapping[str, int]:
    """Return how many answers looked like a verdict and were none, by kind."""
    return delivery.odd_verdicts.counts if isinstance(delivery, Push | BatchPush) else {}


def _lane_source(runner: LaneRunner) -> LaneSource:
    starts = runner.assignment.starts
    return LaneSource(
        runner.lane,
        runner.assignment.rebalances,
        runner.ends,
        runner.driver.ages,
        lambda: starts.unread_progress,
        lambda: starts.misplaced_progress,
        runner.consumer.client_watch.replaced,
    )


def retry_calls(
    settings: Settings, policy: Callable[[], Policy], post_writer: PostWriter, counters: LaneCounters
) -> list[Call]:
    """Return the API call by which a service posts records that it could not handle."""
    posts = FailurePosts(policy, settings.retry.understand, settings.drains, post_writer, counters, now)
    return retry_routes(posts.post)


def pull_calls(settings: Settings, delivery: Delivery, outputs: OutputTopics | None) -> list[Call]:
    """Return the API calls by which a service receives records and answers.

    In other modes these calls answer with an error.
    """
    if isinstance(delivery, PullQueue):
        return pull_routes(
            delivery,
            settings.group,
            settings.pull.min_invisible,
            outputs,
            producer_key=producer_key_of(settings.deliver.idempotency),
        )
    return no_pull_routes(settings.deliver.mode)


def hold_calls(settings: Settings, keeper: HoldKeeper, registry: CredentialRegistry) -> list[Call]:
    """Return the API calls for holds. A broadcast follows no policy topic, and has none."""
    if settings.deliver.broadcast:
        return []
    return hold_routes(
        keeper.status, lambda: HoldStore(_cluster(settings, registry), settings.names), settings.topic_names
    )


def _cluster(settings: Settings, registry: CredentialRegistry) -> Cluster:
    """Return the connection of one call, with the credentials of now."""
    return Cluster(registry.with_newest(settings.kafka), "reconsume-api")


def reset_calls(settings: Settings, registry: CredentialRegistry) -> list[Call]:
    """Return the API calls that move the group's position. A broadcast and a relay keep none here."""
    if settings.deliver.broadcast or settings.deliver.mode == "relay":
        return []
    return reset_routes(settings, partial(_positions, settings, registry))


def _positions(settings: Settings, registry: CredentialRegistry) -> PositionStore:
    # Not loaded before it is needed: it uses memory.
    from reconsume.sidecar.group_policy.position_reset import PositionStore

    return PositionStore(_cluster(settings, registry), settings.names)


def settle_calls(settings: Settings, policy: Callable[[], Policy], registry: CredentialRegistry) -> list[Call]:
    """Return the API calls that settle what waits. A broadcast has no retries, and so none."""
    if settings.deliver.broadcast:
        return []
    return settle_routes(partial(_decisions, settings, policy, registry), settings.topic_names)


def _decisions(settings: Settings, policy: Callable[[], Policy], registry: CredentialRegistry) -> DecisionCalls:
    # Not loaded before it is needed, as the clients of Kafka: both use memory.
    from reconsume.sidecar.dlq.dead_letters import DeadLetters
    from reconsume.sidecar.dlq.settle_waiting import DecisionCalls

    return DecisionCalls(DeadLetters(_cluster(settings, registry), policy()), settings)


class Serving(Protocol):
    """A server for API calls. Its methods are called on the event loop, once each."""

    async def start(self) -> None:
        """Listen for calls. Raises SetupError."""

    def keep_listener(self) -> tuple[str, socket.socket]:
        """Return an address and a socket that goes on listening there after the stop. Call it before that."""

    async def stop(self, grace: float = 1.0) -> None:
        """Answer no more calls; calls under way may take `grace` seconds."""


@dataclass(frozen=True, slots=True)
class GroupApi:
    """What one group of a sidecar adds to its API.

    `status`: what `/status` shows of it. `calls`: those of its mode. `largest`: returns the bytes of the largest record
    that may be posted.
    """

    settings: Settings
    status: Callable[[], Status]
    calls: Sequence[Call] = ()
    largest: Callable[[], int] = lambda: 0

    def build_calls(self) -> GroupCalls:
        """Return its calls, with who may make them."""
        return GroupCalls(self.status, self.calls, build_access(self.settings, self.largest))


def build_access(settings: Settings, largest: Callable[[], int] = lambda: 0) -> Access:
    """Return who may make the calls of a group, and how long these may be. `largest`: as in `GroupApi`."""
    listen, token = settings.api.listen, settings.api.token_file
    hosts = (*LOOPBACK_NAMES, *settings.api.hosts, *(() if listen.path is not None else (listen.host,)))
    operators = settings.operators.token_file
    access = Access(
        None if token is None else Path(token),
        hosts,
        operators=None if operators is None else Path(operators),
        read=settings.read,
    )
    if settings.deliver.mode == "relay":
        access = replace(access, longest=lambda: longest_post(largest()))
    elif settings.deliver.outputs:
        access = replace(access, longest=lambda: max(LONGEST, settings.deliver.max_answer))
    return access


def build_servers(groups: Sequence[GroupApi], sidecar: Operated, scrape: Callable[[], bytes]) -> list[Serving]:
    """Return the API server for the service, and a server of the probes if these have their own address.

    Both are those of the process: `api` is the same in the settings of all groups. The calls of a single group have no
    prefix.
    """
    scrape, api = sparing(scrape), groups[0].settings.api
    by_name = {group.settings.group: group.build_calls() for group in groups}
    if len(groups) == 1:
        (only,) = by_name.values()
        access, calls = only.access, only.calls
    else:
        access, calls = build_access(groups[0].settings), ()
    is_pulled = any(group.settings.deliver.mode == "pull" for group in groups)
    limits = Limits(waiting_path=RECEIVE) if is_pulled else Limits()
    below = {name: build_group_app(of_group) for name, of_group in by_name.items()}
    app = GroupPaths(build_app(sidecar, scrape, access, calls), below)
    servers: list[Serving] = [Server(app, api.listen, limits, "api.listen")]
    if api.probe_listen is not None:
        probes = build_probe_app(sidecar, scrape)
        servers.append(Server(probes, api.probe_listen, PROBE_LIMITS, "api.probe_listen"))
    return servers
