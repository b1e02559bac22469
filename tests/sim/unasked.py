"""Nothing is left to a later event: between two calls, lanes that are ticked although nobody asked find nothing to do.

What a call has led to, it does itself, or it asks to be called in time for it. Else it would stand on an idle instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconsume.sidecar.core.pace.rates import GRAIN_MS
from tests.sim.lane_view import view

if TYPE_CHECKING:
    from tests.sim.process import Process


def nothing_is_left(process: Process) -> None:
    """Tick both lanes of a process before they have asked for it: they do nothing, and ask for no earlier time.

    A lane that is more than half full looks again at each call, so it is left out; and for so long as a rate gives
    tokens that nobody is woken for.
    """
    hosts, now = tuple(process.hosts.values()), process.now()
    by_ms = min(host.wake_at for host in hosts)  # a deadline of the dispatcher wakes either of the two
    soon_ms = GRAIN_MS if process.gate.limits.active else 0
    if by_ms <= now.steady_ms + soon_ms or any(view(host.lane).is_more_than_half_full for host in hosts):
        return
    for host in hosts:
        asked_ms, acts = host.wake_at, sum(one.acts for one in hosts)
        host.lane.tick(now)
        assert sum(one.acts for one in hosts) == acts, f"{host.group} had something to do before {by_ms}"
        assert host.wake_at >= by_ms, f"{host.group} must be ticked at {host.wake_at}, and had asked for {asked_ms}"
