"""Stories of pods that leave their group while their service is away, and join it again as it comes back.

The first ones are of the lanes, which live on without their consumers. The last one is of who leaves at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.participation import Participation
from reconsume.sidecar.group_policy.state import ControlState, Peers
from reconsume.topics.policy_record import InstanceHeard, SubscriptionRecord
from tests.sim.checker import check
from tests.sim.order_checker import check_ordered
from tests.sim.plan import Plan
from tests.sim.stories import ROLLOUTS, plans, story
from tests.sim.world import World
from tests.support.control_log import said

LEAVE = 10_000


@story
@given(plans("outside", "outside", "outage", "join", sidecars=st.integers(1, 3)))
def test_a_pod_that_leaves_and_comes_back_loses_nothing_and_counts_nothing_twice(plan: Plan) -> None:
    check(World(plan).run())


@story
@given(
    plans(
        "outside", "outside", "join", "revoke", "crash", "freeze", "lose", "grow", "hang", "rollout", configs=ROLLOUTS
    )
)
def test_pods_leave_and_come_back_while_everything_else_goes_wrong(plan: Plan) -> None:
    check(World(plan).run())


@story
@given(plans("outside", "outside", "join", "crash", order=st.just("key"), failures=st.none(), tries=st.just(3)))
def test_ordered_records_wait_for_the_pod_that_has_left(plan: Plan) -> None:
    check_ordered(World(plan).run())


def heartbeat(at: int, well: bool | None) -> SubscriptionRecord:
    """As an instance writes it; None: one of a version without `well`."""
    return SubscriptionRecord({}, at) if well is None else SubscriptionRecord({}, at, well=well)


class Pod:
    """One instance: its state, and the heartbeats that it has read of the topic. `old`: of a version without `well`."""

    def __init__(self, name: str, *, old: bool) -> None:
        self.name, self.old, self.state = name, old, Participation(LEAVE, 0, always=old)
        self.peers, self.log = Peers(name), ControlState()
        self.told: bool | None = None
        self.read = 0

    def turn(self, topic: list[tuple[str, bool | None]], at: int, read: int) -> None:
        """Read so many heartbeats more, decide, and publish a change."""
        for name, well in topic[self.read : self.read + read]:
            beat = InstanceHeard(name, heartbeat(at, well))
            self.peers.hear(name, beat.record, self.log.next_offset, live=True)
            for record in said(beat, at=at, begin=self.log.next_offset):
                self.log.apply(record, at)
            if name != self.name and well is False and (self.old or self.state.works):
                topic.append((self.name, None if self.old else True))
        self.read = min(len(topic), self.read + read)
        self.state.turn(self.peers.others(self.log.beats, at), at)
        if self.state.works != self.told:
            self.told = self.state.works
            topic.append((self.name, None if self.old else self.told))


Event = tuple[int, bool, list[int]]
READS = st.lists(st.integers(0, 3), min_size=3, max_size=3)


@story
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), READS), max_size=80), st.booleans())
def test_instances_that_break_together_never_all_leave(events: Iterable[Event], old: bool) -> None:
    """Whatever each of them has read of the others when, a group that was joined keeps a member."""
    pods = [Pod("a", old=old), Pod("b", old=False), Pod("c", old=False)]
    topic, at, joined = list[tuple[str, bool | None]](), 0, False
    for whom, well, reads in events:
        pods[whom].state.service(well, at)
        for _ in range(8):
            at += 2_000
            for pod, read in zip(pods, reads, strict=True):
                pod.turn(topic, at, read)
        joined = joined or any(pod.state.member for pod in pods)
        assert not joined or any(pod.state.member for pod in pods)
