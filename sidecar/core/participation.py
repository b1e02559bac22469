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

    `leave_after_ms`: without a well service it leaves after so long; None: never. `always`: it takes part from the
    start, and never leaves. `leaves`: it leaves at all; else it stays a member once it is one.
    """

    def __init__(self, leave_after_ms: int | None, now_ms: int, *, always: bool = False, leaves: bool = True) -> None:
        self.member = always
        self._always = always
        self._leave_after_ms = leave_after_ms if leaves and not always else None
        self._empty_for_ms = EMPTY_FOR if leave_after_ms is None else leave_after_ms
        self._not_well_since_ms: int | None = now_ms
        """None: the service is well, as far as is known."""
        self._well_since_ms = self._joined_at_ms = now_ms
        self._rest_ms, self._not_before_ms = FIRST_REST, now_ms
        self._alone_since_ms: int | None = None
        """Since when, while it waits, no other instance is well."""
        if always:
            self._not_well_since_ms = None

    @property
    def service_well(self) -> bool:
        """Whether the service could be reached when that was last tried."""
        return self._not_well_since_ms is None

    @property
    def works(self) -> bool:
        """What the heartbeat says: it is a member, and its service is well."""
        return self.member and self.service_well

    def service(self, well: bool, now_ms: int) -> None:
        """Note whether the service can be reached, or its health URL is well."""
        if well and self._not_well_since_ms is not None:
            self._not_well_since_ms, self._well_since_ms = None, now_ms
        elif not well and self._not_well_since_ms is None:
            self._not_well_since_ms = now_ms

    def turn(self, others: Others, now_ms: int) -> bool:
        """Join or leave if it is time. Return whether that has changed. Call this every second or so."""
        before = self.member
        if self._always:
            return False
        if self.member:
            self._leave(others, now_ms)
        else:
            self._join(others, now_ms)
        return self.member != before

    def _join(self, others: Others, now_ms: int) -> None:
        if others.any_well:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        alone_for_ms = -1 if self._alone_since_ms is None else now_ms - self._alone_since_ms
        rested = now_ms >= self._not_before_ms or alone_for_ms >= 0
        # Contract 9.2: a service that is well, or a group in which no instance is.
        if (self.service_well and rested) or alone_for_ms >= self._empty_for_ms:
            self.member, self._joined_at_ms, self._alone_since_ms = True, now_ms, None

    def _leave(self, others: Others, now_ms: int) -> None:
        since_ms = self._not_well_since_ms
        # Contract 9.3: it leaves only if another instance was well since then: two that break together must not both
        # leave.
        if since_ms is None or self._leave_after_ms is None or not others.well_behind_ours:
            return
        if now_ms - since_ms < self._leave_after_ms or now_ms - self._joined_at_ms < FIRST_REST:
            return
        if since_ms - max(self._joined_at_ms, self._well_since_ms) >= LONGEST_REST:
            self._rest_ms = FIRST_REST
        self.member, self._not_before_ms = False, now_ms + self._rest_ms
        self._rest_ms = min(2 * self._rest_ms, LONGEST_REST)
