"""Relay mode: the service reads Kafka itself, the sidecar moves due records to the ready topic and takes posts."""

from __future__ import annotations

import pytest

from reconsume.topics.retry_headers import OURS
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.dense import dense
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, now, post, post_of, waiting

SOON = 20.0
KEPT = (("a", b"1"), ("b", None), ("a", b"\xff"))


@pytest.fixture(scope="module")
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(new_group())


@pytest.fixture(scope="module")
def relay(group: GroupTopics, start_sidecar: StartSidecar) -> SidecarProcess:
    return start_sidecar(group, "", overrides=RELAY)


def arrived(group: GroupTopics, topic: str, ident: str) -> list[Row]:
    """The copies of a record in a topic, as a consumer with read_committed sees them."""
    return [row for row in dump(group.bootstrap, topic) if header(row, "ORIGIN_MESSAGE_ID") == ident.encode()]


def header(row: Row, name: str) -> bytes | None:
    return dict(row.headers).get(name)


def await_copy(group: GroupTopics, topic: str, ident: str) -> Row:
    return until(lambda: arrived(group, topic, ident), SOON, f"{ident} is in {topic}")[0]


def main_row(group: GroupTopics, value: bytes | None = b"order", key: bytes | None = b"k") -> Row:
    """A record of the main topic, as a service reads it."""
    out = Out(value, key, (("tenant", b"acme"), ("RECONSUMETIMES", b"999")))
    [(partition, offset)] = produce(group.bootstrap, group.main, [out])
    return next(row for row in dump(group.bootstrap, group.main) if (row.partition, row.offset) == (partition, offset))


# --- due records -----------------------------------------------------------------------------------------------------


def test_a_record_that_a_service_wrote_to_a_level_is_forwarded_when_due_and_not_before(
    group: GroupTopics, relay: SidecarProcess
) -> None:
    level = group.names.level(2_000, group.main)
    wanted = waiting(group, 101, 2_000)
    [(partition, offset)] = produce(group.bootstrap, level, [wanted])
    copy = await_copy(group, group.names.ready, f"{group.main}:0:101")
    source = next(row for row in dump(group.bootstrap, level) if (row.partition, row.offset) == (partition, offset))
    assert copy.timestamp >= max(int(header(copy, "RETRY_DUE_AT") or 0), source.timestamp + 2_000)
    assert (copy.key, copy.value) == (wanted.key, wanted.value)
    assert tuple(pair for pair in copy.headers if pair[0] not in OURS) == KEPT
    assert header(copy, "RETRY_TOPIC") == group.names.ready.encode()
    assert header(copy, "RECONSUMETIMES") == b"1"


def test_a_due_time_beyond_the_level_is_reached_by_hops(group: GroupTopics, relay: SidecarProcess) -> None:
    due = now() + 3_500
    level = group.names.level(1_000, group.main)
    produce(group.bootstrap, level, [waiting(group, 102, 1_000, RETRY_DUE_AT=b"%d" % due)])
    copy = await_copy(group, group.names.ready, f"{group.main}:0:102")
    assert copy.timestamp >= due
    assert header(copy, "RECONSUMETIMES") == b"1"


BROKEN: dict[str, dict[str, bytes | None]] = {
    "no count": {"RECONSUMETIMES": None},
    "a count that is none": {"RECONSUMETIMES": b"-1"},
    "another group's topic": {"REAL_TOPIC": b"secrets"},
    "an id of another topic": {"ORIGIN_MESSAGE_ID": b"secrets:0:1"},
    "due in a hundred years": {"RETRY_DUE_AT": b"4918953600000"},
}


