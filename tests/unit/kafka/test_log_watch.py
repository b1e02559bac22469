"""A queue that is another log than was read: what shows it, and what does not."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.kafka.queues.log_watch import GONE_AFTER, LOOK_EVERY, LogWatch, ReadSoFar
from reconsume.sidecar.kafka.queues.queue_reading import started
from tests.sim.ladder_rig import QUEUE


class Log:
    """A client whose queue has these timestamps, from its first offset on; None: there is no such topic."""

    def __init__(self, *times_ms: int, begin: int = 0, partitions: int | None = 1) -> None:
        self._times_ms, self._begin, self._partitions = times_ms, begin, partitions

    def offsets_for_times(self, times: list[TopicPartition], **_: object) -> list[TopicPartition]:
        return [TopicPartition(one.topic, one.partition, self._at(one.offset)) for one in times]

    def _at(self, wanted: int) -> int:
        if wanted == OFFSET_BEGINNING:
            return self._begin
        return next((self._begin + at for at, ms in enumerate(self._times_ms) if ms >= wanted), OFFSET_END)

    def list_topics(self, topic: str, timeout: float) -> Any:
        error = None if self._partitions is not None else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        parts = dict.fromkeys(range(self._partitions or 0))
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=parts)})


def client(*times_ms: int, begin: int = 0, partitions: int | None = 1) -> Any:
    return Log(*times_ms, begin=begin, partitions=partitions)


SAME, CUT, RENEWED = client(10, 20, 30, 40), client(30, 40, begin=2), client(50, 60, 70, 80)


@pytest.mark.parametrize(
    ("log", "progress", "believed"),
    [
        (SAME, Progress(2, last_at_ms=20), Progress(2, last_at_ms=20)),
        (SAME, Progress(4, last_at_ms=10), Progress(4, last_at_ms=10)),
        (CUT, Progress(4, last_at_ms=10), Progress(4, last_at_ms=10)),
        (RENEWED, Progress(2, last_at_ms=20), Progress(0, ours=False, last_at_ms=0)),
        (RENEWED, Progress(0, frozenset({1}), last_at_ms=20), Progress(0, ours=False, last_at_ms=0)),
        (RENEWED, Progress(2), Progress(2)),
        (RENEWED, None, None),
    ],
    ids=["same", "read on since the look", "cut", "anew", "done set alone", "of no known time", "no progress"],
)
def test_progress_of_a_former_log_is_not_believed(
    log: Any, progress: Progress | None, believed: Progress | None
) -> None:
    assert LogWatch().of_these_logs(log, {QUEUE: progress}) == {QUEUE: believed}


def test_what_is_done_or_marked_behind_the_end_of_a_log_is_of_a_former_one() -> None:
    for progress in (Progress(0, frozenset({2}), last_at_ms=20), Progress(0, deaths=2, mark=2), Progress(3)):
        assert started(QUEUE, progress, 0, 2) == Progress(0, ours=False, last_at_ms=0)


def test_a_log_that_begins_with_what_is_younger_than_what_was_read_is_another_one() -> None:
    watch = LogWatch()
    watch.begin(QUEUE, ReadSoFar(0, 0))
    assert watch.last_at_ms(QUEUE, ReadSoFar(2, 20)) == 20
    assert watch.others(SAME, {QUEUE: ReadSoFar(4, 40)}) == []
    assert watch.last_at_ms(QUEUE, ReadSoFar(9, 90)) == 40, "what was read since that look may be of another log"
    assert watch.others(RENEWED, {QUEUE: ReadSoFar(9, 90)}) == [QUEUE]


def test_a_log_that_began_so_when_it_was_first_looked_at_is_the_one_that_was_read() -> None:
    """Its first transaction was aborted, and was written by a clock that is ahead: nobody reads that record. Else each
    successor would end as well, until there is a younger one."""
    watch, log = LogWatch(), client(90, 91, 20, 30)
    watch.begin(QUEUE, ReadSoFar(0, 0))
    assert [watch.is_time(), watch.is_time()] == [True, False]
    assert watch.last_at_ms(QUEUE, ReadSoFar(1, 0)) is None
    assert not watch.is_time()
    assert watch.last_at_ms(QUEUE, ReadSoFar(4, 30)) == 30
    assert watch.is_time(), "what is new is looked at before it can be another log"
    assert watch.others(log, {QUEUE: ReadSoFar(4, 30)}) == []
    assert watch.others(log, {QUEUE: ReadSoFar(4, 30)}) == []
    assert watch.others(client(90, 91, 20, 30, 95), {QUEUE: ReadSoFar(5, 95)}) == []
    assert watch.others(client(90, 91, 20, 30, 95), {QUEUE: ReadSoFar(5, 95)}) == []
    assert watch.others(client(99, 99, 99, 99, 99), {QUEUE: ReadSoFar(5, 99)}) == [QUEUE]


@pytest.mark.parametrize("partitions", [None, 0])
def test_a_queue_is_gone_once_it_was_missing_for_a_while(
    monkeypatch: pytest.MonkeyPatch, partitions: int | None
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = LogWatch()
    assert [watch.is_time(), watch.is_time()] == [True, False]
    watch.look_for(client(partitions=partitions), [QUEUE])
    assert (watch.doubtful(), watch.is_gone(QUEUE)) == ((QUEUE,), False)
    now[0] += max(GONE_AFTER, LOOK_EVERY)
    assert (watch.is_time(), watch.is_gone(QUEUE)) == (True, True)
    watch.is_there(QUEUE)
    assert watch.doubtful() == ()
