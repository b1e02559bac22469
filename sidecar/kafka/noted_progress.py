"""The progress of partitions with what was settled before its turn, for whatever lists, searches and checks records.

Owners settle waiting records early when an operator decides so, and note their offsets in chunks: partition 1 of the
policy topic (`topics/owner_notes.py`). Progress has one letter that says so. Only then the notes are read; and progress
once more behind them, because an owner deletes a chunk in the transaction that moves progress past it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec.structs import replace

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.kafka.admin.descriptions import PartitionName
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient
from reconsume.topics.names import Names
from reconsume.topics.owner_notes import PARTITION, NotesOfPartition, OwnerNotes, settled_in, unpack_bits


def progress_with_notes(
    cluster: Cluster, names: Names, read: Callable[[], Mapping[PartitionName, Progress]]
) -> dict[PartitionName, Progress]:
    """Return progress, with the offsets above it that were settled early. `read`: asks for it. Raises BrokerError."""
    progress = dict(read())
    noted = {Partition(*name) for name, one in progress.items() if one.notes}
    if not noted:
        return progress
    notes = read_notes(cluster, names, noted)
    progress = dict(read())
    for source in noted & progress.keys():
        one = progress[source]
        early = settled_early(notes.of(source), "" if one.log is None else one.log.topic)
        progress[source] = replace(one, done=OffsetRanges.of(one.done).union(early))
    return progress


def read_notes(cluster: Cluster, names: Names, wanted: Collection[Partition]) -> OwnerNotes:
    """Return what owners have noted about partitions, as far as it is committed. Raises BrokerError."""
    notes = OwnerNotes(wanted)
    topic = cluster.existing([names.policy]).get(names.policy)
    if topic is None or topic.partitions <= PARTITION:
        return notes
    spans = cluster.spans([(names.policy, PARTITION)])
    with ScanClient(cluster.kafka, names.retry_group, cluster.client_id, Fetches.LITTLE) as client:
        for message in client.scan(spans, Bounds(seconds=ANSWER_SECONDS), expected=names.policy):
            notes.take(message.key(), message.value())
    return notes


def settled_early(notes: NotesOfPartition, log: str) -> OffsetRanges:
    """Return the offsets that chunks name. `log`: the digest of the topic's id; empty: not known. Chunks of another are
    left out."""
    early = list[int]()
    for number, chunk in notes.chunks.items():
        bits = unpack_bits(chunk.bits)
        if bits is not None and log in ("", chunk.id):
            early += settled_in(number, bits)
    return OffsetRanges.of(early)
