"""The membership in a group: what transactions commit under, and until when a revoked partition may be committed.

The group's coordinator checks the generation of a commit, not who owns the partition. That is safe as long as a member
rejoins only after it has given up what was revoked. librdkafka 2.16 rejoins earlier in two cases, and the partitions go
to the next member while deliveries are still awaited here:

- It learns in between that a topic has more partitions, or that its replicas have moved to other racks
  (librdkafka#4742): `rd_kafka_cgrp_metadata_update_check` does not ask whether a revocation is under way.
- Partitions are unassigned and assigned outside the callbacks, to be read from another offset, while a revocation waits
  to be learned: the client takes these calls for the answers to it and to the assignment behind it.

In both, the client keeps the second half of the first rebalance for later (`rkcg_rebalance_incr_assignment`). It is
"rebalancing" for ever then: it takes part in no further rebalance, and all members wait for it, as long as
`max.poll.interval.ms`. When the group has put it out, it ignores that too, and reads on what others own. Such a client
is `overtaken`, and is replaced (`client_watch.py`).

So what was revoked is committed under the generation that revoked it, and under no later one. Callbacks do not say of
which generation they are. But each rebalance of a classic group ends in one, so they can be counted.

Under KIP-848 (`group.protocol=consumer`) the coordinator itself waits until a partition is given up. Generations are
then epochs of the member, which may go up by more than one.

A revoked partition is given up in order, or at once where the group does not wait for that (`release`).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.listeners import AssignmentListener
from reconsume.sidecar.printable import plural

LOOK_EVERY = 0.02
"""Seconds between two checks whether the partitions may still be committed."""

_LOG = logging.getLogger("reconsume.assignment")


FORM = b"CGMDv2:"
"""How librdkafka's serialized group metadata begins. The generation follows as an int32 of the machine's byte order,
then group and member id, each with a zero byte behind it."""

NEVER_WAS = -2
"""A generation that no group has."""

REFUSALS = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.UNSUPPORTED_ASSIGNOR,
    }
)
"""Answers by which a group does not take a member. The client asks again and again, and reads nothing meanwhile."""


class Membership(NamedTuple):
    """What a transaction needs: the group metadata, and the epochs of the partitions that were ours at that moment."""

    metadata: Any
    epochs: Mapping[Partition, int]


class GroupMembership:
    """The membership of one consumer; used on the consumer's thread, but `current` may be read by any.

    `stepwise`: each rebalance is one generation and ends in a callback, as in a classic group.
    """

    def __init__(self, *, stepwise: bool) -> None:
        self.current: Membership | None = None
        """Replaced as a whole: the committer's thread always sees metadata and epochs of the same moment."""
        self.refused = ""
        """Why the group does not take this member; empty once it does."""
        self.is_asked = threading.Event()
        """Set, by any thread, while a renewal is requested."""
        self._stepwise = stepwise
        self.overtaken = False
        """Whether the group moved on while this member was still in a revocation: the client is of no more use."""
        self._revoked: int | None = None
        """The generation in which the last revocation ended, until the callback behind it."""
        self._subscribed = False
        """Whether other topics were subscribed to since the last callback: the client may revoke some by itself then,
        before it joins again for that."""
        self._served: int | None = None
        """The generation of the last rebalance whose callbacks were called, or an earlier one. None: not known."""
        self._looked: int | None = None

    def rebalanced(self, consumer: Consumer, epochs: Mapping[Partition, int]) -> None:
        """Take the membership at the end of a rebalance, in the callback that gives new partitions."""
        self.refused = ""
        generation = generation_of(metadata_of(consumer))
        self.overtaken |= self._stepwise and self._revoked is not None and generation != self._revoked
        self._revoked, self._subscribed = None, False
        if self._served is None or generation is None:
            self._served = generation
        else:
            self._served = min(self._served + 1, generation)
        self.take_metadata(consumer, epochs)

    def revoked(self, consumer: Consumer, *, given_away: bool) -> None:
        """Note that a revocation has ended. `given_away`: the group did not wait for that."""
        # `NEVER_WAS` is no generation: the next callback finds that the group has moved on.
        if given_away or not self._subscribed:
            self._revoked = NEVER_WAS if given_away else generation_of(metadata_of(consumer))

    def subscribed(self) -> None:
        """Note that the client is told to subscribe to other topics."""
        self._subscribed = True

    def note_client_error(self, code: int, text: str) -> None:
        """Take in an error of the client. `text`: what is said of it to people."""
        if code in REFUSALS:
            self.refused = text

    def take_metadata(self, consumer: Consumer, epochs: Mapping[Partition, int]) -> None:
        """Take the membership.

        The metadata stays the old one while the group is too far ahead: the broker then refuses to commit anything.
        """
        metadata = metadata_of(consumer)
        if self.current is not None and self._is_ahead(generation_of(metadata)):
            metadata = self.current.metadata
        self.current = None if metadata is None else Membership(metadata, epochs)

    def is_overtaken(self, consumer: Consumer) -> bool:
        """Whether the group is more than one rebalance ahead of the last callback.

        A revocation that is learned now may be of the rebalance before, and its partitions may be another member's. The
        same is true for a while after a rebalance was cut off before its end. That cannot be told apart, and costs only
        deliveries that happen twice.
        """
        return self._is_ahead(generation_of(metadata_of(consumer)))

    def has_moved_on(self, consumer: Consumer) -> bool:
        """Whether the group has a later generation than the one that was taken last."""
        now = metadata_of(consumer)
        return self.current is not None and now is not None and now != self.current.metadata

    def may_subscribe(self, consumer: Consumer) -> bool:
        """Return whether the client takes another subscription: it is a member.

        A client that has lost its membership and joins again ends the process at a `subscribe` (the assertion in
        `rd_kafka_cgrp_modify_subscription`, librdkafka 2.16). It has no member id then, and does not put the call off
        as it does in every other rebalance.
        """
        # A membership that the client's thread loses between this question and the call is not seen. That takes
        # microseconds, and of a member with partitions the client waits for the callback first.
        metadata = metadata_of(consumer)
        return metadata is not None and member_of(metadata) != ""

    def note_generation(self, consumer: Consumer) -> None:
        """Call this every ten seconds or so, between two polls.

        A generation that has lasted from one call to the next has no callback left to be called.
        """
        generation = generation_of(metadata_of(consumer))
        if generation is not None and generation == self._looked:
            self._served = generation
        self._looked = generation

    def lose(self) -> None:
        """Forget the group's generations: all is lost, and the client joins as a new member."""
        self._served = self._looked = self._revoked = None
        self.overtaken = False

    def end_membership(self) -> None:
        """Commit nothing more: the group is left."""
        self.current, self.refused = None, ""
        self.lose()

    def _is_ahead(self, generation: int | None) -> bool:
        if not self._stepwise or self._served is None or generation is None:
            return False
        return generation > self._served + 1


