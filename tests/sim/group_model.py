"""A model of a group's coordinator: who is a member, under which generation, and who owns what.

It moves partitions cooperatively: nobody gets one before its owner has given it up, or before the owner's client has
rejoined without it. Which member gets which is told from outside, so that stories can try every way.
"""

from __future__ import annotations

from typing import NamedTuple

from reconsume.sidecar.core.record import Partition


class Membership(NamedTuple):
    """What a member knows of itself, and sends along with the offsets of a transaction."""

    member: str
    generation: int


class GroupModel:
    """One group. A change of its members or of their partitions begins a new generation."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, frozenset[str]] = {}
        """The topics that each member has asked for."""
        self.owners: dict[Partition, str] = {}
        self.waited_for: dict[str, int] = {}
        """Members that are in a callback, and the generation in which: the group cannot get a new one without them."""

    def join(self, member: str, topics: frozenset[str]) -> None:
        """Become a member, or ask for other topics."""
        self.members[member] = topics
        self.generation += 1

    def leave(self, member: str) -> list[Partition]:
        """Leave, or be put out; the partitions that are free now."""
        del self.members[member]
        self.waited_for.pop(member, None)
        self.generation += 1
        return self.free([source for source, owner in self.owners.items() if owner == member])

    def free(self, places: list[Partition]) -> list[Partition]:
        """Partitions are given up."""
        for source in places:
            del self.owners[source]
        return places

    def give(self, member: str, source: Partition) -> None:
        """A free partition gets an owner."""
        assert source not in self.owners, "nobody gets a partition before its owner has given it up"
        assert source.topic in self.members[member], "nobody gets what it has not asked for"
        self.owners[source] = member
        self.generation += 1

    def membership(self, member: str) -> Membership:
        """What a member learns with the next answer of the coordinator."""
        return Membership(member, self.waited_for.get(member, self.generation))

    def refusal(self, membership: Membership) -> str:
        """What the coordinator says to a commit under a membership; empty when it takes it."""
        if membership.member not in self.members:
            return "UNKNOWN_MEMBER_ID"
        present = self.waited_for.get(membership.member, self.generation)
        return "" if membership.generation == present else "ILLEGAL_GENERATION"