def test_records_with_broken_headers_are_dead_letters_and_the_rest_goes_on(
    group: GroupTopics, relay: SidecarProcess
) -> None:
    level = group.names.level(1_000, group.main)
    outs = [waiting(group, 200 + number, 1_000, **changed) for number, changed in enumerate(BROKEN.values())]
    twice = waiting(group, 298, 1_000)
    outs.append(twice._replace(headers=(*twice.headers, ("RECONSUMETIMES", b"2"))))
    places = produce(group.bootstrap, level, [*outs, waiting(group, 299, 1_000)])
    await_copy(group, group.names.ready, f"{group.main}:0:299")
    for partition, offset in places[:-1]:
        copy = await_copy(group, group.dlq, f"{level}:{partition}:{offset}")
        assert (header(copy, "RETRY_REASON") or b"").startswith(b"bad-header")
        assert tuple(pair for pair in copy.headers[:3]) == KEPT
    for number in (*range(200, 205), 298):
        assert not arrived(group, group.names.ready, f"{group.main}:0:{number}")


def test_a_relay_reads_neither_the_main_topic_nor_the_ready_topic(group: GroupTopics, relay: SidecarProcess) -> None:
    topics = {part["topic"] for part in relay.status()["partitions"]}
    assert topics == set(group.levels)
    assert relay.status()["mode"] == "relay"
    assert relay.status()["missing_topics"] == []
    forwarded = relay.metric("reconsume_forwarded_total")
    assert forwarded == len(dump(group.bootstrap, group.names.ready))
    assert relay.metric("reconsume_lateness_seconds_count") == forwarded


# --- posts -----------------------------------------------------------------------------------------------------------


def test_a_posted_first_failure_waits_and_comes_back(group: GroupTopics, relay: SidecarProcess) -> None:
    row, began = main_row(group), now()
    answer = post(relay, post_of(group.main, row, reason="no-stock"))
    ident = f"{group.main}:{row.partition}:{row.offset}"
    assert answer.status == 201
    level = group.names.level(1_000, group.main)
    assert (answer.json["id"], answer.json["topic"], answer.json["times"]) == (ident, level, 1)
    assert began + 1_000 <= answer.json["due"] <= now() + 1_000
    written = arrived(group, level, ident)  # at once: the answer says that it is committed
    assert len(written) == 1
    assert (written[0].key, written[0].value) == (row.key, row.value)
    assert written[0].headers[0] == ("tenant", b"acme")
    assert dict(written[0].headers)["RETRY_REASON"] == b"no-stock"
    copy = await_copy(group, group.names.ready, ident)
    again = post(relay, post_of(group.names.ready, copy))
    assert (again.status, again.json["times"], again.json["topic"]) == (201, 2, group.names.level(2_000, group.main))
    copy = until(lambda: arrived(group, group.names.ready, ident)[1:], SOON, "it comes back again")[0]
    dead = post(relay, post_of(group.names.ready, copy))
    assert (dead.status, dead.json["topic"], dead.json["times"], dead.json["due"]) == (201, group.dlq, 2, None)
    assert len(arrived(group, group.dlq, ident)) == 1
    states = [(row.value or b"") for row in dump(group.bootstrap, group.names.events) if row.key == ident.encode()]
    assert [b'"WAITING_RETRY"' in state for state in states] == [True, True, False]


@pytest.mark.parametrize(
    ("wish", "level"), [({"delay": "5s"}, 5_000), ({"level": 3}, 5_000), ({"delay": "1ms"}, 1_000), ({}, 1_000)]
)
def test_a_post_may_ask_for_a_delay_or_a_level(
    group: GroupTopics, relay: SidecarProcess, wish: dict[str, object], level: int
) -> None:
    answer = post(relay, post_of(group.main, main_row(group, None, None), **wish))
    assert (answer.status, answer.json["topic"]) == (201, group.names.level(level, group.main))


def test_a_post_may_ask_for_the_dead_letter_topic(group: GroupTopics, relay: SidecarProcess) -> None:
    answer = post(relay, post_of(group.main, main_row(group), level=-1, reason="bad-sku"))
    assert (answer.status, answer.json["topic"], answer.json["reason"]) == (201, group.dlq, "bad-sku")


