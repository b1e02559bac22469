"""One group of a running sidecar: its lanes, its delivery, what follows its policy and its view, and its API calls.

A sidecar has one or several of them on its event loop (`sidecar.py`). They share the loop, the restarts of the process
and the memory for records (`SharedRoom`), and nothing else: what hangs in one delays no other. Each is made, started
and drained in a context of its own, which its tasks, timers and threads inherit, so its log lines and hints name the
group (`hints.PRESENT_GROUP`).

The order of its end: nothing new is sent, deliveries in flight are answered, progress is committed, the consumer groups
are left (`drain`); then `close` ends what remains. All of it runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from reconsume.sidecar.api.app import policy_routes
from reconsume.sidecar.background import background, on_own_thread
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.counters import strays_in
from reconsume.sidecar.core.pace.pace import Cause
from reconsume.sidecar.core.pace.refusals import status_of
from reconsume.sidecar.core.progress_codec import NEEDED
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.room import SharedRoom
from reconsume.sidecar.core.status import hand_over_of, keys_status
from reconsume.sidecar.delivery.push.access import Access, build_credentials
from reconsume.sidecar.delivery.relay.post_writer import PostWriter
from reconsume.sidecar.group_policy.controller import PolicyController
from reconsume.sidecar.kafka.credentials.watcher import CredentialWatcher, registry_of
from reconsume.sidecar.observability.failure_lines import FailureSums
from reconsume.sidecar.observability.metric_sources import TransactionMeter
from reconsume.sidecar.observability.signals import BlockedKeys, Signals
from reconsume.sidecar.observability.thread_watch import HasThreads
from reconsume.sidecar.observability.tracing.setup import build_tracing
from reconsume.sidecar.open_files import open_files
from reconsume.sidecar.runtime.assembly import (
    build_delivery,
    build_dispatcher,
    build_lane_specs,
    build_outputs,
    build_pace_monitor,
    build_post_writer,
    needed_topics,
    sized_topics,
)
from reconsume.sidecar.runtime.group_membership import GroupMembership
from reconsume.sidecar.runtime.group_share import GroupShare
from reconsume.sidecar.runtime.lane_checks import check_lanes
from reconsume.sidecar.runtime.lane_runner import LaneRunner, LaneSpec
from reconsume.sidecar.runtime.largest_record import LargestRecord
from reconsume.sidecar.runtime.missing_topics import MissingTopics
from reconsume.sidecar.runtime.policy_updates import (
    PolicyTargets,
    build_policy_follower,
    refused_by,
    with_policy,
)
from reconsume.sidecar.runtime.restarts import Restarts
from reconsume.sidecar.runtime.servers import (
    GroupApi,
    build_metric_sources,
    hold_calls,
    odd_verdicts_of,
    pull_calls,
    reset_calls,
    retry_calls,
    settle_calls,
)
from reconsume.sidecar.runtime.view_service import build_view_service, view_calls, with_view
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy, instance_name
from reconsume.sidecar.ui.in_sidecar import build_dashboards
from reconsume.topics.masking import text_without_secrets

if TYPE_CHECKING:
    from reconsume.sidecar.ui.app import DashboardThread

CLIENT_WITHIN = 60.0
"""Seconds after which a start without a Kafka client ends: files of credentials that do not match are repaired by then,
and an exit is seen where a log line is not."""
CLOSED_WITHIN = 1.5
"""Seconds from the end of the drain to process exit. Of a grace period of 40 s: 35 drain (the default drain_timeout), 1
to leave the group, 1.5 here; about 2 are spare."""

_LOG = logging.getLogger("reconsume.run")


class RunningGroup:
    """One group of a sidecar. `restarts`: of the process. `rooms`: the memory that its lanes share with those of other
    groups, by the lane's name; empty if there are no others. `loop_errors`: uncaught exceptions of the event loop.
    `speed`: what the waits of retries are divided by, as in `GroupRules`."""

    def __init__(
        self,
        settings: Settings,
        restarts: Restarts,
        rooms: Mapping[str, SharedRoom],
        loop_errors: Callable[[], Mapping[str, int]],
        speed: int = 1,
    ) -> None:
        self.settings, self._restarts = settings, restarts
        self._instance = instance_name(settings, os.environ)
        self._dispatcher = build_dispatcher(settings)
        self._service_credentials = build_credentials(settings.deliver)
        access = Access(self._service_credentials)
        self._registry = registry = registry_of(settings.kafka)
        self._outputs = build_outputs(settings, registry)
        self._delivery = build_delivery(settings, self._dispatcher, access, self._outputs)
        self._tracing = build_tracing(settings, self._instance)
        handed = self._tracing.around(self._delivery)
        transactions = TransactionMeter()
        self._credentials = CredentialWatcher(settings.kafka, registry, lambda: not self.started())
        policy = self._policy = build_policy(settings, self._instance, speed)
        self._largest_record = LargestRecord(settings.kafka, registry, sized_topics(settings))
        self._runners = [
            LaneRunner(
                *(plan, policy, settings.kafka, self._dispatcher, handed, transactions.observe, registry),
                *(self._outputs, self._restarts.ask),
            )
            for plan in self._lane_specs(rooms)
        ]
        self._pace_monitor = build_pace_monitor(
            settings, self._dispatcher, self._runners, self._service_credentials, self._delivery
        )
        targets = PolicyTargets(self._instance, self._runners, self._dispatcher, self._delivery, speed)
        if policy.queued:
            targets.expect_queues()
        self._controller = PolicyController(settings, targets.instance, targets)
        self._share = self._build_share()
        self._failure_sums = FailureSums(
            [runner.lane.counters for runner in self._runners], broadcast=settings.deliver.broadcast
        )
        self._signals = Signals(
            [runner.lane.counters for runner in self._runners],
            self._waits,
            settings.topic_names,
            lambda: self._dispatcher.pace.cause in (Cause.UNREACHABLE, Cause.UNWELL),
            lambda: sum(runner.lane.shown.retried_in_place() for runner in self._runners),
            None if settings.deliver.order == "none" else self._blocked_keys,
            lambda: sum(runner.lane.shown.parked_keys() for runner in self._runners),
        )
        self._membership = GroupMembership(settings, self._runners, self._dispatcher, self._controller.others, access)
        self._policy_topic = build_policy_follower(
            *(settings, self._controller, self._dispatcher, registry, self._instance),
            *(self._overdue, self._membership, self._signals),
        )
        sources = build_metric_sources(settings, self._runners, self._dispatcher, self._delivery, transactions)
        self._post_writer = build_post_writer(settings, policy, transactions.observe, registry)
        self._view_service = build_view_service(settings, self._instance, registry)
        self._calls = [
            *policy_routes(self._controller.policy),
            *hold_calls(settings, self._controller.holds, registry),
            *reset_calls(settings, registry),
            *settle_calls(settings, lambda: self._runners[-1].policy, registry),
            *pull_calls(settings, self._delivery, self._outputs),
            *view_calls(self._view_service),
        ]
        if self._post_writer is not None:
            retries = self._runners[-1]
            self._calls += retry_calls(settings, lambda: retries.policy, self._post_writer, retries.lane.counters)
        self.sources = with_view(with_policy(sources, self._controller), self._view_service)
        self.sources = replace(
            self.sources,
            loop_errors=loop_errors,
            waiting=self._membership.waited,
            restarts=self._restarts.totals,
        )
        self._missing = MissingTopics(self._needed_topics, self._runners[0].look_up_missing)
        self._starting: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[int] | None = None

    def _lane_specs(self, rooms: Mapping[str, SharedRoom]) -> list[LaneSpec]:
        specs = build_lane_specs(self.settings, self._restarts.unread_since_ms())
        return [
            replace(
                spec,
                terms=spec.terms._replace(shared=rooms.get(spec.name), unclean=self._restarts.unclean_of(spec.group)),
            )
            for spec in specs
        ]

    def api(self) -> GroupApi:
        """Return what it adds to the API of the process."""
        return GroupApi(self.settings, self.status, self._calls, lambda: self._largest_record.size)

    def with_threads(self) -> list[HasThreads | None]:
        """Return the parts that have threads."""
        followers = [self._policy_topic, self._credentials, self._post_writer, self._view_service, self._outputs]
        return [*self._runners, *followers]

    def build_dashboards(self) -> list[DashboardThread]:
        """Return its own dashboard, if it is enabled."""
        topic = None if self._view_service is None else self._view_service.topic
        return build_dashboards(self.settings, self._policy, topic)

    def start(self) -> None:
        """Start all lanes side by side; return before Kafka answers."""
        check_lanes([runner.lane for runner in self._runners], self._dispatcher, os.environ)
        if self._post_writer is not None:
            self._post_writer.start()
        self._pace_monitor.start()
        self._credentials.start()
        self._policy_topic.start()
        if self._view_service is not None:
            self._view_service.start()
        if self._outputs is not None:
            self._outputs.start()
        self._starting = [
            background(runner.start(self._wait_known), f"start-{runner.plan.name}") for runner in self._runners
        ]
        self._starting.append(background(self._largest_record.follow(), "largest-record"))
        self._starting.append(background(self._failure_sums.follow(), "failure-sums"))
        self._starting.append(background(self._signals.follow(), "signals"))
        self._starting.append(background(self._name_missing_topics(), "topics"))
        self._starting.append(background(self._service_credentials.follow(), "service-credentials"))
        self._starting.append(background(self._share.follow(), "group-share"))
        follow_service = self._membership.start(self._controller.start.wait_known, self._delivery)
        self._starting.append(background(follow_service, "membership"))
        _LOG.info("started", extra={"event": "started", "group": self.settings.group, "instance": self._instance})
        if self.settings.deliver.broadcast:
            text = "broadcast: every record from now on comes to this instance once; nothing is retried or kept"
            _LOG.info(text, extra={"event": "broadcast"})

    def fault(self) -> int | None:
        """Return the exit code if the process must end; None if nothing is wrong.

        1 if a Spark query reads the group's retries. 78 if the policy refuses this instance, if its properties let no
        Kafka client be made, or if the brokers take too little metadata with an offset.
        """
        if self._controller.refusal:
            for problem in self._controller.refusal:
                _LOG.error("configuration: %s", problem, extra={"event": "policy-mismatch"})
            return os.EX_CONFIG
        if (owner := self._controller.start.owner) is not None:
            text = "the group's retries are read by %s; a second reader would double their copies: stop one of both"
            _LOG.error(text, owner.described, extra={"event": "retries-owned"})
            return 1
        if not self.started() and (refused := self._registry.refused_for(CLIENT_WITHIN)):
            _LOG.error("configuration: kafka: %s", refused, extra={"event": "no-client"})
            return os.EX_CONFIG
        if any(runner.lacks_room for runner in self._runners):
            text = (
                "configuration: the brokers refuse %d bytes of metadata with a committed offset, so nothing was "
                "delivered: set offset.metadata.max.bytes to %d (Kafka's default) or more on each broker"
            )
            _LOG.error(text, NEEDED, NEEDED, extra={"event": "metadata-too-short"})
            return os.EX_CONFIG
        return None

    def unclean_partitions(self) -> Iterator[tuple[str, Mapping[Partition, int]]]:
        """Yield each consumer group of its lanes, with the partitions whose last commits Kafka did not take."""
        for runner in self._runners:
            yield runner.plan.group, runner.lane.shown.unclean_partitions()

    def log_sums(self) -> None:
        """Log what was counted since the last sums."""
        self._failure_sums.log_sum()

    async def close(self) -> None:
        """Close what is left after the drain."""
        self._delivery.close()
        if self._post_writer is not None:
            self._post_writer.stop()
        await self._tracing.close()
        if self._view_service is not None:
            await self._view_service.stop()
        await on_own_thread("stop", lambda: self._policy_topic.join(CLOSED_WITHIN))

    def started(self) -> bool:
        """Whether both lanes consume."""
        return all(runner.started for runner in self._runners)

    def status(self) -> dict[str, object]:
        """Return what `/status` shows of it."""
        partitions = [(runner.plan.name, one) for runner in self._runners for one in runner.status()]
        return {
            "group": self.settings.group,
            "instance": self._instance,
            "mode": self.settings.deliver.shown_mode,
            "state": self._state(),
            **self._membership.status(),
            **self._pace_monitor.status(),
            "in_flight": self._dispatcher.in_flight,
            "concurrency": self._dispatcher.concurrency._asdict() if self.settings.deliver.mode == "push" else None,
            "hand_over": hand_over_of(runner.lane.shown.hand_over(now()) for runner in self._runners),
            "files": open_files(),
            "limits": [facts._asdict() for facts in self._dispatcher.limit_facts()],
            "missing_topics": sorted(self._missing.names),
            "unknown_topics": strays_in(runner.lane.counters for runner in self._runners),
            "odd_verdicts": dict(odd_verdicts_of(self._delivery)),
            "all_refused": [status_of(one) for one in refused_by(self._dispatcher)],
            **self._controller.status(),
            "view": None if self._view_service is None else self._view_service.status(),
            "refused_by_group": next((runner.refused for runner in self._runners if runner.refused), None),
            "last_error": self._last_error(),
            "restarted_in_place": self._restarts.status(),
            "keys": keys_status(row for _, row in partitions),
            "partitions": [{"lane": lane, **row} for lane, row in partitions],
        }

    def _build_share(self) -> GroupShare:
        limits, runner = self._dispatcher.limits, self._runners[0]

        def changed() -> None:
            limits.stale = True

        topics, owned = frozenset(self.settings.topic_names), runner.lane.shown.owned
        share = GroupShare(topics, owned, runner.partition_counts, lambda: limits.of_group, changed)
        limits.owned = share.share
        return share

    def _state(self) -> str:
        if self._draining is not None:
            return "draining"
        if not self.started():
            return "starting"
        return "waiting for the service" if self._membership.waits else "running"

    def _waits(self) -> dict[Partition, Wait]:
        return {source: wait for runner in self._runners for source, wait in runner.waits().items()}

    def _blocked_keys(self) -> BlockedKeys:
        """Return what blocks its key now (contract 5.8)."""
        facts, now_ms = [runner.lane.shown for runner in self._runners], now().wall_ms
        named = [tried.shown() for shown in facts for tried in shown.blocking_records(now_ms)]
        return BlockedKeys(len(named) + sum(shown.queued_keys() for shown in facts), named)

    def _overdue(self) -> int:
        return max(runner.driver.ages.overdue_ms for runner in self._runners)

    def _last_error(self) -> str | None:
        found = [
            self._credentials.problem,
            self._registry.refused_for(0.0),
            self._service_credentials.problem,
            *(source.last_error for source in self._sources()),
        ]
        return next((text_without_secrets(text) for text in found if text), None)

    def _sources(self) -> list[LaneRunner | PostWriter]:
        return [*self._runners, *([] if self._post_writer is None else [self._post_writer])]

    @property
    def usual_drain(self) -> float:
        """Seconds of a drain for which nobody says how long it may take: `drain_timeout`, or what follows from the
        policy's timeout."""
        return self._controller.settings.drain_wait / 1000

    def drain(self, timeout: float, leave_within: float) -> asyncio.Task[int]:
        """Stop fetching, finish the deliveries in flight, commit, leave the group. Safe to call again.

        The result is how many records were left, at most: not answered, or not committed to Kafka.
        """
        if self._draining is None:
            self._dispatcher.close()
            self._draining = asyncio.create_task(self._drain(timeout, leave_within))
        return self._draining

    async def _drain(self, timeout: float, leave_within: float) -> int:
        self._credentials.stop()
        if self._outputs is not None:
            self._outputs.stop()
        self._membership.close()
        for task in self._starting:
            task.cancel()
        self._policy_topic.stop()  # withdraws the subscription; else other instances wait for missing heartbeats
        left = await asyncio.gather(*(runner.drain(timeout, leave_within) for runner in self._runners))
        return self._dispatcher.in_flight + sum(left)

    async def _wait_known(self) -> None:
        """Return when the policy and the topics for outputs are known, by which responses are judged."""
        await self._controller.start.wait_known()
        while self._outputs is not None and not self._outputs.listed.is_set():
            await asyncio.sleep(0.01)

    def _needed_topics(self) -> frozenset[str]:
        return needed_topics(self._controller.settings)

    async def _name_missing_topics(self) -> None:
        await self._controller.start.wait_known()
        await self._missing.name()
