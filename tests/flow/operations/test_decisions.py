"""Decisions about thousands of waiting records on a real broker: owners carry them out once, whatever ends then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.sidecar.kafka.consumer.log_checks import KafkaLogIds
from reconsume.topics.decision_record import DecidedRange, DecisionRecord, decision_key, render_decision
from reconsume.topics.events import BY_SETTLEMENT, Event, State, decode_event
from reconsume.topics.names import Kind
from reconsume.topics.owner_notes import DoneNote, NotedProgress, parse_note
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.ledger import Delivery
from tests.support.proof.quiet import await_quiet
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.config import Config
from tests.support.sidecar.policy import CALM, write
from tests.support.sidecar.process import SidecarProcess

HOUR = 3_600_000
MANY = 2_000
FAST: Config = {"deliver": {"outage_failures": None, "concurrency": 64}, "retry": {"ladder": ["1h"]}}


class Failing:
    """A service that fails everything until it is repaired."""

    def __init__(self) -> None:
        self.is_repaired = False

    def __call__(self, request: Request) -> Behaviour:
        return OK if self.is_repaired else FAIL


@pytest.fixture
def failing() -> Failing:
    return Failing()


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(new_group(delays=(HOUR,)), 3, also=[Kind.POLICY])


@pytest.fixture
def service(failing: Failing, start_service: StartService) -> Service:
    return start_service(failing)


def fill(group: GroupTopics, sidecar: SidecarProcess, count: int) -> None:
    """Have so many records fail, so that they wait for an hour."""
    produce(group.bootstrap, group.main, [Out(b"%d" % number, b"k%d" % (number % 50)) for number in range(count)])
    level = group.names.level(HOUR, group.main)
    sidecar.until(lambda: sum(end for _, end in spans(group, level).values()) >= count, 60, "all of them are written")
    sidecar.until(lambda: len(dump(group.bootstrap, level)) == count, 60, "all of them wait")


def spans(group: GroupTopics, topic: str) -> dict[int, tuple[int, int]]:
    """The first and the last offset of each partition."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    places = [
        TopicPartition(topic, number) for number in admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    ]
    low = admin.list_offsets(dict.fromkeys(places, OffsetSpec.earliest()), request_timeout=SECONDS)
    high = admin.list_offsets(dict.fromkeys(places, OffsetSpec.latest()), request_timeout=SECONDS)
    return {
        place.partition: (low[place].result(SECONDS).offset, high[place].result(SECONDS).offset) for place in places
    }


def decide(
    group: GroupTopics, how: str, topic: str, rate: str = "", ident: str = "d-1", key: bytes | None = None
) -> str:
    """Write a decision about all that waits in a topic, as a command does that is killed behind its first line."""
    ids = KafkaLogIds(lambda: Connection({"bootstrap.servers": group.bootstrap}, "test"))([topic])
    log = ids[topic].topic
    ranges = tuple(DecidedRange(topic, number, log, *span) for number, span in spans(group, topic).items())
    record = DecisionRecord(how, "ann@laptop", "the bug is fixed", int(time.time() * 1000), ranges, rate=rate, key=key)
    write(group, render_decision(record), decision_key(ident))
    return ident


def done_by(group: GroupTopics, ident: str) -> dict[int, DoneNote]:
    """What owners have noted of a decision, by partition."""
    notes = dict[int, DoneNote]()
    for row in dump(group.bootstrap, group.names.policy):
        noted = parse_note(row.key, row.value) if row.key is not None and row.key.startswith(b"done/") else None
        if isinstance(noted, NotedProgress) and noted.decision == ident and noted.note is not None:
            notes[noted.source.number] = noted.note
    return notes


def await_done(group: GroupTopics, ident: str, topic: str, seconds: float = 60) -> int:
    """Wait until each partition says that a decision is over; how many records were settled."""
    wanted = len(spans(group, topic))
    until(
        lambda: sum(note.finished for note in done_by(group, ident).values()) == wanted, seconds, "the decision is over"
    )
    return sum(note.done for note in done_by(group, ident).values())


def events_of(group: GroupTopics) -> list[Event]:
    """The events of operators' decisions."""
    events = [decode_event(row.value) for row in dump(group.bootstrap, group.names.events)]
    return [event for event in events if isinstance(event, Event) and event.instance.startswith(BY_SETTLEMENT)]


def killer(sidecar: SidecarProcess, start: Callable[[], SidecarProcess], after: list[float]) -> SidecarProcess:
    """Kill the owner so many seconds apart; its successor has the same name."""
    for seconds in after:
        time.sleep(seconds)  # not as a proof: each moment is as good as another
        sidecar.kill()
        sidecar = start()
    return sidecar


