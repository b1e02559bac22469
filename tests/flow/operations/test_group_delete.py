"""`group delete`: everything of a group goes, nothing of its neighbours, and not while anybody would lose a record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace as replace_struct
from typer.testing import Result

from reconsume.sidecar.clock import wall
from reconsume.sidecar.kafka.admin.changes import Acls, Rule
from reconsume.sidecar.kafka.admin.cluster import Connection
from reconsume.topics.acls import GroupShape, User, permissions_of
from reconsume.topics.policy_record import OWNER, QueryTold, SubscriptionRecord, render_record
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka
from tests.support.kafka.topic_io import SECONDS, Out, dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, by_name, verdict
from tests.support.sidecar.cli import for_group
from tests.support.sidecar.dlq_calls import rows
from tests.support.sidecar.policy import with_policy

SCRIPT = by_name({"dead": (verdict("dead-letter; reason=no"),), "flaky": (FAIL, OK)})


def delete(folder: Path, group: GroupTopics, *words: str, **more: object) -> Result:
    return for_group(folder, group, "group", "delete", *words, **more)


def topics_of(group: GroupTopics) -> set[str]:
    """The topics on the broker whose name begins as the group's."""
    names = AdminClient({"bootstrap.servers": group.bootstrap}).list_topics(timeout=SECONDS).topics
    return {name for name in names if name.startswith(group.group)}


def groups_of(group: GroupTopics) -> set[str]:
    """The consumer groups of which the name begins as the group's."""
    listing = AdminClient({"bootstrap.servers": group.bootstrap}).list_consumer_groups().result(SECONDS)
    return {one.group_id for one in listing.valid if one.group_id.startswith(group.group)}


