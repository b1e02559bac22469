"""Faults of the pods of ordered groups, and the person who settles what they have parked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.soak.cluster import insist
from tests.soak.faults_pods import heal, roll
from tests.soak.ordered.kinds import SLOTS
from tests.soak.ordered.side import OrderedSide
from tests.soak.pod import Pod
from tests.soak.schedule import Step
from tests.soak.world import Fault, World


@contextmanager
def one_killed(world: World, step: Step) -> Iterator[str]:
    """SIGKILL of one pod; the same container comes back."""
    side, slot = _chosen(world, step)
    with _killed(side, [side.pods.pod(slot)]) as said:
        yield said


@contextmanager
def all_killed(world: World, step: Step) -> Iterator[str]:
    """SIGKILL of all pods of a group: nobody remembers anything."""
    side, _ = _chosen(world, step)
    with _killed(side, side.pods.all()) as said:
        yield said


@contextmanager
def paused(world: World, step: Step) -> Iterator[str]:
    """SIGSTOP beyond the session: another takes over what waits, and the former owner wakes."""
    side, slot = _chosen(world, step)
    pod = side.pods.pod(slot)
    with side.pods.paused(pod) as said:
        yield said
        group = side.group.group
        insist(lambda: not any(pod.name in name for name in side.cluster.members(group)), f"{pod.name} is out", 60)
        world.confirm(step, f"{pod.name} is no member any more")


@contextmanager
def rolled_out(world: World, step: Step) -> Iterator[str]:
    """Every pod is replaced by one that retries in another way (`OrderedKind.rolled`), and later back."""
    side, slot = _chosen(world, step)
    violent = step.pick // 8 % (SLOTS + 1) - 1
    try:
        yield roll(side.pods, world.sleep, "rolled", violent)
    finally:
        world.confirm(step, roll(side.pods, world.sleep, "base", slot))


@contextmanager
def settled(world: World, step: Step) -> Iterator[str]:
    """A person decides about what is parked."""
    yield "; ".join(f"{side.kind.name}: {side.settler.settle()}" for side in world.ordered)


def _chosen(world: World, step: Step) -> tuple[OrderedSide, int]:
    """A group, and a slot of its pods."""
    return world.ordered[step.pick % len(world.ordered)], step.pick // 2 % SLOTS


@contextmanager
def _killed(side: OrderedSide, pods: Sequence[Pod]) -> Iterator[str]:
    try:
        yield "; ".join(side.pods.kill(pod) for pod in pods)
    finally:
        for pod in pods:
            side.pods.start_again(pod)


def heal_all(world: World) -> None:
    """The pods that each group began with, of its base configuration."""
    for side in world.ordered:
        heal(side.pods)


FAULTS: dict[str, Fault] = {
    "ordered-kill": one_killed,
    "ordered-all-killed": all_killed,
    "ordered-pause": paused,
    "ordered-rollout": rolled_out,
    "parked-settled": settled,
}