@pytest.mark.parametrize("how", inner("commit", {"commit": 0, "dead-letter": 0}))
def test_two_thousand_waiting_records_end_once_although_their_owner_is_killed_at_any_moment(
    group: GroupTopics, service: Service, start_sidecar: StartSidecar, how: str
) -> None:
    sidecar = start_sidecar(group, service.url, overrides=FAST)
    level = group.names.level(HOUR, group.main)
    fill(group, sidecar, MANY)
    delivered = len(service.ledger.deliveries())
    ident = decide(group, how, level)
    start = lambda: start_sidecar(group, service.url, overrides=FAST)  # noqa: E731
    sidecar = killer(sidecar, start, [0.35, 0.2, 0.5, 0.05])
    assert await_done(group, ident, level) == MANY
    ended = Counter(event.id for event in events_of(group))
    assert (len(ended), set(ended.values())) == (MANY, {1}), "each has one event"
    state = State.COMMIT if how == "commit" else State.DLQ
    assert {event.state for event in events_of(group)} == {state}
    dead = Counter(dict(row.headers)["ORIGIN_MESSAGE_ID"] for row in dump(group.bootstrap, group.dlq))
    assert (len(dead), set(dead.values())) == ((0, set()) if how == "commit" else (MANY, {1}))
    assert len(service.ledger.deliveries()) == delivered, "nobody has delivered them"
    ends = {number: end for number, (_, end) in spans(group, level).items()}
    sidecar.until(lambda: positions(sidecar, level) == ends, 20, "nothing waits any more")
    until(lambda: not chunks(group), 20, "no notes are left of what progress says by now")


def positions(sidecar: SidecarProcess, level: str) -> dict[int, int]:
    """Up to where the partitions of a level are done, by what the sidecar says."""
    rows = sidecar.status()["partitions"]
    return {row["partition"]: row["position"] for row in rows if row["topic"] == level}


def chunks(group: GroupTopics) -> set[bytes]:
    """The chunks that the policy topic has."""
    last = {row.key: row.value for row in dump(group.bootstrap, group.names.policy) if row.key}
    return {key for key, value in last.items() if key.startswith(b"chunk/") and value is not None}


def test_waiting_records_are_tried_now_without_using_up_a_retry(
    group: GroupTopics, service: Service, failing: Failing, start_sidecar: StartSidecar
) -> None:
    sidecar = start_sidecar(group, service.url, overrides=FAST)
    level = group.names.level(HOUR, group.main)
    fill(group, sidecar, 300)
    failing.is_repaired = True
    ident = decide(group, "retry-now", level)
    start = lambda: start_sidecar(group, service.url, overrides=FAST)  # noqa: E731
    sidecar = killer(sidecar, start, [0.4])
    assert await_done(group, ident, level) == 300
    until(lambda: len({one.id for one in again(service)}) == 300, 40, "each is delivered once more")
    assert {one.times for one in again(service)} == {1}
    tried = Counter(event.id for event in events_of(group))
    assert (len(tried), set(tried.values())) == (300, {1})


def test_what_was_settled_far_before_its_turn_stays_settled_for_the_next_owner(
    group: GroupTopics, service: Service, failing: Failing, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    sidecar = start_sidecar(group, service.url, overrides=FAST)
    level = group.names.level(HOUR, group.main)
    fill(group, sidecar, 200)
    await_done(group, decide(group, "commit", level, key=b"k7"), level)
    assert sum(note.done for note in done_by(group, "d-1").values()) == 4
    assert chunks(group), "notes alone say so: what lies before them is not due"
    assert violations(group, tmp_path, FAST) == []
    sidecar.kill()
    sidecar = start_sidecar(group, service.url, overrides=FAST)
    failing.is_repaired = True
    await_done(group, decide(group, "retry-now", level, ident="d-2"), level)
    until(lambda: len({one.id for one in again(service)}) == 196, 40, "the others are delivered once more")
    assert b"k7" not in {one.key for one in again(service)}
    ends = {number: end for number, (_, end) in spans(group, level).items()}
    sidecar.until(lambda: positions(sidecar, level) == ends, 20, "nothing waits any more")
    until(lambda: not chunks(group), 20, "no notes are left of what progress says by now")
    await_quiet(group, 30)
    assert violations(group, tmp_path, FAST) == []


def again(service: Service) -> list[Delivery]:
    return [one for one in service.ledger.deliveries() if one.times]


def test_a_rate_bounds_what_is_settled_in_a_second(
    group: GroupTopics, service: Service, start_sidecar: StartSidecar
) -> None:
    sidecar = start_sidecar(group, service.url, overrides=FAST)
    level = group.names.level(HOUR, group.main)
    fill(group, sidecar, 200)
    began = time.monotonic()
    ident = decide(group, "commit", level, rate="50/s")
    assert await_done(group, ident, level) == 200
    assert 2.5 < time.monotonic() - began < 15


LADDER: Config = {
    **CALM,
    "deliver": {"outage_failures": None, "order": "key", "concurrency": 16},
    "retry": {"ordered_ladder": ["1h"]},
}


def test_heads_and_followers_of_keys_in_a_queue_are_settled_although_their_owner_is_killed(
    new_group: FreshGroup, service: Service, start_sidecar: StartSidecar
) -> None:
    group = create_group(replace(new_group(), delays=(), queued=True), 3, also=[Kind.POLICY])
    sidecar = start_sidecar(group, service.url, overrides=LADDER)
    produce(group.bootstrap, group.main, [Out(b"%d" % n, b"k%d" % (n % 40)) for n in range(400)])
    (queue,) = group.queues
    sidecar.until(lambda: len(dump(group.bootstrap, queue)) == 400, 60, "heads and followers wait")
    ident = decide(group, "dead-letter", queue)
    start = lambda: start_sidecar(group, service.url, overrides=LADDER)  # noqa: E731
    killer(sidecar, start, [0.4, 0.3])
    await_done(group, ident, queue)
    dead = Counter(dict(row.headers)["ORIGIN_MESSAGE_ID"] for row in dump(group.bootstrap, group.dlq))
    assert (len(dead), set(dead.values())) == (400, {1})
