"""A record with more headers than Kafka's client reads is retried without them, and so is one whose copies would be.

The client shows a record with more than 100 000 headers as one without any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from reconsume.topics.dead_letter_headers import DLQ_OFFSET
from reconsume.topics.retry_headers import MOST_HEADERS, ORIGIN_MESSAGE_ID, RETRY_HEADERS_DROPPED
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request, verdict

SECONDS = 30.0
NO_ROOM = MOST_HEADERS - 5
COUNTS = {b"none": 0, b"some": 3, b"nearly": MOST_HEADERS - 100, b"no room": NO_ROOM, b"more": MOST_HEADERS + 1}
KEPT = {b"none": 0, b"some": 3, b"nearly": MOST_HEADERS - 100, b"no room": 0, b"more": 0}
"""How many own headers a copy has."""
DEAD = {b"dead: no room": NO_ROOM, b"dead: more": 3 * MOST_HEADERS}


def failing_once(request: Request) -> Behaviour:
    if (request.value or b"").startswith(b"dead"):
        return verdict("dead-letter") if request.times else FAIL
    return OK if request.times else FAIL


class Run(NamedTuple):
    """What came of it: the copies and the dead letters by value, how often each value was posted, and the ids."""

    copies: Mapping[bytes, Row]
    dead: Mapping[bytes, Row]
    posted: Counter[bytes | None]
    ids: Mapping[bytes, str]


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    group: GroupTopics = create_group(new_group())
    outs = [Out(name, b"k", (("a", b""),) * count) for name, count in (COUNTS | DEAD).items()]
    places = produce(group.bootstrap, group.main, outs)
    ids = {out.value or b"": f"{group.main}:{number}:{at}" for out, (number, at) in zip(outs, places, strict=True)}
    service = start_service(failing_once)
    sidecar = start_sidecar(group, service.url)
    sidecar.until(lambda: {ids[name] for name in COUNTS} <= service.ledger.taken(), SECONDS, "all are retried and done")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == len(DEAD), SECONDS, "the others are dead")
    sidecar.stop()
    copies = {row.value or b"": row for row in dump(group.bootstrap, group.names.level(1_000, group.main))}
    dead = {row.value or b"": row for row in dump(group.bootstrap, group.dlq)}
    return Run(copies, dead, Counter(delivery.value for delivery in service.ledger.deliveries()), ids)


@pytest.mark.parametrize("name", COUNTS)
def test_every_record_is_retried_whatever_number_of_headers_it_has(run: Run, name: bytes) -> None:
    assert sum(key == "a" for key, _ in run.copies[name].headers) == KEPT[name]
    assert dict(run.copies[name].headers)[ORIGIN_MESSAGE_ID] == run.ids[name].encode()
    assert run.posted[name] == 2


def test_copies_that_could_not_be_read_leave_their_headers_and_say_how_many(run: Run) -> None:
    said = {name: dict(copy.headers).get(RETRY_HEADERS_DROPPED) for name, copy in run.copies.items()}
    assert {name: count for name, count in said.items() if count} == {
        b"no room": b"%d" % NO_ROOM,
        b"dead: no room": b"%d" % NO_ROOM,
    }


@pytest.mark.parametrize("name", DEAD)
def test_a_dead_letter_without_its_headers_names_the_record_that_has_them(run: Run, name: bytes) -> None:
    said = dict(run.dead[name].headers)
    assert said[DLQ_OFFSET] == run.ids[name].rpartition(":")[2].encode()
    assert said.get(RETRY_HEADERS_DROPPED) == (b"%d" % NO_ROOM if name == b"dead: no room" else None)
    assert "a" not in said
