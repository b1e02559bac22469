"""When an instance is a member of the group: a pure state machine, driven by its service and by the other instances.

    state   | event                                                                          | next state
    --------|--------------------------------------------------------------------------------|-----------
    waiting | the service is well, and the back-off is over                                  | member
    waiting | the service is well, and no other instance is                                  | member
    waiting | no other instance was well for the time to leave                               | member
    member  | the service was not well for the time to leave, and another is well since then | waiting

A member whose service is broken keeps its partitions until another instance can take them. Two that break together must
not both leave. So "well since then" is a matter of order and not of clocks: in the policy topic the other's heartbeat
stands behind the one in which this instance said that it is not well (`Others.well_behind_ours`). The last
instance that says so finds no such heartbeat, and stays.
"""

from __future__ import annotations

from typing import NamedTuple

FIRST_REST = 30_000
"""ms from leaving to joining again, and from joining to leaving, at least. A service that comes and goes causes no more
than one rebalance in this time."""
LONGEST_REST = 300_000
"""ms to which the rest doubles while the service goes on failing. One that was well for so long begins anew."""
EMPTY_FOR = 120_000
"""ms after which a group without a well instance is joined all the same, where `leave_after` is null. A group without
members loses all its offsets after a week."""


class Others(NamedTuple):
    """What the heartbeats of the other instances say: is any of them well, and is one well since we are not?"""

    any_well: bool = False
    well_behind_ours: bool = False


class Participation:
    """Whether this instance takes part. All times are steady ms.

    `leave_after`: ms without a well service after which it leaves; None: never. `always`: it takes part from the start,
    and never leaves. `leaves`: it leaves at all; else it stays a member once it is one.
    """

    def __init__(self, leave_after: int | None, now: int, *, always: bool = False, leaves: bool = True) -> None:
        self.member = always
        self._always = always
        self._leave_after = leave_after if leaves and not always else None
        self._empty_for = EMPTY_FOR if leave_after is None else leave_after
        self._not_well_since: int | None = now
        """None: the service is well, as far as is known."""
        self._well_since = self._joined_at = now
        self._rest, self._not_before = FIRST_REST, now
        self._alone_since: int | None = None
        """Since when, while it waits, no other instance is well."""
        if always:
            self._not_well_since = None

    @property
    def service_well(self) -> bool:
        """Whether the service could be reached when that was last tried."""
        return self._not_well_since is None

    @property
    def works(self) -> bool:
        """What the heartbeat says: it is a member, and its service is well."""
        return self.member and self.service_well

    def service(self, well: bool, now: int) -> None:
        """Note whether the service can be reached, or its health URL is well."""
        if well and self._not_well_since is not None:
            self._not_well_since, self._well_since = None, now
        elif not well and self._not_well_since is None:
            self._not_well_since = now

    def turn(self, others: Others, now: int) -> bool:
        """Join or leave if it is time. Return whether that has changed. Call this every second or so."""
        before = self.member
        if self._always:
            return False
        if self.member:
            self._leave(others, now)
        else:
            self._join(others, now)
        return self.member != before

    def _join(self, others: Others, now: int) -> None:
        if others.any_well:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        alone_for = -1 if self._alone_since is None else now - self._alone_since
        rested = now >= self._not_before or alone_for >= 0
        if (self.service_well and rested) or alone_for >= self._empty_for:
            self.member, self._joined_at, self._alone_since = True, now, None

    def _leave(self, others: Others, now: int) -> None:
        since = self._not_well_since
        if since is None or self._leave_after is None or not others.well_behind_ours:
            return
        if now - since < self._leave_after or now - self._joined_at < FIRST_REST:
            return
        if since - max(self._joined_at, self._well_since) >= LONGEST_REST:
            self._rest = FIRST_REST
        self.member, self._not_before = False, now + self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)
