"""Faults of pods: killed, ended, paused, joined by another, and rolled out with another configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.soak.cluster import insist
from tests.soak.layout import SLOTS
from tests.soak.pod import Pod
from tests.soak.pods import Pods
from tests.soak.schedule import Step
from tests.soak.world import Fault, World

FOURTH = SLOTS
BETWEEN = 3.0
"""Seconds between two pods of a roll-out."""


@contextmanager
def killed(world: World, step: Step) -> Iterator[str]:
    """SIGKILL; the same container comes back."""
    with _ended(world, [world.pods.pod(step.pick % SLOTS)]) as pods:
        yield "; ".join(world.pods.kill(pod) for pod in pods)


@contextmanager
def two_killed(world: World, step: Step) -> Iterator[str]:
    """SIGKILL of two at once."""
    left = step.pick % SLOTS
    with _ended(world, [world.pods.pod(slot) for slot in range(SLOTS) if slot != left]) as pods:
        yield "; ".join(world.pods.kill(pod) for pod in pods)


@contextmanager
def terminated(world: World, step: Step) -> Iterator[str]:
    """SIGTERM; the same container comes back."""
    with _ended(world, [world.pods.pod(step.pick % SLOTS)]) as pods:
        yield "; ".join(world.pods.terminate(pod) for pod in pods)


@contextmanager
def paused_shortly(world: World, step: Step) -> Iterator[str]:
    """SIGSTOP for less than the session: nobody notices."""
    with world.pods.paused(world.pods.pod(step.pick % SLOTS)) as said:
        yield said


@contextmanager
def paused_long(world: World, step: Step) -> Iterator[str]:
    """SIGSTOP beyond the session: others take its partitions, and it wakes as an owner of the past."""
    pod = world.pods.pod(step.pick % SLOTS)
    with world.pods.paused(pod) as said:
        yield said
        insist(lambda: _lanes_with(world, pod) == 0, f"{pod.name} is no member any more", 60)
        world.confirm(step, f"{pod.name} is no member of either group any more")


@contextmanager
def joined(world: World, step: Step) -> Iterator[str]:
    """A fourth pod comes, gets partitions, and leaves in order: what waits in a level changes hands twice."""
    pod = world.pods.launch(FOURTH)
    try:
        if not world.pods.await_ready(pod):
            world.confirm(step, f"{pod.name} is not ready yet")
        insist(lambda: _lanes_with(world, pod) == 2, f"{pod.name} is a member of both groups")
        yield f"{pod.name} is a member of both groups"
    finally:
        world.confirm(step, world.pods.terminate(pod))


@contextmanager
def rolled_out(world: World, step: Step) -> Iterator[str]:
    """Every pod is replaced by one of another configuration, and later back: for a while two are in one group."""
    try:
        yield roll(world.pods, world.sleep, step.kind, step.pick // SLOTS % SLOTS)
    finally:
        world.confirm(step, roll(world.pods, world.sleep, "base", step.pick // SLOTS % SLOTS))


def roll(pods: Pods, sleep: Callable[[float], object], variant: str, killed_slot: int) -> str:
    """One pod after another: the new one first, then the old one ends. The one in `killed_slot` is killed."""
    said = []
    for slot in range(pods.slots):
        old = pods.pod(slot)
        new = pods.launch(slot, variant)
        ready = pods.await_ready(new)
        said.append(pods.kill(old) if slot == killed_slot else pods.terminate(old))
        said.append(f"{new.name} ({variant}) is {'ready' if ready else 'not ready yet'}")
        sleep(BETWEEN)
    return "; ".join(said)


def _lanes_with(world: World, pod: Pod) -> int:
    """Of how many of the product's groups the pod is a member."""
    cluster = world.cluster
    return sum(any(pod.name in client for client in cluster.members(lane)) for lane in cluster.lanes)


@contextmanager
def _ended(world: World, pods: list[Pod]) -> Iterator[list[Pod]]:
    try:
        yield pods
    finally:
        for pod in pods:
            world.pods.start_again(pod)


def heal_all(world: World) -> None:
    """Whatever was left behind by faults that broke: three pods of the base configuration run, and no other."""
    heal(world.pods)


def heal(pods: Pods) -> None:
    """A pod of the base configuration runs in each slot, and no other."""
    pods.end_former()
    for pod in pods.all():
        if pod.slot >= pods.slots and pod.process.running:
            pods.terminate(pod)
        elif pod.slot < pods.slots and pod.variant != "base":
            pods.terminate(pod)
            pods.launch(pod.slot)
        elif pod.slot < pods.slots and not pod.process.running:
            pods.start_again(pod)


FAULTS: dict[str, Fault] = {
    "pod-kill": killed,
    "two-pods-killed": two_killed,
    "pod-term": terminated,
    "pod-pause-short": paused_shortly,
    "pod-pause-long": paused_long,
    "pod-joins": joined,
    "rollout-topics": rolled_out,
    "rollout-ladder": rolled_out,
}
