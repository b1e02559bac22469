"""Check the resets of positions: those that wait or never had an effect, and positions that other tools have moved.

A position is *moved by another tool* if a group that has delivered before has progress without Reconsume's metadata:
`kafka-consumer-groups.sh --reset-offsets` leaves such. That shows only while no instance owns the partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from reconsume.sidecar.doctor.checks.progress import has_records
from reconsume.sidecar.doctor.findings import Finding, listed, not_checked, ok, warn
from reconsume.sidecar.group_policy.position_reset import PositionStore, TargetState
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import led_partitions
from reconsume.sidecar.printable import ago, plural, printable
from reconsume.sidecar.settings import Settings
from reconsume.topics.partition import Partition

DAY_MS = 86_400_000
"""ms for which a reset that had no effect is named."""
SOON_MS = 60_000
"""ms within which the owners of all partitions carry a reset out, unless something keeps them from it."""


def resets(cluster: Cluster, state: ControlState | None, settings: Settings, wall: int) -> list[Finding]:
    """Report resets that are not carried out, ranges that are being delivered, and positions that others have moved.

    `wall`: epoch ms.
    """
    if state is None:
        return [not_checked(f"the policy topic is {ABSENT}", hint("topics apply"))]
    store = PositionStore(cluster, settings.names)
    findings = list(open_resets(store, state, wall))
    described = cluster.topics(settings.topic_names)[0]
    sources = [Partition(*name) for name in led_partitions(described.values())]
    progress = cluster.progress(settings.group, sources)
    undelivered = store.left_of({source: progress[source].next for source in sources if source in progress})
    for source, count in undelivered.items():
        findings.append(ok(f"{source}: at most {plural(count, 'record')} of a reset to be delivered again"))
    foreign = [str(source) for source, own in progress.items() if not own.ours]
    if foreign and has_records(cluster, settings.names.events):
        text = f"another tool has moved the position of {listed(foreign)} (position-moved)"
        rest = (
            "retries and dead letters from before stay in force, and records may be delivered again in their old cycle"
        )
        findings.append(
            warn(f"{text}: {rest}", f"{hint('reset --topic TOPIC --to WHERE')} moves it in a cycle of its own")
        )
    return findings or [ok("no reset waits")]


def open_resets(store: PositionStore, state: ControlState, wall: int) -> Iterator[Finding]:
    """Report the requests of the last day that are not carried out in each partition."""
    for ident, request in state.resets.items():
        if wall - request.at > DAY_MS:
            continue
        reached = store.progress_of(ident, request)
        what = f"reset {ident} of {request.topic} to {printable(request.to)}, by {printable(request.who)}"
        if late := reached.count(TargetState.TOO_LATE):
            text = f"{what}, was not carried out in {plural(late, 'partition')} within 1h, and has no effect there"
            yield warn(text, f"{hint('reset')} it again once instances own them")
        elif waiting := reached.count(TargetState.WAITING):
            text = f"{what}, waits for the owners of {plural(waiting, 'partition')} since {ago(wall - request.at)}"
            is_slow = wall - request.at > SOON_MS
            yield warn(text, f"{hint('instances')} shows who owns what") if is_slow else ok(text)
