"""Keep the files of a partition in which one copy stands again and again.

Its readers, events and progress said that the transactions were aborted; a look at the topic said otherwise (seed 203).
Only the log says who is right: `kafka.tools.DumpLogSegments` shows each marker and the index of aborted transactions.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable

from reconsume.topics import retry_headers as wire
from tests.soak.world import World
from tests.support.kafka.topic_io import Row

REPEATED = 3
SPAN = 2_000
"""ms. A copy that hops from level to level comes back too, but not so soon."""
IDENTITY = (wire.ORIGIN_MESSAGE_ID, wire.RETRY_REDRIVES, wire.RECONSUMETIMES)


def repeating(rows: Iterable[Row]) -> set[int]:
    """The partitions of a topic that hold the same copy so often in so short a time."""
    seen: Counter[tuple[object, ...]] = Counter()
    for row in rows:
        ours = dict(row.headers)
        seen[(row.partition, row.timestamp // SPAN, *(ours.get(name) for name in IDENTITY))] += 1
    return {int(str(key[0])) for key, count in seen.items() if count >= REPEATED and key[2] is not None}


def keep_repeats(world: World, topic: str, rows: Iterable[Row]) -> None:
    """Copy what every node has of such partitions beside the journal."""
    for partition in repeating(rows):
        for node in world.kafka.nodes:
            source = node.plan.data / f"{topic}-{partition}"
            if source.exists():
                target = world.journal.path.parent / f"{source.name}-of-node-{node.id}"
                shutil.copytree(source, target, dirs_exist_ok=True)
                world.journal.tell("repeats", topic=topic, partition=partition, kept=str(target))