def test_a_group_goes_once_it_has_no_member_no_retry_and_no_open_dead_letter(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Given a group that works, and one whose name begins with its name, then the second one keeps everything."""
    group = create_group(new_group())
    neighbour = create_group(replace(group, group=f"{group.group}-eu"), leave_out=group.mains)
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url)
    produce(group.bootstrap, group.main, [Out(b"dead"), Out(b"flaky"), Out(b"fine")])
    await_quiet(group, 60)
    assert len(dump(group.bootstrap, group.dlq)) == 1
    running = delete(tmp_path, group, "--yes")
    assert (running.exit_code, "the group has members: reconsume-" in running.stderr) == (1, True), running.stderr
    assert sidecar.stop().code == 0
    open_ = delete(tmp_path, group, "--yes")
    assert (open_.exit_code, "1 dead letter about which nobody has decided" in open_.stderr) == (1, True), open_.stderr
    purged = for_group(tmp_path, group, "dlq", "purge", "--until", "0s", "--confirm", group.group)
    assert purged.exit_code == 0, purged.stderr
    before = topics_of(group), groups_of(group)
    planned = delete(tmp_path, group, "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    assert (topics_of(group), groups_of(group)) == before
    named = {row["name"] for row in rows(planned)}
    assert topics_of(group) - topics_of(neighbour) <= named
    assert group.main not in named
    done = delete(tmp_path, group, "--yes")
    assert (done.exit_code, {row["action"] for row in rows(done)}) == (0, {"deleted"}), done.stderr
    until(lambda: topics_of(group) == topics_of(neighbour), SECONDS, "its topics are gone, and no others")
    assert groups_of(group) == groups_of(neighbour)
    assert len(dump(group.bootstrap, group.main)) == 3, "the main topic is as it was"
    again = delete(tmp_path, group, "--yes")
    assert (again.exit_code, "nothing of it is there" in again.stderr) == (0, True), again.stderr


def test_the_progress_of_spark_queries_goes_too_but_not_while_one_reads(new_group: FreshGroup, tmp_path: Path) -> None:
    """Given a query that has handled a copy and is gone, and then one that lives."""
    group = with_policy(replace(new_group(), delays=(1_000,)))
    names, (level,) = group.names, group.levels
    private = names.spark_group("ship")
    producer = Producer({"bootstrap.servers": group.bootstrap, "transactional.id": private})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(level, b"a copy", partition=0)
    producer.commit_transaction(SECONDS)
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": private, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(level, 0, 0)], asynchronous=False)
    kept = delete(tmp_path, group, "--yes")
    assert (kept.exit_code, f"at most 1 record waiting in {level}" in kept.stderr) == (1, True), kept.stderr
    consumer.commit(offsets=[TopicPartition(level, 0, 1)], asynchronous=False)
    consumer.close()
    query = QueryTold("ship", "app-1", "host-1", wall(), "nonce", gated=True)
    record = SubscriptionRecord({group.main: "*"}, wall(), mode="spark", started=wall(), query=query)
    produce(group.bootstrap, names.policy, [Out(render_record(record), OWNER)])
    lives = delete(tmp_path, group, "--yes")
    assert (lives.exit_code, 'the Spark query "ship"' in lives.stderr) == (1, True), lives.stderr
    ended = replace_struct(record, query=replace_struct(query, ended=True))
    produce(group.bootstrap, names.policy, [Out(render_record(ended), OWNER)])
    done = delete(tmp_path, group, "--yes")
    assert (done.exit_code, {row["action"] for row in rows(done)}) == (0, {"deleted"}), done.stderr
    assert private not in groups_of(group)


def test_a_retry_that_waits_keeps_the_group(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = create_group(replace(new_group(), delays=(600_000,)))
    service = start_service(SCRIPT)
    sidecar = start_sidecar(group, service.url, overrides={"retry": {"ladder": ["10m"]}})
    produce(group.bootstrap, group.main, [Out(b"flaky"), Out(b"fine")])
    (level,) = group.levels
    sidecar.until(lambda: len(dump(group.bootstrap, level)) == 1, 30, "it waits")
    assert sidecar.stop().code == 0
    kept = delete(tmp_path, group, "--yes")
    assert (kept.exit_code, f"waiting in {level}" in kept.stderr) == (1, True), kept.stderr
    assert len(dump(group.bootstrap, level)) == 1


@pytest.fixture
def ruled(guarded: GuardedKafka) -> GroupTopics:
    """A group whose users have their rights, beside one whose name begins with its name."""
    group = create_group(fresh_group(guarded.bootstrap, delays=(1_000,)), partitions=1)
    for one in (group, replace(group, group=f"{group.group}-eu")):
        shape = GroupShape(one.names, one.mains, one.delays)
        for user in (User.SIDECAR, User.ADMIN):
            guarded.allow(user, permissions_of(user, shape))
    return group


def rules(group: GroupTopics) -> set[Rule]:
    return set(Acls(Connection({"bootstrap.servers": group.bootstrap})).found())


def test_rights_on_what_is_gone_go_and_those_on_main_topics_and_of_neighbours_stay(
    ruled: GroupTopics, tmp_path: Path
) -> None:

    def own(some: set[Rule]) -> list[Rule]:
        names = (ruled.group, *(f"{ruled.group}-{word}" for word in ("RETRY", "DLQ", "main", "retry")))
        return [rule for rule in some if rule.name.startswith(names[1:]) or rule.name == names[0]]

    before = rules(ruled)
    assert own(before)
    done = delete(tmp_path, ruled, "--yes")
    assert done.exit_code == 0, done.stderr
    until(lambda: not own(rules(ruled)), SECONDS, "its rights are gone")
    gone = before - rules(ruled)
    assert not any(rule.name == ruled.main or f"{ruled.group}-eu" in rule.name for rule in gone)


def test_the_role_admin_may_delete_a_group_and_is_told_which_rights_stay(
    ruled: GroupTopics, guarded: GuardedKafka, tmp_path: Path
) -> None:
    before = rules(ruled)
    done = delete(tmp_path, replace(ruled, bootstrap=guarded.address), "--yes", kafka=guarded.login("admin"))
    assert done.exit_code == 0, done.stderr
    assert "rights stay: this user may not see them" in done.stderr
    assert rules(ruled) == before
    until(lambda: topics_of(ruled) == topics_of(replace(ruled, group=f"{ruled.group}-eu")), SECONDS, "its topics go")
