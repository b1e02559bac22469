"""Which flow may take the next place: the places are divided among those that have ready records, lane by lane.

They are divided again when a flow begins or ends to have ready records, or the limit is another one; in between a flow
is only looked for.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from reconsume.sidecar.core.invariant import ensure
from reconsume.sidecar.core.pace.lane_turns import HAD, took
from reconsume.sidecar.core.pace.shares import divide, has_share, next_flow
from reconsume.sidecar.core.pace.topic_turns import Flow, ReadyFlows, TopicFlows
from reconsume.sidecar.core.record import NEVER

TURNS = 16
"""One part in this many of the places is how many records go in one turn, where that is more than a request holds. With
less the choices would cost more; with more, a flow that comes would wait longer."""


class FlowTurns:
    """The turns of the flows of all lanes. `lanes`: the flows of each lane. `unit`: as of the dispatcher.

    Invariants, while the places are divided: each lane that waits is one of `lanes`; where one topic is alone, its lane
    is the only one that waits.
    """

    def __init__(self, lanes: Sequence[ReadyFlows], unit: int) -> None:
        self._lanes, self._unit = lanes, unit
        self.waiting_lanes: list[ReadyFlows] = []
        """The lanes that had ready records when the places were divided, the next one first."""
        self._only: TopicFlows | None = None
        """The topic that alone had ready records then."""
        self._topics = 0
        """How many topics the instance owns; 0 if they must be counted again."""
        self.limit = 0
        """The limit for which the places were divided; 0 if they must be divided again."""
        self.usable = NEVER
        """The places that flows may take now, as far as is known: where shares keep places free it is less than the
        limit, and a flow need not be searched for at each answer. NEVER if it is not known."""
        self.length = unit
        """Records of a turn."""

    def changed(self) -> None:
        """Note that a flow begins or ends to have ready records."""
        self.limit, self.usable = 0, NEVER

    def topics_changed(self) -> None:
        """Note that the instance owns other topics."""
        self._topics = self.limit = 0

    def divide(self, limit: int) -> None:
        """Divide so many places among the flows that have ready records."""
        self.limit, self._only = limit, None
        waiting = self.waiting_lanes = [ready for ready in self._lanes if ready.turns]
        if not waiting:
            self.usable = 0
            return
        self.length, self.usable = limit // TURNS, NEVER
        if self.length < self._unit:  # a request that is not full costs as much as a full one
            self.length = self._unit
        self._topics = self._topics or sum(len(ready.topics) for ready in self._lanes)
        divide(waiting, limit, self._unit, self._topics)
        # Contract 8.8: lanes have their parts by their weights, so the one that has had least goes first.
        if len(waiting) > 1:
            waiting.sort(key=HAD)
        elif len(waiting[0].turns) == 1:
            self._only = waiting[0].turns[0]

    def next(self, in_flight: int) -> Flow | None:
        """Return the next flow that may take a place; None if there is none, while so many deliveries are out."""
        topic = self._only
        # One topic alone needs no shares compared; its flows still take turns, and keep to theirs.
        if topic is not None and has_share(flow := topic.turns[0]):
            topic.turns.rotate(-1)
            return flow
        for ready in self.waiting_lanes:
            if (chosen := next_flow(ready)) is not None:
                if topic is None:  # what another topic gives up may be of use to more than one flow
                    self.usable = NEVER
                return chosen
        self.usable = in_flight
        return None

    def took(self, flow: Flow, sent: int) -> None:
        """Note that a flow's lane has had a turn while others wait, and put the lane that has had least first."""
        took(flow.ready, sent, self.waiting_lanes)
        self.waiting_lanes.remove(flow.ready)
        insort(self.waiting_lanes, flow.ready, key=HAD)

    def check(self) -> None:
        """Raise BrokenInvariantError if an invariant does not hold."""
        if self.limit == 0:
            return
        ensure(all(ready in self._lanes for ready in self.waiting_lanes), "each lane that waits takes turns")
        ensure(self._only is None or len(self.waiting_lanes) == 1, "a topic is alone in its lane, and that one alone")
