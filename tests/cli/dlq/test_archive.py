"""`dlq export`, `import` and `purge` on a real broker, and what all `dlq` commands refuse."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.dlq.archive import LONGEST_LINE, read_letters
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.policy import build_policy
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import SECONDS, dump
from tests.support.sidecar.dlq_calls import DAY, Call, actions, now, plant, rows
from tests.support.sidecar.redrive import dead_letter
from tests.support.sidecar.settings import good

OPEN_S = 2.0
"""Seconds for which a transaction is open: an import takes less where none is."""


def test_an_export_is_imported_byte_for_byte_and_twice_is_harmless(
    call: Call, group: GroupTopics, tmp_path: Path
) -> None:
    own = (("a", b"1"), ("a", None), ("é", b"\xff\x00"))
    plant(group, dead_letter(group, 1, b"\xff\x00", own=own), dead_letter(group, 2, None, key=None))
    plant(group, dead_letter(group, 3, b"", key=b""))
    before = dump(group.bootstrap, group.dlq)
    exported = call("export")
    assert exported.exit_code == 0
    file = tmp_path / "dead.jsonl"
    file.write_text(exported.stdout, encoding="utf-8")
    there = call("import", file, "--yes")
    assert (there.exit_code, actions(there)) == (0, [("there already", 3)])
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records([TopicPartition(group.dlq, 0, 2)]).values():
        future.result(20)
    dry = call("import", file, "--dry-run")
    assert actions(dry) == [("import", 2), ("there already", 1)]
    assert len(dump(group.bootstrap, group.dlq)) == 1
    assert actions(call("import", file, "--yes")) == [("imported", 2), ("there already", 1)]
    assert actions(call("import", file, "--yes")) == [("there already", 3)]
    after = dump(group.bootstrap, group.dlq)
    bare = {(row.key, row.value, row.headers) for row in before}
    assert (len(after), {(row.key, row.value, row.headers) for row in after}) == (3, bare)


def test_a_letter_behind_an_open_transaction_is_not_taken_for_absent(
    call: Call, group: GroupTopics, tmp_path: Path
) -> None:
    """A lane writes to the DLQ meanwhile: what lies behind its transaction cannot be read before that has ended."""
    plant(group, dead_letter(group, 1))
    file = tmp_path / "dead.jsonl"
    file.write_text(call("export").stdout, encoding="utf-8")
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records([TopicPartition(group.dlq, 0, 1)]).values():
        future.result(20)
    lane = Producer({"bootstrap.servers": group.bootstrap, "transactional.id": group.group, "log_level": 0})
    lane.init_transactions(SECONDS)
    lane.begin_transaction()
    lane.produce(group.dlq, b"of the lane", partition=0)
    assert lane.flush(SECONDS) == 0
    plant(group, dead_letter(group, 1))
    ends = threading.Timer(OPEN_S, lane.commit_transaction)
    ends.start()
    assert actions(call("import", file, "--yes")) == [("there already", 1)]
    ends.join(SECONDS)
    assert len(dump(group.bootstrap, group.dlq)) == 2


def test_a_file_with_a_bad_line_is_refused_as_a_whole(call: Call, group: GroupTopics, tmp_path: Path) -> None:
    plant(group, dead_letter(group, 1))
    good = json.loads(call("export").stdout)
    stolen = {"REAL_TOPIC": b"stolen", "ORIGIN_MESSAGE_ID": b"stolen:0:1"}
    headers = [[name, base64.b64encode(stolen[name]).decode() if name in stolen else value]
               for name, value in good["headers"]]  # fmt: skip
    foreign = {**good, "headers": headers}
    broken = {**good, "value_base64": "%%%"}
    file = tmp_path / "dead.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in (good, foreign, broken)) + "\n{\n", encoding="utf-8")
    refused = call("import", file, "--yes")
    assert (refused.exit_code, refused.stdout) == (78, "")
    for line, said in ((2, "its topic stolen is not among the topics"), (3, "not as `dlq export`"), (4, "not as")):
        assert f"line {line}: " in refused.stderr
        assert said in refused.stderr
    assert len(dump(group.bootstrap, group.dlq)) == 1


def test_a_purge_deletes_what_kafka_can_and_says_what_it_cannot(call: Call, group: GroupTopics) -> None:
    at = now()
    ages = (40, 39, 38, 1, 37, 2)
    plant(group, *(dead_letter(group, n, at=at - days * DAY) for n, days in enumerate(ages)))
    dry = call("purge", "--until", "30d", "--dry-run")
    assert [(row["delete"], row["never_redriven"], row["stays_behind"]) for row in rows(dry)] == [(3, 3, 1)]
    assert "3 dead letters go, 3 of them never redriven" in dry.stderr
    assert "1 that are meant cannot go" in dry.stderr
    behind = call("purge", "--since", "39d12h", "--until", "30d", "--dry-run")
    assert [(row["delete"], row["older"], row["stays_behind"]) for row in rows(behind)] == [(0, 1, 3)]
    assert call("purge", "--until", "30d").exit_code == 2  # no terminal
    wrong = call("purge", "--until", "30d", "--confirm", "yes")
    assert (wrong.exit_code, "must be the group's name" in wrong.stderr) == (2, True)
    assert len(dump(group.bootstrap, group.dlq)) == 6
    done = call("purge", "--until", "30d", "--confirm", group.group)
    assert (done.exit_code, [row["error"] for row in rows(done)]) == (0, [""])
    assert [row.offset for row in dump(group.bootstrap, group.dlq)] == [3, 4, 5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("redrive", "--since", "yesterday"), "neither a duration like 1h nor RFC 3339"),
        (("redrive", "--since", "2026-01-01T00:00:00"), "neither a duration like 1h nor RFC 3339"),
        (("redrive", "--id", ""), "a filter must be text"),
        (("list", "--state", "dead"), "--state is ready, redriven"),
        (("export", "-o", "table"), "an export is JSON lines"),
    ],
)
def test_wrong_usage(call: Call, words: tuple[str, ...], said: str) -> None:
    shown = call(*words)
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert said in shown.stderr


def test_a_file_that_is_no_export_is_given_up_early(tmp_path: Path) -> None:
    """Given lines without end that are no letters, or a line without end, then few are told, and little is kept."""
    policy, file = build_policy(good(tmp_path), "pod-0"), tmp_path / "dead.jsonl"
    file.write_bytes(b"x\n" * 1_000)
    with pytest.raises(ConfigError) as refused:
        list(read_letters(file, policy))
    assert [one.partition(":")[0].rpartition(" ")[2] for one in refused.value.problems] == [*map(str, range(1, 21))]
    with file.open("wb") as sparse:
        sparse.truncate(LONGEST_LINE + 2)
    with pytest.raises(ConfigError) as refused:
        list(read_letters(file, policy))
    assert refused.value.problems == [f"{file}, line 1: has more than {LONGEST_LINE} bytes"]
