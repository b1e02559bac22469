"""A record with more headers than Kafka's client reads is for that client one without any.

Such a record is never retried as if it had none: it is a dead letter once it has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from reconsume.topics.dead_letter_headers import DLQ_OFFSET
from reconsume.topics.retry_headers import MOST_HEADERS, ORIGIN_MESSAGE_ID, RETRY_REASON
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request

SECONDS = 30.0
PLAIN = 40
COUNTS = {b"one more": MOST_HEADERS + 1, b"many more": 3 * MOST_HEADERS, b"no room for ours": MOST_HEADERS - 5}
READABLE = {b"none": 0, b"some": 3, b"nearly too many": MOST_HEADERS - 100}


def failing_once(request: Request) -> Behaviour:
    return OK if request.times else FAIL


def headers_of(count: int) -> tuple[tuple[str, bytes | None], ...]:
    return (("a", b""),) * count


class Run(NamedTuple):
    """What came of it: the dead letters by the id of their record, how often each value was posted, and the ids."""

    group: GroupTopics
    dead: Mapping[str, Row]
    posted: Counter[bytes | None]
    ids: Mapping[bytes, str]


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    group = create_group(new_group())
    outs = [Out(name, b"k", headers_of(count)) for name, count in (COUNTS | READABLE).items()]
    outs += [Out(b"plain:%d" % number, b"k%d" % number) for number in range(PLAIN)]
    places = produce(group.bootstrap, group.main, outs)
    ids = {out.value or b"": f"{group.main}:{number}:{at}" for out, (number, at) in zip(outs, places, strict=True)}
    service = start_service(failing_once)
    sidecar = start_sidecar(group, service.url)
    good = {ids[name] for name in ids if name not in COUNTS}
    sidecar.until(lambda: good <= service.ledger.taken(), SECONDS, "what can be read is retried and done")
    sidecar.until(lambda: len(dump(group.bootstrap, group.dlq)) == len(COUNTS), SECONDS, "the others are dead")
    sidecar.stop()
    letters = [(dict(row.headers)[ORIGIN_MESSAGE_ID] or b"", row) for row in dump(group.bootstrap, group.dlq)]
    posted = Counter(delivery.value for delivery in service.ledger.deliveries())
    return Run(group, {origin.decode(): row for origin, row in letters}, posted, ids)


@pytest.mark.parametrize("name", COUNTS)
def test_a_failed_record_with_more_headers_than_are_read_is_a_dead_letter_that_says_where_they_are(
    run: Run, name: bytes
) -> None:
    letter = run.dead[run.ids[name]]
    said = dict(letter.headers)
    assert letter.value == name
    assert (said[RETRY_REASON] or b"").startswith(b"too-large: it has more than 100000 headers; before that: http-500")
    assert said[DLQ_OFFSET] == run.ids[name].rpartition(":")[2].encode()
    assert "a" not in said, "it would be unreadable itself"
    assert run.posted[name] == 1


@pytest.mark.parametrize("name", READABLE)
def test_a_record_with_fewer_headers_is_retried_with_all_of_them(run: Run, name: bytes) -> None:
    copies = dump(run.group.bootstrap, run.group.names.level(1_000, run.group.main))
    (copy,) = (row for row in copies if row.value == name)
    assert sum(key == "a" for key, _ in copy.headers) == READABLE[name]
    assert run.posted[name] == 2


def test_no_record_without_headers_notices(run: Run) -> None:
    assert len(run.dead) == len(COUNTS)
    assert {run.posted[b"plain:%d" % number] for number in range(PLAIN)} == {2}
