"""Copies as they lie in a level topic, and an owner's notes of what a decision has done there."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.topics.decision_record import DecisionHeard, DecisionRecord
from reconsume.topics.owner_notes import (
    CHUNK,
    PARTITION,
    ChunkNote,
    DoneNote,
    chunk_key,
    done_key,
    pack_bits,
    render_note,
)
from reconsume.topics.partition import Partition
from reconsume.topics.policy_record import parse_record
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, Out, dump
from tests.support.view_rows import wall


def level_copy(
    group: GroupTopics,
    level: str,
    number: int,
    *,
    key: bytes = b"k",
    reason: str = "http-503: busy",
    wait: int = 3_600_000,
    partition: int = 0,
    main: str = "",
) -> Out:
    """A copy of the record at offset `number`, which failed now and waits `wait` ms in a level topic."""
    now, main = wall(), main or group.main
    state = RetryState(f"{main}:0:{number}", main, 1, 0, now + wait, now - 1_000, now, reason, last_failed_at=now)
    return Out(b"v", key, tuple(render_retry_headers(state, group.group, level)), partition)


def decisions_of(group: GroupTopics) -> dict[str, DecisionRecord]:
    """The decisions that have not ended, as the control log has them."""
    found: dict[str, DecisionRecord | None] = {}
    for row in dump(group.bootstrap, group.names.policy):
        if row.partition == 0 and isinstance(heard := parse_record(row.key, row.value), DecisionHeard):
            found[heard.id] = heard.record
    return {ident: record for ident, record in found.items() if record is not None}


def topic_digest(group: GroupTopics, topic: str) -> str:
    """The digest of a topic's id, as notes name it."""
    return LogId.of("", Cluster({"bootstrap.servers": group.bootstrap}).existing([topic])[topic].id).topic


def commit_progress(group: GroupTopics, source: Partition, progress: Progress) -> None:
    """Commit what the owner of a level partition has done, as the group's retry lane does."""
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.names.retry_group})
    place = TopicPartition(source.topic, source.number, progress.next, encode(source, progress))
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


class Owner:
    """Writes the notes of owners; nothing is settled."""

    def __init__(self, group: GroupTopics) -> None:
        self._group, self._producer = group, Producer({"bootstrap.servers": group.bootstrap, "log_level": 2})

    def settle_early(self, source: Partition, topic: str, *offsets: int) -> None:
        """Note in the first chunk that these offsets were settled before their turn. `topic`: the digest of its id."""
        bits = bytearray(CHUNK // 8)
        for offset in offsets:
            bits[offset // 8] |= 1 << offset % 8
        note = render_note(ChunkNote(topic, pack_bits(bits)))
        self._producer.produce(self._group.names.policy, note, chunk_key(source, 0), PARTITION)
        self._producer.flush(SECONDS)

    def note(self, decision: str, done: int, *, without_effect: int = 0, finished: bool = True) -> None:
        """Note that a decision has settled so many records in its first partition, and is finished in the others."""
        first, *others = decisions_of(self._group)[decision].ranges
        for one in (first, *others):
            counts = (done, without_effect) if one is first else (0, 0)
            note = DoneNote(one.log, one.end, *counts, finished=finished, at=wall())
            key = done_key(decision, Partition(one.topic, one.partition))
            self._producer.produce(self._group.names.policy, render_note(note), key, PARTITION)
        self._producer.flush(SECONDS)
