"""What a second look at records tells of their headers: where they are, are gone, and where nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.core.record import Partition
from reconsume.sidecar.kafka.client_config import reader_config
from reconsume.sidecar.kafka.committer.hidden_headers import NEAR, HiddenHeaders
from reconsume.sidecar.kafka.credentials.registry import CredentialRegistry, Credentials, unchanging
from reconsume.topics.retry_headers import MOST_HEADERS
from tests.sim.samples import record
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, produce

SECONDS = 20.0
GONE = 3
"""The first offsets of partition 0, which are deleted."""
HIDDEN = (5, 5 + 3 * NEAR)
"""Offsets of partition 0 whose records have too many headers."""
LAST = 6 + 3 * NEAR


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    group = create_group(fresh_group(kafka.bootstrap))
    many = (("a", b""),) * (MOST_HEADERS + 1)
    outs = [Out(b"v", partition=0, headers=many if at in HIDDEN else ()) for at in range(LAST + 1)]
    produce(group.bootstrap, group.main, outs)
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for done in admin.delete_records([TopicPartition(group.main, 0, GONE)]).values():
        done.result(SECONDS)
    return group


@pytest.fixture
def headers(group: GroupTopics) -> Iterator[HiddenHeaders]:
    config = reader_config({"bootstrap.servers": group.bootstrap}, group.group, "test")
    with closing(HiddenHeaders(config, unchanging())) as headers:
        yield headers


def clients() -> frozenset[str]:
    """The main threads of librdkafka's clients in this process, by their ids."""
    return frozenset(task.name for task in Path("/proc/self/task").iterdir() if name_of(task) == "rdk:main")


def name_of(task: Path) -> str:
    """The name of a thread; empty if it has ended since it was listed."""
    try:
        return (task / "comm").read_text(encoding="utf-8").strip()
    except OSError:  # FileNotFoundError, or ProcessLookupError amid the read
        return ""


def test_only_records_with_too_many_headers_are_named_wherever_the_others_went(
    headers: HiddenHeaders, group: GroupTopics
) -> None:
    """Deleted, there, far apart, and in a topic that does not exist."""
    here, missing = Partition(group.main, 0), Partition("nowhere", 0)
    wanted = [(here, at) for at in (0, GONE - 1, GONE, 4, *HIDDEN, LAST)] + [(missing, 7)]
    for _ in range(2):  # the same client is asked again
        looked = headers.look(record(offset, source=source) for source, offset in wanted)
        assert looked.hidden == {(here, at) for at in HIDDEN}
        assert looked.unread == {(missing, 7)}


def test_what_lies_behind_the_end_of_its_log_may_come_yet_and_is_gone_when_it_has_not_come_for_long(
    group: GroupTopics,
) -> None:
    """Behind the last record, and in an empty partition: a leader may be behind what is committed, for a while."""
    here, empty = Partition(group.main, 0), Partition(group.main, 1)
    behind = {(here, LAST + 50), (empty, 0)}
    wanted = [record(offset, source=source) for source, offset in ((here, 4), (here, HIDDEN[0]), *behind)]
    config = reader_config({"bootstrap.servers": group.bootstrap}, group.group, "test")
    for sure_after_s, unread in ((60.0, behind), (0.0, set())):
        with closing(HiddenHeaders(config, unchanging(), sure_after_s)) as headers:
            for _ in range(2):
                looked = headers.look(wanted)
                assert looked.hidden == {(here, HIDDEN[0])}
                assert looked.unread == unread


def test_a_partition_that_nobody_answers_for_is_named_and_nothing_is_left_of_the_client() -> None:
    before = clients()
    config = reader_config({"bootstrap.servers": "127.0.0.1:1"}, "g", "test")
    with closing(HiddenHeaders(config, unchanging())) as headers:
        looked = headers.look([record(0, source=Partition("orders", 0))])
        assert looked.unread == {(Partition("orders", 0), 0)}
        assert clients() <= before, "the next look has another client"


def test_new_credentials_make_a_new_client_though_their_files_have_the_same_names(group: GroupTopics) -> None:
    registry, others = CredentialRegistry(), clients()
    config = reader_config({"bootstrap.servers": group.bootstrap}, group.group, "test")
    at = [record(4, source=Partition(group.main, 0))]
    with closing(HiddenHeaders(config, registry.register("test"))) as headers:
        assert not headers.look(at).unread
        first = clients() - others
        registry.newest = Credentials(1, 1, {})
        assert not headers.look(at).unread
        assert first
        assert clients().isdisjoint(first)
