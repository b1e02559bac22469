"""The running sidecar: both lanes, the push client and the API on one event loop, started and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from dataclasses import replace

from reconsume.sidecar.api.app import policy_routes
from reconsume.sidecar.background import background, on_own_thread
from reconsume.sidecar.clock import now
from reconsume.sidecar.core.ages import Wait
from reconsume.sidecar.core.counters import strays_in
from reconsume.sidecar.core.pace.pace import Cause
from reconsume.sidecar.core.pace.refusals import status_of
from reconsume.sidecar.core.progress_codec import NEEDED
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.core.status import hand_over_of, keys_status
from reconsume.sidecar.delivery.push.access import Access, build_credentials
from reconsume.sidecar.delivery.relay.post_writer import PostWriter
from reconsume.sidecar.group_policy.controller import PolicyController
from reconsume.sidecar.http.listeners import close_unclaimed
from reconsume.sidecar.kafka.credentials.watcher import CredentialWatcher, registry_of
from reconsume.sidecar.observability.failure_lines import FailureSums
from reconsume.sidecar.observability.metric_sources import TransactionMeter
from reconsume.sidecar.observability.metrics import scraper
from reconsume.sidecar.observability.signals import BlockedKeys, Signals
from reconsume.sidecar.observability.thread_watch import ThreadWatch
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
from reconsume.sidecar.runtime.lane_runner import LaneRunner
from reconsume.sidecar.runtime.largest_record import LargestRecord
from reconsume.sidecar.runtime.loop_faults import LoopFaults
from reconsume.sidecar.runtime.missing_topics import MissingTopics
from reconsume.sidecar.runtime.policy_updates import (
    PolicyTargets,
    build_policy_follower,
    refused_by,
    with_policy,
)
from reconsume.sidecar.runtime.restarts import BROKEN_DRAIN, LEAVE_WITHIN, MOST, USED_UP, WITHIN, Restarts
from reconsume.sidecar.runtime.servers import (
    build_metric_sources,
    build_servers,
    hold_calls,
    odd_verdicts_of,
    pull_calls,
    retry_calls,
    settle_calls,
)
from reconsume.sidecar.runtime.view_service import build_view_service, view_calls, with_view
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy, instance_name
from reconsume.sidecar.ui.in_sidecar import build_dashboards
from reconsume.topics.masking import text_without_secrets

CLIENT_WITHIN = 60.0
"""Seconds after which a start without a Kafka client ends: files of credentials that do not match are mended by then,
and an exit is seen where a log line is not."""
LOOK_EVERY = 1.0
"""Seconds between two checks whether every thread is alive."""


CLOSED_WITHIN = 1.5
"""Seconds from the end of the drain to process exit. Of a grace period of 40 s: 35 drain (the default drain_timeout), 1
to leave the group, 1.5 here; about 2 are spare."""


STOP_LEAVES_WITHIN = 1.0
"""Seconds to leave the group in at a stop, as above."""
DRAINED_FOR = 60.0
"""Seconds beyond its drain time that a drained process waits for a stop. If no stop comes, the drain was a mistake, or
the operator wanted this instance to do nothing. A new process then replaces it."""


_LOG = logging.getLogger("reconsume.run")


class Sidecar:
    """A running sidecar; implements `api.app.Operated`."""

    def __init__(
        self, settings: Settings, restarts: Restarts | None = None, drained_for: float = DRAINED_FOR, speed: int = 1
    ) -> None:
        """`speed`: what the waits of retries are divided by, as in `GroupRules`."""
        self._settings, self._drained_for = settings, drained_for
        self._restarts = restarts or Restarts({})
        self._faults = LoopFaults()
        asyncio.get_running_loop().set_exception_handler(self._faults.handle)
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
        policy = build_policy(settings, self._instance, speed)
        self._largest_record = LargestRecord(settings.kafka, registry, sized_topics(settings))
        self._runners = [
            LaneRunner(
                *(plan, policy, settings.kafka, self._dispatcher, handed, transactions.observe, registry),
                *(self._outputs, self._restarts.ask),
            )
            for plan in build_lane_specs(settings, self._restarts.unread_since_ms())
        ]
        self._pace_monitor = build_pace_monitor(settings, self._dispatcher, self._runners, self._service_credentials)
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
        calls = [
            *policy_routes(self._controller),
            *hold_calls(settings, self._controller.holds, registry),
            *settle_calls(settings, lambda: self._runners[-1].policy, registry),
            *pull_calls(settings, self._delivery, self._outputs),
            *view_calls(self._view_service),
        ]
        if self._post_writer is not None:
            retries = self._runners[-1]
            calls += retry_calls(settings, lambda: retries.policy, self._post_writer, retries.lane.counters)
        sources = with_view(with_policy(sources, self._controller), self._view_service)
        sources = replace(
            sources,
            loop_errors=lambda: self._faults.counts,
            waiting=self._membership.waited,
            restarts=self._restarts.totals,
        )
        self._servers = build_servers(settings, self, scraper(sources), calls, lambda: self._largest_record.size)
        dashboards = build_dashboards(
            settings, policy, None if self._view_service is None else self._view_service.topic
        )
        self._servers += dashboards
        followers = [self._policy_topic, self._credentials, self._post_writer, self._view_service, self._outputs]
        self._watch = ThreadWatch([*self._runners, *followers, *dashboards])
        self._gave_up: list[str] = []
        self._missing = MissingTopics(self._needed_topics, self._runners[0].look_up_missing)
        self._starting: list[asyncio.Task[None]] = []
        self._draining: asyncio.Task[int] | None = None
        self._ends_at = math.inf
        """When a drained process ends without a stop, by the event loop's clock."""

    async def start(self) -> None:
        """Listen, and start both lanes side by side; return before Kafka answers. Raises SetupError."""
        for server in self._servers:
            await server.start()
        close_unclaimed(os.environ)
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
        follow_service = self._membership.start(self._controller.wait_known, self._delivery)
        self._starting.append(background(follow_service, "membership"))
        _LOG.info("started", extra={"event": "started", "group": self._settings.group, "instance": self._instance})
        if self._settings.deliver.broadcast:
            text = "broadcast: every record from now on comes to this instance once; nothing is retried or kept"
            _LOG.info(text, extra={"event": "broadcast"})

    async def watch(self, stop: asyncio.Event) -> int | None:
        """Wait for a stop, and return the exit code; None if the process is to restart in place.

        0 after a stop, that of `_fault`, or 75 if the process has restarted in place too often.
        """
        while not stop.is_set():
            if (code := self._fault()) is not None:
                return code
            if self._draining is None and self._restarts.is_due():
                if not self._restarts.are_used_up:
                    return None
                text = "restarted in place %d times within %d s: the process ends, so that its supervisor starts it"
                _LOG.error(text, MOST, WITHIN, extra={"event": "restarts-used-up"})
                await self.drain_for_restart()
                return USED_UP
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_EVERY)
        return 0

    def _fault(self) -> int | None:
        """Return the exit code if the process must end; None if nothing is wrong.

        1 if a part of the sidecar is broken, if no stop followed a drain, or if a Spark query reads the group's
        retries. 78 if the policy refuses this instance, if its properties let no Kafka client be made, or if the
        brokers take too little metadata with an offset.
        """
        if self._controller.refusal:
            for problem in self._controller.refusal:
                _LOG.error("configuration: %s", problem, extra={"event": "policy-mismatch"})
            return os.EX_CONFIG
        if (owner := self._controller.owner) is not None:
            text = "the group's retries are read by %s; a second reader would double their copies: stop one of both"
            _LOG.error(text, owner.described, extra={"event": "retries-owned"})
            return 1
        if asyncio.get_running_loop().time() > self._ends_at:
            _LOG.error(
                "drained but not stopped: the process ends, so that a new one takes over",
                extra={"event": "drained-alone"},
            )
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
        # No thread is started again: what it left behind is in doubt, and a new process begins at what Kafka knows.
        if problems := self.problems():
            self._gave_up = problems
            _LOG.error("giving up: %s", "; ".join(problems), extra={"event": "giving-up"})
            return 1
        return None

    async def drain_for_restart(self) -> bool:
        """Drain, for a short time if something is broken; return whether the process may restart then.

        It may not if a drain was asked for meanwhile: whoever does that waits for the end of the process.
        """
        within = BROKEN_DRAIN if self._restarts.is_broken else self._usual_drain()
        await self._begin_drain(min(within, self._usual_drain()), LEAVE_WITHIN)
        return self._ends_at == math.inf

    async def close_for_restart(self) -> list[tuple[str, socket.socket]]:
        """Close what is left; return the sockets that go on listening, by address."""
        listeners = [server.keep_listener() for server in self._servers]
        await self._end(0)
        return listeners

    async def stop(self) -> None:
        """Drain, then close what is left, in CLOSED_WITHIN seconds at most."""
        await self._end(await self.drain())

    async def _end(self, unfinished: int) -> None:
        self._failure_sums.log()
        _LOG.info("stopped", extra={"event": "stopped", "left": unfinished})
        self._delivery.close()
        if self._post_writer is not None:
            self._post_writer.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._close(), CLOSED_WITHIN)

    async def _close(self) -> None:
        await asyncio.gather(self._tracing.close(), *(server.stop() for server in self._servers))
        if self._view_service is not None:
            await self._view_service.stop()
        await on_own_thread("stop", lambda: self._policy_topic.join(CLOSED_WITHIN))

    # --- called by the API -------------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Return the threads that make no progress, by name, and the fault that broke the event loop.

        Once a drain has begun, only the problems that made the sidecar give up are returned.
        """
        if self._gave_up or self._draining is not None:
            return self._gave_up
        return [*self._watch.check(), *([self._faults.fatal] if self._faults.fatal else [])]

    def started(self) -> bool:
        """Whether both lanes consume."""
        return all(runner.started for runner in self._runners)

    def status(self) -> dict[str, object]:
        """Return what `/status` shows."""
        partitions = [(runner.plan.name, one) for runner in self._runners for one in runner.status()]
        return {
            "group": self._settings.group,
            "instance": self._instance,
            "mode": "broadcast" if self._settings.deliver.broadcast else self._settings.deliver.mode,
            "state": self._state(),
            **self._membership.status(),
            **self._pace_monitor.status(),
            "in_flight": self._dispatcher.in_flight,
            "hand_over": hand_over_of(runner.lane.shown.hand_over(now()) for runner in self._runners),
            "concurrency": self._dispatcher.concurrency._asdict() if self._settings.deliver.mode == "push" else None,
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
            "keys": keys_status(partition for _, partition in partitions),
            "partitions": [{"lane": lane, **partition._asdict()} for lane, partition in partitions],
        }

    def _build_share(self) -> GroupShare:
        limits, runner = self._dispatcher.limits, self._runners[0]

        def changed() -> None:
            limits.stale = True

        topics, owned = frozenset(self._settings.topic_names), runner.lane.shown.owned
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
        lanes, now_ms = [runner.lane.shown for runner in self._runners], now().wall_ms
        named = [tried.shown() for lane in lanes for tried in lane.blocking_records(now_ms)]
        return BlockedKeys(len(named) + sum(lane.queued_keys() for lane in lanes), named)

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

    async def drain(self, timeout: float | None = None) -> int:
        """Stop fetching, finish the deliveries in flight, commit, leave the group. Safe to call again.

        `timeout`: seconds; None: `drain_timeout`, or what follows from the policy's timeout. Returns how many records
        were left, at most: not answered, or not committed to Kafka.
        """
        usual = self._usual_drain()
        within = usual if timeout is None else timeout
        self._ends_at = min(self._ends_at, asyncio.get_running_loop().time() + max(within, usual) + self._drained_for)
        return await asyncio.shield(self._begin_drain(within, STOP_LEAVES_WITHIN))

    def _usual_drain(self) -> float:
        """Return the seconds of a drain for which nobody says how long it may take."""
        return self._controller.settings.drain_wait / 1000

    def _begin_drain(self, timeout: float, leave_within: float) -> asyncio.Task[int]:
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
        await self._controller.wait_known()
        while self._outputs is not None and not self._outputs.listed.is_set():
            await asyncio.sleep(0.01)

    def _needed_topics(self) -> frozenset[str]:
        return needed_topics(self._controller.settings)

    async def _name_missing_topics(self) -> None:
        await self._controller.wait_known()
        await self._missing.name()
