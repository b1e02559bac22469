"""Faults of the network between pods and nodes: packets that are lost, and requests of transactions that come late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.soak.layout import SLOTS
from tests.soak.schedule import Step
from tests.soak.world import Fault, World
from tests.support.kafka.packet_loss import AVAILABLE
from tests.support.kafka.proxy_frames import error_of
from tests.support.kafka.proxy_rules import Api, Late, Moment, Rule

LATE = {"late-ends": Api.END_TXN, "late-offsets": Api.TXN_OFFSET_COMMIT}
COMES = 10.0
"""Seconds in which a lane with something to do begins a transaction. Under other faults there may be none."""
ANSWERED = 5.0


@contextmanager
def packets_lost(world: World, step: Step) -> Iterator[str]:
    """All that pods send to one node, or to any node, is lost; what nodes send arrives."""
    proxies = world.network.proxies
    chosen = step.pick % (len(proxies) + 1)
    lossy = proxies if chosen == len(proxies) else [proxies[chosen]]
    with ExitStack() as stack:
        for proxy in lossy if AVAILABLE else ():
            stack.enter_context(proxy.packets_lost())
        where = "any node" if lossy is proxies else f"node {chosen}"
        yield f"packets to {where} are lost" if AVAILABLE else "none are lost: that needs Linux"


@contextmanager
def late_request(world: World, step: Step) -> Iterator[str]:
    """A request of one lane's transaction is kept, and sent again by its client; later it arrives all the same, mostly
    in the midst of another transaction. The client is cut off, or closes the connection when nothing comes."""
    group, pod = world.group, world.pods.pod(step.pick % SLOTS)
    lane = (group.group, group.names.retry_group)[step.pick // SLOTS % 2]
    late = Late(LATE[step.kind], f"-{lane}-{pod.name}", cut=step.pick // SLOTS // 2 % 2 == 0)
    with world.network.rule(late):
        if not late.fired.wait(COMES):
            yield f"{pod.name} has made no transaction in {lane}"
            return
        yield f"the {late.api.name} of {pod.name} in {lane} is late"
        world.confirm(step, _deliver(world, late))


def _deliver(world: World, late: Late) -> str:
    """Before the next transaction takes the group's offsets in, or without one; what the broker says."""
    with world.network.rule(Rule(Api.ADD_OFFSETS_TO_TXN, late.client, Moment.ARRIVED, behind=late)):
        midst = late.answered.wait(ANSWERED)
    late.deliver()
    if not late.answered.wait(ANSWERED):
        return "it never arrived: the node behind its connection has gone"
    return f"it came {'in the midst of a transaction' if midst else 'between transactions'}: error {error_of(late)}"


def heal_all(world: World) -> None:
    """What the proxies themselves could not do is no fault of the cluster."""
    world.broken += world.network.problems


FAULTS: dict[str, Fault] = {"packets-lost": packets_lost, **dict.fromkeys(LATE, late_request)}
