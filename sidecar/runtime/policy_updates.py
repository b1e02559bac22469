"""Apply the group's policy to the parts of a running sidecar; build the controller and the follower for it.

`group_policy/controller.py` decides which policy is in force, and why. This module only knows the parts that it goes
to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from reconsume.sidecar.clock import now, wall
from reconsume.sidecar.core.holds import Holds
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import AWAY
from reconsume.sidecar.core.pace.refusals import Refused
from reconsume.sidecar.core.ports import Delivery
from reconsume.sidecar.core.position_reset import ResetOrder
from reconsume.sidecar.delivery.push.batch import BatchPush
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.group_policy.controller import PolicyController
from reconsume.sidecar.group_policy.follower import PolicyFollower, PolicySource, PolicyUpdate
from reconsume.sidecar.group_policy.heartbeat import InstanceInfo
from reconsume.sidecar.kafka.client_config import follower_config, teller_config
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.observability.metric_sources import Sources
from reconsume.sidecar.observability.signals import Signals
from reconsume.sidecar.observability.thread_watch import WatchedThread
from reconsume.sidecar.release import this_release
from reconsume.sidecar.runtime.assembly import build_lane_specs
from reconsume.sidecar.runtime.group_membership import GroupMembership
from reconsume.sidecar.runtime.lane_runner import LaneRunner
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import build_policy, heartbeat_of
from reconsume.topics.decision_record import DecisionRecord
from reconsume.topics.policy_record import (
    LONGEST_REASON,
    PaceTold,
    RefusedTold,
    ReleaseTold,
)
from reconsume.topics.position_ranges import Resets
from reconsume.topics.removed import removed_role


@dataclass(frozen=True, slots=True)
class PolicyTargets:
    """The parts of a sidecar that follow the policy."""

    instance: str
    runners: list[LaneRunner]
    dispatcher: Dispatcher
    delivery: Delivery
    speed: int = 1
    """What the waits of retries are divided by, as in `GroupRules`."""

    def apply(self, settings: Settings, leftovers: Collection[str]) -> None:
        """Apply these settings. Level topics that have left them, and are not empty, are read too."""
        policy = build_policy(settings, self.instance, self.speed)
        if policy.queued:
            self.expect_queues()
        for runner, plan in zip(self.runners, build_lane_specs(settings), strict=True):
            runner.wait_for_deliveries(plan.lock_timeout)
            runner.apply_policy(policy, {**plan.waits, **removed(settings, leftovers)} if plan.waits else {})
        deliver = settings.deliver
        match self.delivery:
            case Push():
                self.delivery.set_timeout(deliver.timeout)
            case BatchPush():
                self.delivery.set_limits(deliver.timeout, deliver.most_requests)
        if deliver.mode == "push":
            self.dispatcher.set_concurrency(deliver.fixed_concurrency)
        moment = now()
        self.dispatcher.limits.set_rates(deliver.rate, deliver.group_rate, moment)
        for runner in self.runners:
            runner.lane.tick(moment)  # it sends what may go, and sets the timer for what waits for a rate

    def expect_queues(self) -> None:
        """Tell the lanes of a ladder, in force, ended or not begun: what a former owner wrote may wait in any queue."""
        for runner in self.runners:
            runner.expect_queues()

    def obey(self, holds: Holds) -> None:
        """Deliver nothing that these holds keep back, in all lanes."""
        for runner in self.runners:
            runner.lane.hold(holds, now())

    def decide(self, decisions: Mapping[str, DecisionRecord]) -> None:
        """Have the owners of waiting records carry out what operators have decided about them."""
        for runner in self.runners:
            runner.lane.decide(decisions, now())

    def rewrite_notes(self) -> None:
        """Have all lanes write again what they have noted of their partitions."""
        for runner in self.runners:
            runner.lane.rewrite_notes()

    def reset(self, orders: tuple[ResetOrder, ...], known: Resets) -> None:
        """Carry out these resets of positions, in all lanes, and deliver no copy that earlier ones have superseded."""
        for runner in self.runners:
            runner.lane.reset(orders, known, now())


def removed(settings: Settings, leftovers: Collection[str]) -> dict[str, int]:
    """Return the level topics that left the policy, with their delays in ms; their names say these."""
    names, mains = settings.names, settings.topic_names
    roles = {name: names.role(name, mains) or removed_role(names, name, mains) for name in leftovers}
    return {name: role.delay for name, role in roles.items() if role is not None and role.delay is not None}


def with_policy(sources: Sources, controller: PolicyController) -> Sources:
    """Return what a scrape reads, together with what the policy controller counts."""
    return dataclasses.replace(
        sources,
        instances_differ=controller.instances_differ,
        bad_policy_records=lambda: controller.bad_records,
        removed_levels=lambda: controller.removed_levels,
        holds_since=controller.holds.since,
    )


class NoPolicyTopic:
    """The policy follower of a broadcast: nothing is retried, so no policy is needed."""

    def __init__(self, controller: PolicyController) -> None:
        self._controller = controller

    def start(self) -> None:
        """Report that there is no policy to wait for."""
        self._controller.on_update(PolicyUpdate(records=(), look=None, caught_up=True, live=False))

    def stop(self) -> None:
        """Do nothing: no thread was started."""

    def join(self, timeout: float) -> None:
        """Do nothing: no thread was started."""

    def watched(self) -> list[WatchedThread]:
        return []


def pace_told(dispatcher: Dispatcher, membership: GroupMembership) -> PaceTold:
    """Return the pace as other instances see it; a probe is a part of its outage.

    While the service is away and no delivery has found that out, the state is `waiting`. For any thread: it only reads.
    """
    pace, absence = dispatcher.pace, membership.absence()
    if absence is not None and (membership.waits or pace.state not in AWAY):
        return PaceTold("waiting", absence.since, reason=absence.reason[:LONGEST_REASON])
    cause = None if pace.cause is None else str(pace.cause)
    return PaceTold(
        str(pace.state.shown),
        pace.since.wall_ms,
        dispatcher.in_flight,
        pace.limit,
        pace.reason[:LONGEST_REASON],
        cause,
        pace.idle_since(wall()),
    )


def refused_by(dispatcher: Dispatcher) -> tuple[Refused, ...]:
    """Return the topics whose records the service rejects. For any thread."""
    return () if dispatcher.refusals is None else dispatcher.refusals.refused


def refused_told(dispatcher: Dispatcher) -> tuple[RefusedTold, ...]:
    """Return the same as other instances see it, short enough for a heartbeat."""
    return tuple(
        RefusedTold(
            topic=one.topic,
            status=one.status,
            since=one.since_ms,
            method=one.sent.method,
            path=one.sent.path[:LONGEST_REASON],
            content_type=one.sent.content_type[:LONGEST_REASON],
            said=bool(one.text),
        )
        for one in refused_by(dispatcher)
    )


def build_policy_follower(
    settings: Settings,
    controller: PolicyController,
    dispatcher: Dispatcher,
    registry: CredentialRegistry,
    instance: str,
    overdue: Callable[[], int],
    membership: GroupMembership,
    signals: Signals,
) -> PolicyFollower | NoPolicyTopic:
    """Return the thread that follows the policy topic.

    `overdue`: ms by which a retry is late. It, `membership` and `signals` are asked on any thread.
    """
    if settings.deliver.broadcast:
        return NoPolicyTopic(controller)
    names = settings.names
    client = f"reconsume-{settings.group}-policy-{instance}"
    delivers = settings.deliver.mode != "relay"
    fixed = replace(heartbeat_of(settings), release=ReleaseTold(*this_release()), started=wall())
    own = InstanceInfo(
        instance,
        fixed,
        pace=lambda: pace_told(dispatcher, membership) if delivers else None,
        overdue=overdue,
        well=lambda: membership.works() if delivers else None,
        signals=signals,
        refused=lambda: refused_told(dispatcher),
        obeys=lambda: controller.obeys,
    )
    source = PolicySource(names, settings.topic_names, own)
    # It requests the committed offsets of the retry lanes. It never joins their group, and commits nothing.
    reader = follower_config(settings.kafka, names.retry_group, client)
    return PolicyFollower(
        reader, teller_config(settings.kafka, client), source, controller, registry.register("policy")
    )
