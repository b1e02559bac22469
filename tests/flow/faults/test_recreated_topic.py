"""A main topic that was deleted and created again: its new log is read from the beginning, however its reader ended."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import TopicPartition

from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.sidecar.kafka.consumer.log_checks import KafkaLogIds
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.faults.test_misplaced_progress import progress
from tests.flow.lifecycle.next_version import leave_progress
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, create_topic, delete_topics, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import OK, Answer, Behaviour, Request
from tests.support.sidecar.policy import CALM, SECONDS
from tests.support.sidecar.process import SidecarProcess

OLD, NEW = 30, 60
"""Records of the former log, and of the new one, which is longer: so no offset of the former one is missing in it."""


def log_of(group: GroupTopics) -> LogId:
    """The log that the main topic has now."""
    return KafkaLogIds(lambda: Connection({"bootstrap.servers": group.bootstrap}))([group.main])[group.main]


def recreate(group: GroupTopics) -> None:
    """Delete the main topic, create it again, and fill it beyond where the former one ended."""
    delete_topics(group.bootstrap, group.main)
    create_topic(group.bootstrap, group.main)
    produce(group.bootstrap, group.main, [Out(b"new-%d" % number, partition=0) for number in range(NEW)])


@pytest.mark.parametrize("end", ["stopped before", "stopped after", "killed after", "runs on"])
def test_a_recreated_main_topic_is_read_from_its_beginning(
    end: str, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a reader of the former log that stops or is killed before or after the topic is recreated, or runs on, then
    each record of the new log is delivered. One that stopped after it committed an offset of the former log, and the
    next one began there: 30 records were skipped in silence."""
    group = create_group(new_group(1, (1_000,)), partitions=1)
    answer = threading.Event()

    def script(request: Request) -> Behaviour | Answer:
        return Answer(until=answer) if request.value == b"old-%d" % (OLD - 1) else OK

    service = start_service(script)
    produce(group.bootstrap, group.main, [Out(b"old-%d" % number, partition=0) for number in range(OLD)])
    first = start_sidecar(group, service.url, overrides=CALM)
    first.until(lambda: len(service.ledger.taken()) == OLD - 1, SECONDS, "all but the last are taken")
    former = log_of(group)
    if end == "stopped before":
        finish(first, group, answer)
    recreate(group)
    assert log_of(group) != former
    if end == "stopped after":
        answer.set()  # what it commits at its end is an offset of the former log
        first.stop()
    elif end == "killed after":
        first.kill()
    answer.set()
    if end != "runs on":
        first.start()
        first.wait_ready()
    wanted = {b"new-%d" % number for number in range(NEW)}
    first.until(lambda: wanted <= {d.value for d in service.ledger.deliveries()}, SECONDS, "all of the new log came")
    first.until(lambda: progress(group, group.group, Partition(group.main, 0)).next == NEW, SECONDS, "it is committed")
    first.stop()
    assert progress(group, group.group, Partition(group.main, 0)).log == log_of(group)


def finish(sidecar: SidecarProcess, group: GroupTopics, answer: threading.Event) -> None:
    """Let the last record end, and stop."""
    answer.set()
    sidecar.until(
        lambda: progress(group, group.group, Partition(group.main, 0)).next == OLD, SECONDS, "all is committed"
    )
    sidecar.stop()


DONE = frozenset(range(11, 28))
AT = 10


def test_only_progress_of_this_cluster_at_its_own_offset_with_another_topic_id_is_of_a_former_log(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given groups that a tool moved or copied, or that a plain consumer left, then each goes on where it was."""
    group = create_group(new_group(), partitions=6)
    mains = [Partition(group.main, number) for number in range(6)]
    produce(group.bootstrap, group.main, [Out(b"x", partition=part) for part in range(6) for _ in range(OLD)])
    here = log_of(group)
    former, elsewhere = LogId(here.cluster, "0a0b0c0d"), LogId("0a0b0c0d", "0a0b0c0d")

    def left(part: int, log: LogId | None, made_at: int = AT) -> str:
        done = frozenset(offset - AT + made_at for offset in DONE)
        return encode(mains[part], Progress(made_at, done, clean=True, log=log))

    texts = {
        0: left(0, here),
        1: left(1, former),
        2: left(2, elsewhere),
        3: left(3, former, 12),
        4: left(4, None),
        5: "",
    }
    places = {TopicPartition(group.main, part, AT): text for part, text in texts.items()}
    leave_progress(group.bootstrap, group.group, places)
    service = start_service(lambda _: OK)
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    await_quiet(group, SECONDS)
    came = sorted(tuple(map(int, d.id.split(":")[1:])) for d in service.ledger.deliveries())
    goes_on = [offset for offset in range(AT, OLD) if offset not in DONE]
    expected = {0: goes_on, 1: range(OLD), 2: goes_on, 3: range(AT, OLD), 4: goes_on, 5: range(AT, OLD)}
    assert came == [(part, offset) for part, offsets in expected.items() for offset in offsets]
    lost = sidecar.metric(f'reconsume_records_lost_total{{topic="{group.main}"}}')
    assert lost == 1, "the former owner had begun and not finished its record 10"
    assert sidecar.log().count("topic-recreated") == 1
