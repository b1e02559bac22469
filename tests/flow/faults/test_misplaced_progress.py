"""Offsets that a tool has copied with their metadata: MirrorMaker 2, or a script that moves a group."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode, misplaced
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.consumer.start_offsets import committed
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.lifecycle.next_version import leave_progress, left_progress
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, HANG, OK, Behaviour, Request, by_name
from tests.support.sidecar.policy import CALM, SECONDS

COUNT = 30
MADE_AT, DONE = 10, frozenset(range(11, 28))


def test_each_record_above_a_copied_offset_is_delivered_and_progress_in_its_place_is_not_repeated(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=5)
    produce(group.bootstrap, group.main, [Out(b"fine", partition=part) for part in range(5) for _ in range(COUNT)])
    here = [Partition(group.main, number) for number in range(5)]
    made = [encode(source, Progress(MADE_AT, DONE, clean=True)) for source in here]
    other = encode(Partition("other", 4), Progress(MADE_AT, DONE, clean=True))
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


def test_a_position_that_another_tool_has_moved_is_named_and_its_records_keep_their_cycle(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    produce(group.bootstrap, group.main, [Out(b"fine", partition=0) for _ in range(COUNT)])
    service = start_service(by_name({"fine": (OK,)}))
    first = start_sidecar(group, service.url, overrides=CALM)
    await_quiet(group, SECONDS)
    assert "position-moved" not in first.log()
    first.stop()
    leave_progress(group.bootstrap, group.group, {TopicPartition(group.main, 0, MADE_AT): ""})
    second = start_sidecar(group, service.url, overrides=CALM)
    second.until(lambda: len(service.ledger.deliveries()) == 2 * COUNT - MADE_AT, 20, "they are delivered again")
    again = service.ledger.deliveries()[COUNT:]
    assert sorted(int(delivery.id.rpartition(":")[2]) for delivery in again) == list(range(MADE_AT, COUNT))
    assert not any(name == "Reconsume-Cycle" for delivery in again for name, _ in delivery.headers)
    assert "position-moved" in second.log()


RECORDS, OPEN, LOWER = 120, 80, 40
"""Records of a partition, the one that is never answered, and the lower offset that a tool gives to the group."""
FAILING, RETRIED_OPEN = range(30), 20
"""Records whose first delivery fails, and the one of them whose retry is never answered."""


def hangs(request: Request) -> Behaviour:
    """Never answer one record of the main topic, and one retry."""
    number = int(request.value or b"0")
    if number == (RETRIED_OPEN if request.times else OPEN):
        return HANG
    return FAIL if number in FAILING and not request.times else OK


def progress(group: GroupTopics, lane: str, source: Partition) -> Progress:
    """The progress that a lane has committed."""
    reader = Consumer({"bootstrap.servers": group.bootstrap, "group.id": lane})
    try:
        return committed(reader, [source]).get(source) or Progress(0)
    finally:
        reader.close()


def moved(group: GroupTopics, lane: str, source: Partition, offset: int) -> bool:
    """Whether the lane stands at this offset now, with what its owner wrote beside the other one."""
    metadata = left_progress(group.bootstrap, lane, source.topic)
    try:
        leave_progress(group.bootstrap, lane, {TopicPartition(*source, offset): metadata})
    except (KafkaException, AssertionError):
        return False  # its dead member is in the group until its session has ended
    return True


@pytest.mark.long
def test_after_a_kill_a_lower_offset_with_the_same_metadata_skips_no_record_of_a_main_topic_or_a_level(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given records that were never answered among ones that are done, then the next owner delivers them."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    [level] = group.levels
    main, retries = (group.group, Partition(group.main, 0)), (group.names.retry_group, Partition(level, 0))
    produce(group.bootstrap, group.main, [Out(b"%d" % number, partition=0) for number in range(RECORDS)])
    service = start_service(hangs)
    overrides = {**CALM, "kafka": {"bootstrap.servers": group.bootstrap, "session.timeout.ms": 6_000}}
    first = start_sidecar(group, service.url, overrides=overrides)
    first.until(lambda: len(service.ledger.taken()) == RECORDS - 2, 20, "all others are done")
    copies = {int(row.value or b""): row.offset for row in dump(group.bootstrap, level)}
    first.until(lambda: len(progress(group, *main).done) == RECORDS - OPEN - 1, 10, "it says so above the open one")
    above = [copy for copy in copies.values() if copy > copies[RETRIED_OPEN]]
    first.until(lambda: progress(group, *retries).done >= set(above), 10, "and above the open retry")
    first.kill()
    lower = min(copies.values())
    until(lambda: moved(group, *main, LOWER) and moved(group, *retries, lower), 15, "the group is moved")
    well = start_service(lambda _: OK)
    second = start_sidecar(group, well.url, overrides=overrides)
    await_quiet(group, SECONDS)
    delivered = {(delivery.times > 0, int(delivery.value or b"")) for delivery in well.ledger.deliveries()}
    assert delivered == {*((False, number) for number in range(LOWER, RECORDS)), *((True, number) for number in copies)}
    assert second.metric("reconsume_misplaced_progress_total") == 2
