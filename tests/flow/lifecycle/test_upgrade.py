"""Two versions in one group: what a newer one left is taken over, left alone or told, and never costs an attempt twice.

What the next version may write is made up.
"""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import TopicPartition

from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.progress_codec import encode
from reconsume.sidecar.core.record import Partition
from reconsume.topics.hold_record import hold_key
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.flow.lifecycle.next_version import MORE_PARTS, leave_progress, left_progress, newer_policy
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.config import config_of
from tests.support.sidecar.policy import CALM, SECONDS, follows, policy_of, set_policy, with_policy, write
from tests.support.sidecar.redrive import dead_letter, dlq

COUNT = 40
DONE = frozenset({11, 12, 20, 39})
"""Offsets above the committed one, 10, that the version before has done."""
LEFT = [offset for offset in range(10, COUNT) if offset not in DONE]


def produced(group: GroupTopics) -> None:
    produce(group.bootstrap, group.main, [Out(b"flaky" if n % 2 else b"fine", partition=0) for n in range(COUNT)])


def test_a_partition_whose_progress_has_unknown_parts_is_taken_over_without_a_second_attempt(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    produced(group)
    written = encode(Partition(group.main, 0), Progress(10, DONE, clean=True)) + MORE_PARTS
    leave_progress(group.bootstrap, group.group, {TopicPartition(group.main, 0, 10): written})
    service = start_service(by_name({"flaky": (FAIL, OK), "fine": (OK,)}))
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    await_quiet(group, SECONDS)
    firsts = sorted(int(d.id.rpartition(":")[2]) for d in service.ledger.deliveries() if d.times == 0)
    assert firsts == LEFT
    assert sidecar.metric("reconsume_unread_progress_total") == 0
    sidecar.stop()
    metadata = left_progress(group.bootstrap, group.group, group.main)
    assert metadata.startswith("rc1.c.")
    assert "later" not in metadata
    events = [json.loads(row.value or b"") for row in dump(group.bootstrap, group.names.events)]
    waiting = sorted(event["offset"] for event in events if event["state"] == "WAITING_RETRY")
    assert waiting == [offset for offset in LEFT if offset % 2], "each failure is counted once"


def test_progress_in_an_unknown_form_keeps_its_offset_and_is_told(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    group = create_group(new_group(), partitions=1)
    produced(group)
    leave_progress(group.bootstrap, group.group, {TopicPartition(group.main, 0, 10): "rc3.AAAA.later"})
    service = start_service(by_name({"flaky": (FAIL, OK), "fine": (OK,)}))
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    await_quiet(group, SECONDS)
    firsts = sorted(int(d.id.rpartition(":")[2]) for d in service.ledger.deliveries() if d.times == 0)
    assert firsts == list(range(10, COUNT)), "nothing below the offset again, and nothing above it passed over"
    assert sidecar.metric("reconsume_unread_progress_total") == 1
    assert sidecar.log().count("a newer version of Reconsume wrote it, in the form 'rc3'") == 1
    sidecar.stop()


def test_a_policy_of_a_higher_version_leaves_the_running_one_in_force_and_is_told_and_not_replaced(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    service = start_service(by_name({}))
    sidecar = start_sidecar(group, service.url, overrides=CALM)
    set_policy(group, max_reconsume_times=1, unheard_of={"a": [1]})
    follows(sidecar, max_reconsume_times=1)
    write(group, newer_policy())
    write(group, b'{"v": 2, "wants": ["orders"]}', b"instance/pod-of-the-next-version")

    def told() -> list[str]:
        refused: list[str] = sidecar.status()["policy"]["refused"]
        return refused

    sidecar.until(told, SECONDS, "the policy is refused")
    assert "a newer version of Reconsume wrote it (v 2)" in told()[0]
    assert policy_of(sidecar)["policy"]["max_reconsume_times"] == 1
    sidecar.wait_log("newer instances are not compared")
    assert sidecar.metric("reconsume_bad_policy_records_total") == 0

    file = tmp_path / "reconsume.json"
    file.write_text(json.dumps(config_of(group, service.url, 8471)), encoding="utf-8")
    before = dump(group.bootstrap, group.names.policy)
    refused = reconsume("policy", "set", "max_reconsume_times=2", "--yes", "-c", file)
    assert refused.exit_code == 1
    assert "Set it with that version" in refused.stderr
    after = [row for row in dump(group.bootstrap, group.names.policy) if row.key == b"policy"]
    assert after == [row for row in before if row.key == b"policy"], "what the newer version wrote is still there"

    replaced = reconsume("policy", "set", "max_reconsume_times=2", "--replace", "--yes", "-c", file)
    assert replaced.exit_code == 0, replaced.stderr
    follows(sidecar, max_reconsume_times=2)
    assert told() == []
    sidecar.stop()


def test_a_hold_of_a_higher_version_is_left_alone_and_named_until_all_are_released(
    new_group: FreshGroup, tmp_path: Path
) -> None:
    group = with_policy(new_group())
    write(group, b'{"v": 2, "tenant": "a"}', hold_key("of-the-next-version"))
    file = tmp_path / "reconsume.json"
    file.write_text(json.dumps(config_of(group, "http://127.0.0.1:1", 8471)), encoding="utf-8")

    def values() -> list[bytes | None]:
        return [row.value for row in dump(group.bootstrap, group.names.policy)]

    listed = reconsume("holds", "-c", file)
    assert "hold of-the-next-version: a newer version of Reconsume wrote it (v 2)" in listed.stderr
    assert reconsume("release", "of-the-next-version", "-c", file).exit_code == 1
    assert values() == [b'{"v": 2, "tenant": "a"}']
    released = reconsume("release", "--all", "-c", file)
    assert (released.exit_code, "released 1 hold" in released.stderr) == (0, True), released.stderr
    assert values()[-1] is None
    assert "newer version" not in reconsume("holds", "-c", file).stderr


def test_a_redrive_leaves_alone_what_a_newer_version_knows_of_redrives(new_group: FreshGroup, tmp_path: Path) -> None:
    group, metadata = create_group(new_group(), partitions=1), "rd2.AAAA"
    produce(group.bootstrap, group.dlq, [dead_letter(group, number) for number in range(3)])
    leave_progress(group.bootstrap, group.names.redrive_group, {TopicPartition(group.dlq, 0, 2): metadata})
    for words in (("redrive", "--dry-run"), ("redrive", "--yes"), ("purge", "--until", "0s", "--dry-run")):
        code, _, said = dlq(group, tmp_path, *words)
        assert code == 1
        assert "is kept by a newer version of Reconsume" in said
    code, rows, said = dlq(group, tmp_path, "list")
    assert (code, len(rows)) == (0, 3), said
    assert dump(group.bootstrap, group.names.ready) == [], "nothing was brought back"
    assert left_progress(group.bootstrap, group.names.redrive_group, group.dlq) == metadata