def metadata_of(consumer: Consumer) -> Any:
    """Return the client's group metadata; None if it has left the group, as it may with its last partition."""
    try:
        return consumer.consumer_group_metadata()
    except RuntimeError:
        return None


def generation_of(metadata: object) -> int | None:
    """Return the generation in serialized group metadata; None if it has another form."""
    if not isinstance(metadata, bytes) or not metadata.startswith(FORM):
        return None
    return int.from_bytes(metadata[len(FORM) : len(FORM) + 4], sys.byteorder, signed=True)


def member_of(metadata: object) -> str | None:
    """Return the member id in serialized group metadata: empty if there is none, None if it has another form."""
    if not isinstance(metadata, bytes) or not metadata.startswith(FORM):
        return None
    _group, member, *_ = metadata[len(FORM) + 4 :].split(b"\0")
    return member.decode()


def release(
    sources: Sequence[Partition], listener: AssignmentListener, lock_timeout: float, is_given_away: Callable[[], bool]
) -> bool:
    """Wait until nothing of the partitions is under way. Drop them after `lock_timeout` seconds.

    Drop them at once if they may be another member's already: then nothing of them may be committed any more. Return
    whether that was so.
    """
    done = threading.Event()
    listener.release(sources, done.set)
    deadline = time.monotonic() + lock_timeout
    while not done.wait(LOOK_EVERY) and time.monotonic() < deadline:
        if is_given_away():
            drop_given_away(sources, listener)
            return True
    if not done.is_set():
        text = "gave up %s with deliveries still out: %s"
        extra = {"event": "gave-up-unanswered", "about": list(map(str, sources))}
        _LOG.warning(text, plural(len(sources), "partition"), _names(sources), extra=extra)
        listener.dropped(sources)
    return False


def drop_given_away(sources: Sequence[Partition], listener: AssignmentListener) -> None:
    """Drop partitions that may be another member's already; commit nothing more of them."""
    text = "the group gave %s away before this instance had released it: %s"
    extra = {"event": "given-away", "about": list(map(str, sources))}
    _LOG.warning(text, plural(len(sources), "partition"), _names(sources), extra=extra)
    listener.dropped(sources)


def _names(sources: Sequence[Partition]) -> str:
    return ", ".join(str(source) for source in sources)
