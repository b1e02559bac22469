"""One transactional producer against a real broker whose connections a proxy cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer
from msgspec.structs import replace

from reconsume.sidecar.core.commit_batch import CommitBatch, PartitionCommit, SettledRecord, WrittenAt
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.kafka.client_config import producer_config
from reconsume.sidecar.kafka.committer.committer import offsets_of, written_progress
from reconsume.sidecar.kafka.committer.transaction import TransactionalProducer
from reconsume.sidecar.kafka.committer.transaction_outcome import Aborted, OutcomeUnknown
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.support.deadline import until
from tests.support.kafka.proxy_rules import Api, Fate, Moment, Rule
from tests.support.kafka.topic_io import SECONDS, create_topic, dump
from tests.support.sidecar.scene import Proxied

pytestmark = pytest.mark.usefixtures("cleared")

SOURCE, TARGET, GROUP, CLIENT = "source", "target", "group", "committer"
EACH = 5


@pytest.fixture(scope="module")
def proxied(proxied: Proxied) -> Proxied:
    create_topic(proxied.kafka.bootstrap, SOURCE)
    create_topic(proxied.kafka.bootstrap, TARGET)
    return proxied


@pytest.fixture
def outsider(proxied: Proxied) -> Iterator[Any]:
    """The metadata of a consumer that never joined: whatever it commits is taken."""
    consumer = Consumer({"bootstrap.servers": proxied.kafka.bootstrap, "group.id": GROUP})
    yield consumer.consumer_group_metadata()
    consumer.close()


@pytest.fixture
def gone(proxied: Proxied) -> Any:
    """The metadata of a member that has left: whatever it commits is refused at once, and the transaction aborted."""
    consumer = Consumer({"bootstrap.servers": proxied.kafka.bootstrap, "group.id": GROUP})
    consumer.subscribe([SOURCE])
    until(lambda: consumer.consume(1, 0.1) or consumer.assignment(), SECONDS, "it is a member")
    metadata = consumer.consumer_group_metadata()
    consumer.close()
    return metadata


def new_producer(proxied: Proxied, *, locates: bool = False) -> TransactionalProducer:
    user = {"bootstrap.servers": proxied.proxy.address}
    producer = TransactionalProducer(producer_config(user, "id", CLIENT, locates=locates))
    producer.prepare()
    return producer


def commit(
    producer: TransactionalProducer, batch: CommitBatch, metadata: Any, partitions: Mapping[str, int]
) -> dict[int, WrittenAt]:
    """Commit a batch, as a committer does."""
    return producer.commit(batch.entries, offsets_of(written_progress(batch)), metadata, partitions)


def batch_of(first: int, topic: str = TARGET) -> CommitBatch:
    """Copies of the records from `first` on, each named by its offset."""
    place = Partition(SOURCE, 0)
    entries = []
    for offset in range(first, first + EACH):
        record = Record(place, offset, 1, 0, None, b"", [], None)
        entries.append(SettledRecord(record, Commit(None), (Copy(topic, None, b"%d" % offset, []),)))
    return CommitBatch(tuple(entries), {place: PartitionCommit(1, Progress(first + EACH))})


def test_records_that_an_abort_finds_sent_and_not_confirmed_cost_no_later_record(
    proxied: Proxied, outsider: Any, gone: Any
) -> None:
    """The broker has them and its answer is lost: the client would use their sequence numbers again, and the broker
    take what comes next for duplicates: it would confirm and commit it, and write nothing.

    Where the machine stands still meanwhile the records' own time is over first, and the client's abort, which then
    takes a new epoch, may find that the broker has aborted already: then nobody knows, and the producer is done too."""
    producer = new_producer(proxied)
    commit(producer, batch_of(0), outsider, {TARGET: 1})
    proxied.proxy.add(Rule(Api.PRODUCE, CLIENT, Moment.ANSWERED, times=1_000, fate=Fate.CUT))
    with pytest.raises((Aborted, OutcomeUnknown)) as ended:
        commit(producer, batch_of(EACH), gone, {TARGET: 1})
    proxied.proxy.clear()
    if isinstance(ended.value, OutcomeUnknown) or ended.value.producer_unusable:  # type: ignore[attr-defined]
        producer.end()
        producer = new_producer(proxied)
    for number in (1, 2, 3):
        commit(producer, batch_of(number * EACH), outsider, {TARGET: 1})
    producer.end()
    assert [row.value for row in dump(proxied.kafka.bootstrap, TARGET)] == [b"%d" % n for n in range(4 * EACH)]


def test_an_abort_that_finds_all_confirmed_leaves_the_producer_as_good_as_new(
    proxied: Proxied, outsider: Any, gone: Any
) -> None:
    """So a rebalance, after which offsets are refused, costs no new producer."""
    topic = "confirmed"
    create_topic(proxied.kafka.bootstrap, topic)
    producer = new_producer(proxied)
    batch = batch_of(0, topic)
    with pytest.raises(Aborted) as aborted:
        commit(producer, batch, gone, {topic: 1})
    assert aborted.value.stale_member
    assert not aborted.value.producer_unusable
    commit(producer, batch, outsider, {topic: 1})
    producer.end()
    assert [row.value for row in dump(proxied.kafka.bootstrap, topic)] == [b"%d" % n for n in range(EACH)]


def test_the_copies_for_a_queue_lie_where_the_producer_says_with_one_marker_behind_each_transaction(
    proxied: Proxied, outsider: Any
) -> None:
    """So a lane that knows the end of its last transaction knows whether others have written since."""
    bootstrap, batch = proxied.kafka.bootstrap, batch_of(0, "queue")
    create_topic(bootstrap, "queue", 2)
    producer = new_producer(proxied, locates=True)
    producer.timestamp = lambda: 1_763_690_000_000
    exact = [replace(entry, writes=(replace(entry.writes[0], exact=True, spread=1),)) for entry in batch.entries]
    assert commit(producer, batch, outsider, {"queue": 2}) == {}
    outputs = tuple(replace(entry, writes=(replace(entry.writes[0], spread=0),), outputs=1) for entry in exact)
    assert commit(producer, CommitBatch(outputs, batch.commits), outsider, {"queue": 2}) == {}
    first = commit(producer, CommitBatch(tuple(exact[:3]), batch.commits), outsider, {"queue": 2})
    then = commit(producer, CommitBatch(tuple(exact[3:]), batch.commits), outsider, {"queue": 2})
    producer.end()
    lying = [(row.offset, row.timestamp) for row in dump(bootstrap, "queue") if row.partition == 1]
    assert [*first.values(), *then.values()] == lying
    assert (list(first), list(then)) == ([0, 1, 2], [0, 1])
    assert then[0][0] == first[2][0] + 2
