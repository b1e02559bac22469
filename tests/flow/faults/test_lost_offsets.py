"""Offsets that are gone: what was lost is counted and shown, and the sidecar goes on with what is there."""

from __future__ import annotations

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.service.behaviours import OK

FIRST, LOST, LEFT = 10, 15, 5


def truncate(group: GroupTopics, before: int) -> None:
    """Delete what lies below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records([TopicPartition(group.main, 0, before)]).values():
        future.result(SECONDS)


def named(name: str, count: int) -> list[Out]:
    return [Out(b"%s %d" % (name.encode(), number), partition=0) for number in range(count)]


def test_records_that_are_gone_at_the_start_are_counted_and_the_rest_is_delivered(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group())
    service = start_service(lambda _request: OK)
    before = start_sidecar(group, service.url)
    produce(group.bootstrap, group.main, named("first", FIRST))
    before.until(lambda: len(service.ledger.taken()) == FIRST, 15, "the first records are taken")
    assert before.stop().code == 0
    produce(group.bootstrap, group.main, [*named("lost", LOST), *named("left", LEFT)])
    truncate(group, FIRST + LOST)
    after = start_sidecar(group, service.url)
    after.until(lambda: len(service.ledger.taken()) == FIRST + LEFT, 15, "what is left is taken")
    assert after.metric(f'reconsume_records_lost_total{{topic="{group.main}"}}') == LOST
    assert "is not in the log" in after.log()
    assert after.stop().code == 0
    values = sorted((delivery.value or b"").split()[0] for delivery in service.ledger.deliveries())
    assert values == [b"first"] * FIRST + [b"left"] * LEFT
