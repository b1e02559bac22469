"""Offsets that a tool has copied with their metadata: MirrorMaker 2, or a script that moves a group."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from sidecar.core.placed_progress import encode_at, misplaced
from sidecar.core.progress import Progress
from sidecar.core.record import Partition
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.lifecycle.next_version import leave_progress, left_progress
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import OK, by_name
from tests.support.sidecar.policy import CALM, SECONDS

COUNT = 30
MADE_AT, DONE = 10, frozenset(range(11, 28))


def test_each_record_above_a_copied_offset_is_delivered_and_progress_in_its_place_is_not_repeated(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=5)
    produce(group.bootstrap, group.main, [Out(b"fine", partition=part) for part in range(5) for _ in range(COUNT)])
    here = [Partition(group.main, number) for number in range(5)]
    made = [encode_at(source, Progress(MADE_AT, DONE, clean=True)) for source in here]
    other = encode_at(Partition("other", 4), Progress(MADE_AT, DONE, clean=True))
    found_at = {0: MADE_AT, 1: 5, 2: 15, 3: MADE_AT, 4: MADE_AT}
    texts = {0: made[0], 1: made[1], 2: made[2], 3: made[0], 4: other}
    leave_progress(
        group.bootstrap,
        group.group,
        {TopicPartition(group.main, part, found_at[part]): texts[part] for part in found_at},
    )
    service = start_service(by_name({"fine": (OK,)}))
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    await_quiet(group, SECONDS)
    delivered = [tuple(map(int, d.id.split(":")[1:])) for d in service.ledger.deliveries()]
    in_place = {(0, offset) for offset in range(MADE_AT, COUNT) if offset not in DONE}
    elsewhere = {(part, offset) for part in range(1, 5) for offset in range(found_at[part], COUNT)}
    assert sorted(delivered) == sorted(in_place | elsewhere)
    assert sidecar.metric("reconsume_misplaced_progress_total") == 4
    assert "progress-misplaced" in sidecar.log()
    sidecar.stop()
    left = left_progress(group.bootstrap, group.group, group.main)
    assert misplaced(here[0], COUNT, left) == "", "it is stamped with its place"
    assert "partition 0" in misplaced(here[1], COUNT, left)
