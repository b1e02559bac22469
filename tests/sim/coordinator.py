"""Who gets which partition, and when: a group's coordinator as the stories use it, which tries every way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from reconsume.sidecar.core.record import Partition
from tests.sim.group_model import GroupModel, Membership

if TYPE_CHECKING:
    from tests.sim.process import LaneHost
    from tests.sim.world import World


class Coordinator:
    """One group's. Hosts are its members."""

    def __init__(self, world: World, group: str) -> None:
        self.world, self.group = world, group
        self.model = GroupModel()
        self.hosts: dict[str, LaneHost] = {}
        self.leaving: set[Partition] = set()
        """Partitions that their owner has been asked to give up."""
        self._names = count()
        self._dealing = False
        self._releasing: dict[str, Sequence[Partition]] = {}
        """What members are giving up in a callback that has not ended yet."""
        self._not_before: dict[Partition, int] = {}

    # --- members -----------------------------------------------------------------------------------------------------

    def join(self, host: LaneHost, *, at_once: bool = False) -> None:
        """A member comes, and is given a part of what others hold."""
        host.member = f"{host.process.name}-{next(self._names)}"
        self.model.join(host.member, host.topics)
        self.hosts[host.member] = host
        for other in list(self.hosts.values()):
            if other is not host and not at_once:
                mine = [source for source in self.held(other) if source.topic in host.topics]
                self.revoke(other, [source for source in mine if self.world.random.random() < 0.5])
        self.changed()

    def widen(self, host: LaneHost) -> None:
        """A member asks for other topics."""
        if host.member in self.hosts:
            self.model.join(host.member, host.topics)
            self.changed()

    def expel(self, host: LaneHost, after: int) -> None:
        """Put a member out that does not answer; it learns of it when it asks next."""
        del self.hosts[host.member]
        self._free_all(self.model.leave(host.member), after)

    def leave(self, host: LaneHost) -> None:
        """A member that has given everything up leaves."""
        if host.member in self.hosts:
            self.expel(host, 0)

    def membership(self, host: LaneHost) -> Membership:
        """What a member knows of itself once it has asked."""
        return self.model.membership(host.member)

    def refusal(self, metadata: object) -> str:
        """What is said to a commit."""
        assert isinstance(metadata, Membership)
        return self.model.refusal(metadata)

    def changed(self) -> None:
        """There is a new generation: the members hear of it one after the other, and what is free is dealt."""
        for host in self.hosts.values():
            host.process.later(self.world.random.choice((0, 5, 300)), partial(self._tell, host, host.member))
        self.deal_soon(self.world.random.choice((0, 5, 400)))

    def _tell(self, host: LaneHost, member: str) -> None:
        if host.member == member and member in self.hosts:
            host.client.metadata = self.membership(host)

    # --- partitions --------------------------------------------------------------------------------------------------

    def held(self, host: LaneHost) -> list[Partition]:
        """What a member owns and has not been asked to give up."""
        owners = self.model.owners if takes_part(host) else {}
        return [source for source, owner in owners.items() if owner == host.member and source not in self.leaving]

    def deal_soon(self, ms: int) -> None:
        """Give what is free to somebody, a little later."""
        if not self._dealing:
            self._dealing = True
            self.world.later(ms, self._deal)

    def _deal(self) -> None:
        self._dealing = False
        dealt: dict[str, list[Partition]] = {}
        for source in self.world.kafka.logs:
            if source in self.model.owners:
                continue
            if self._not_before.get(source, 0) > self.world.steady_ms:
                self.deal_soon(self._not_before[source] - self.world.steady_ms)
                continue
            takers = [name for name, host in self.hosts.items() if source.topic in host.topics and takes_part(host)]
            if takers:
                dealt.setdefault(self.world.random.choice(takers), []).append(source)
        for name, places in dealt.items():
            for source in places:
                self.model.give(name, source)
            self.hosts[name].client.rebalance("on_assign", places)
            self.hosts[name].turn_soon()
        if dealt:
            self.changed()

    def revoke(self, host: LaneHost, places: Sequence[Partition], after: int = 0) -> None:
        """Ask a member to give partitions up; somebody gets them so many ms later."""
        if places:
            self.leaving |= set(places)
            for source in places:
                self._not_before[source] = self.world.steady_ms + after
            host.client.rebalance("on_revoke", list(places))
            host.turn_soon()

    def forget(self, topic: str) -> None:
        """A topic is gone: who holds partitions of it is asked to give them up."""
        for host in list(self.hosts.values()):
            self.revoke(host, [source for source in self.held(host) if source.topic == topic])

    def begin(self, host: LaneHost, kind: str, places: Sequence[Partition]) -> None:
        """A member's client calls back; the group waits for the end of that."""
        host.client.metadata = self.membership(host)
        if host.member in self.hosts:
            self.model.waited_for[host.member] = self.model.generation
            self._releasing[host.member] = places if kind == "on_revoke" else ()

    def done(self, host: LaneHost, kind: str) -> None:
        """A member has run its callback; one that has lost everything joins anew."""
        self.model.waited_for.pop(host.member, None)
        released = self._releasing.pop(host.member, ())
        if kind == "on_lost":
            host.client.metadata = None
        if kind == "on_lost" and not host.closing:
            self.join(host)
        if released and host.member in self.hosts:
            self._give_up(host, released)

    def topics_changed(self) -> None:
        """librdkafka rejoins at that, also out of a callback: what is being given up is another member's at once."""
        for name, places in list(self._releasing.items()):
            host = self.hosts.get(name)
            if host is not None and places and self.world.random.random() < 0.5:
                self.world.given_away(host, places)
                self.model.waited_for.pop(name, None)
                self._releasing[name] = ()
                self._give_up(host, places)

    def _give_up(self, host: LaneHost, places: Sequence[Partition]) -> None:
        mine = [source for source in places if self.model.owners.get(source) == host.member]
        self._free_all(self.model.free(mine), 0)

    def _free_all(self, places: Sequence[Partition], after: int) -> None:
        self.leaving -= set(places)
        for source in places:
            self._not_before[source] = max(self._not_before.get(source, 0), self.world.steady_ms + after)
        self.changed()


def takes_part(host: LaneHost) -> bool:
    """Whether a member is given partitions, and asked for them: also while it waits before it leaves."""
    return host.leaving or not host.closing