def test_a_post_of_another_topic_is_refused_and_nothing_is_written(group: GroupTopics, relay: SidecarProcess) -> None:
    row = main_row(group)
    for topic in ("secrets", group.dlq, group.names.events, group.names.level(1_000, group.main)):
        assert post(relay, post_of(topic, row)).status == 400
    assert not arrived(group, group.names.level(1_000, group.main), f"{group.main}:{row.partition}:{row.offset}")


def test_a_post_from_the_ready_topic_with_forged_headers_is_a_dead_letter(
    group: GroupTopics, relay: SidecarProcess
) -> None:
    out = waiting(group, 1, 1_000, REAL_TOPIC=b"secrets", RETRY_TOPIC=group.names.ready.encode())
    row = Row(1, 4_000_000, now(), out.key, out.value, out.headers)
    answer = post(relay, post_of(group.names.ready, row))
    assert (answer.status, answer.json["topic"]) == (201, group.dlq)
    assert answer.json["id"] == f"{group.names.ready}:1:4000000"
    assert answer.json["reason"].startswith("bad-header")


def test_a_post_of_a_topic_that_only_other_instances_consume_is_passed_on(
    group: GroupTopics, relay: SidecarProcess
) -> None:
    """The ready topic is the whole group's: during a roll-out an old service reads what a new sidecar forwarded."""
    due = b"%d" % now()  # what is in the ready topic is due; a wait of a second left would go to the level of a second
    ours = {"RETRY_TOPIC": group.names.ready.encode(), "RETRY_DUE_AT": due}
    out = waiting(group, 1, 1_000, REAL_TOPIC=b"parcels", ORIGIN_MESSAGE_ID=b"parcels:0:1", **ours)
    row = Row(1, 4_000_001, now(), out.key, out.value, out.headers)
    answer = post(relay, post_of(group.names.ready, row))
    assert (answer.status, answer.json["topic"]) == (201, group.names.level(5_000, group.main))
    assert (answer.json["id"], answer.json["times"]) == ("parcels:0:1", 1)


def test_a_post_that_kafka_finds_too_large_is_413_and_its_neighbours_are_written(
    new_group: FreshGroup, start_sidecar: StartSidecar
) -> None:
    small = new_group()
    create_group(small, config={small.names.level(1_000, small.main): {"max.message.bytes": "5000"}})
    relay = start_sidecar(small, "", overrides=RELAY)
    row = main_row(small)
    large = Row(0, 7, now(), b"k", dense(9_000), ())
    assert post(relay, post_of(small.main, large)).status == 413
    assert post(relay, post_of(small.main, row)).status == 201
    assert len(dump(small.bootstrap, small.names.level(1_000, small.main))) == 1


def test_a_record_as_large_as_its_main_topic_takes_can_be_posted(group: GroupTopics, relay: SidecarProcess) -> None:
    """Given a record of 1 MB: base64 made a body of 1.3 MB of it, which was 413, and its service could not go on."""
    row = main_row(group, dense(980_000))
    answer = post(relay, post_of(group.main, row))
    assert answer.status == 201, answer
    [copy] = arrived(group, group.names.level(1_000, group.main), f"{group.main}:{row.partition}:{row.offset}")
    assert (copy.key, copy.value) == (b"k", row.value)


def test_a_post_that_needs_a_missing_topic_is_503_and_says_which(
    new_group: FreshGroup, start_sidecar: StartSidecar
) -> None:
    half = new_group()
    create_group(half, leave_out=(half.dlq,))
    relay = start_sidecar(half, "", overrides=RELAY)
    answer = post(relay, post_of(half.main, main_row(half), level=-1))
    assert answer.status == 503
    assert half.dlq in answer.json["detail"]
    assert "nothing was written" in answer.json["detail"]
    assert post(relay, post_of(half.main, main_row(half))).status == 201
