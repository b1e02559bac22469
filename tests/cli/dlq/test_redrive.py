"""`dlq redrive`, and `dlq import` of edited lines, on a real broker: what comes back, once, and what is left."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from reconsume.topics import retry_headers as wire
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import KEY, PolicyRecord, render_record
from tests.support.kafka.broker import Broker
from tests.support.kafka.dense import dense
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group, set_config
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.dlq_calls import DAY, Call, actions, now, plant, ready, redriven, rows
from tests.support.sidecar.redrive import dead_letter


def test_a_dry_run_and_a_missing_terminal_write_nothing(call: Call, group: GroupTopics) -> None:
    plant(group, dead_letter(group, 1), dead_letter(group, 2, reason="timeout"))
    dry = call("redrive", "--dry-run")
    assert (dry.exit_code, sorted((row["reason"], row["target"]) for row in rows(dry))) == (
        0,
        [("http-500", group.names.ready), ("timeout", group.names.ready)],
    )
    silent = call("redrive")
    assert (silent.exit_code, silent.stdout) == (2, "")
    assert "--yes" in silent.stderr
    assert ready(group) == []
    assert dump(group.bootstrap, group.names.events) == []


def test_an_id_that_no_dead_letter_has_is_an_error(call: Call, group: GroupTopics) -> None:
    plant(group, dead_letter(group, 1))
    unknown = f"{group.main}:77:1"
    for words in (("--dry-run",), ("--yes",)):
        refused = call("redrive", "--id", unknown, *words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"there is no dead letter {unknown}\n" in refused.stderr
    other = call("redrive", "--id", f"{group.main}:0:1", "--reason", "timeout", "--yes")
    assert (other.exit_code, "that meets the other conditions" in other.stderr) == (1, True)


def test_the_plan_names_the_queues_if_only_the_policy_has_the_ladder(kafka: Broker, tmp_path: Path) -> None:
    group = create_group(
        replace(fresh_group(kafka.bootstrap, delays=()), queued=True), partitions=1, also=(Kind.POLICY,)
    )
    ladder = PolicyRecord({"ordered_ladder": ["10s"]}, "ann@host", now(), {})
    produce(group.bootstrap, group.names.policy, [Out(render_record(ladder), KEY, partition=0)])
    plant(group, dead_letter(group, 1))
    file = tmp_path / "reconsume.yaml"
    file.write_text(
        f"group: {group.group}\ntopics: [{group.main}]\nkafka: {{bootstrap.servers: '{group.bootstrap}'}}\n"
        "deliver: {url: 'http://127.0.0.1:1/', order: key}\n"
    )
    dry = reconsume("dlq", "redrive", "--dry-run", "-c", file)
    done = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert [row["target"] for row in rows(dry)] == [group.queues[0]]
    assert f"1 redriven to {group.queues[0]}" in done.stderr


def test_filters_that_overlap_bring_each_letter_back_once(call: Call, group: GroupTopics) -> None:
    reasons = ("http-500", "timeout", "bad-sku")
    plant(group, *(dead_letter(group, n, reason=reasons[n % 3], own=(("n", b"%d" % (n % 2)),)) for n in range(30)))
    asked = (
        ("--id", f"{group.main}:0:0", "--id", f"{group.main}:0:1"),
        ("--reason", "timeout"),
        ("--header", "n=1", "--max", "3"),
        ("--reason", "timeout", "--reason", "bad-sku"),
        ("--since", "1h"),
        (),
    )
    done = [redriven(call("redrive", *words, "--yes")) for words in asked]
    assert (done[:3], sum(done), done[-1]) == ([2, 9, 3], 30, 0)
    ids = [dict(row.headers)[wire.ORIGIN_MESSAGE_ID] for row in ready(group)]
    assert (len(ids), len(set(ids))) == (30, 30)
    assert len(dump(group.bootstrap, group.names.events)) == 30


def test_a_letter_that_kafka_refuses_is_left_said_and_tried_again(call: Call, group: GroupTopics) -> None:
    set_config(group.bootstrap, group.names.ready, "max.message.bytes", "5000")
    plant(group, dead_letter(group, 1), dead_letter(group, 2, dense(9_000)), dead_letter(group, 3))
    first = call("redrive", "--yes")
    assert (first.exit_code, actions(first)) == (3, [("redriven", 2), ("refused", 1)])
    assert "too large" in rows(first)[1]["why"].lower()
    again = call("redrive", "--yes")
    assert (again.exit_code, dict(actions(again))["refused"]) == (1, 1)
    set_config(group.bootstrap, group.names.ready, "max.message.bytes", "50000")
    last = call("redrive", "--yes")
    assert (last.exit_code, dict(actions(last))["redriven"]) == (0, 1)
    assert sorted(len(row.value or b"") for row in ready(group)) == [1, 1, 9_000]


def test_missing_topics_are_one_sentence_with_the_mend(kafka: Broker, tmp_path: Path) -> None:
    bare = fresh_group(kafka.bootstrap, delays=(1_000,))
    create_group(bare, partitions=1, leave_out=[bare.names.ready])
    plant(bare, dead_letter(bare, 1))
    file = tmp_path / "c.yaml"
    tree = {"group": bare.group, "topics": [bare.main], "kafka": {"bootstrap.servers": kafka.bootstrap}}
    file.write_text(json.dumps({**tree, "deliver": {"url": "http://127.0.0.1:1/"}}), encoding="utf-8")
    refused = reconsume("dlq", "redrive", "--yes", "-c", file)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert (
        f"topics: nothing can be redriven: {bare.names.ready}: missing, or not for this user to see; `reconsume topics"
        in refused.stderr
    )
    gone = reconsume("dlq", "list", "-c", file, "--set", "group=nobody-has-this")
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert (
        f"nobody-has-this-DLQ: missing, or not for this user to see; `reconsume topics apply -c {file} "
        "--set group=nobody-has-this` creates what is missing" in gone.stderr
    )


def test_letters_of_which_nothing_is_known_are_left_until_they_are_asked_for(call: Call, group: GroupTopics) -> None:
    """Kafka forgets progress after a week, and dead letters after a month."""
    plant(group, dead_letter(group, 1, at=now() - 20 * DAY), dead_letter(group, 2))
    first = call("redrive", "--yes")
    assert actions(first) == [("redriven", 1), ("forgotten", 1)]
    assert dict(actions(call("redrive", "--forgotten", "--yes")))["redriven"] == 1
    assert len(ready(group)) == 2


def test_after_somebody_reset_the_progress_nothing_is_redriven_by_itself(call: Call, group: GroupTopics) -> None:
    plant(group, dead_letter(group, 1))
    assert call("redrive", "--yes").exit_code == 0
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.names.redrive_group})
    consumer.commit(offsets=[TopicPartition(group.dlq, 0, 0)], asynchronous=False)
    consumer.close()
    assert actions(call("redrive", "--yes")) == [("forgotten", 1)]
    assert len(ready(group)) == 1


def test_an_edited_line_is_redriven_once_with_its_value_and_names_who_changed_it(
    call: Call, group: GroupTopics, tmp_path: Path
) -> None:
    """Given an export of three dead letters, one edited and one of them to null, then these two are redriven."""
    plant(group, *(dead_letter(group, n, b'{"sku": "?"}', own=(("a", b"1"),)) for n in (1, 2, 3)))
    file = exported(call, tmp_path / "dead.jsonl", {1: b"repaired", 2: None})
    planned = call("import", file, "--dry-run")
    assert actions(planned) == [("redrive", 2), ("there already", 1)]
    assert ready(group) == []
    done = call("import", file, "--yes", "--who", "ann")
    assert (done.exit_code, actions(done)) == (0, [("redriven", 2), ("there already", 1)])
    assert "0 imported, 2 redriven, 1 there already" in done.stderr
    first, second = sorted(ready(group), key=lambda row: row.value or b"", reverse=True)
    audit = json.loads(dict(first.headers)["RETRY_EDITED"] or b"")
    assert (first.value, second.value, dict(first.headers)["a"], audit["who"]) == (b"repaired", None, b"1", "ann")
    assert audit["was"] == hashlib.sha256(b'{"sku": "?"}').hexdigest()
    assert audit["is"] == hashlib.sha256(b"repaired").hexdigest()
    assert json.loads(dict(second.headers)["RETRY_EDITED"] or b"")["is"] is None
    assert {row.value for row in dump(group.bootstrap, group.dlq)} == {b'{"sku": "?"}'}
    twice = call("import", file, "--yes")
    assert (twice.exit_code, actions(twice)) == (0, [("redriven before", 2), ("there already", 1)])
    assert actions(call("redrive", "--yes")) == [("redriven", 1), ("redriven before", 2)]
    assert len(ready(group)) == 3


def test_an_edited_line_that_kafka_refuses_is_named_and_the_others_are_redriven(
    call: Call, group: GroupTopics, tmp_path: Path
) -> None:
    set_config(group.bootstrap, group.names.ready, "max.message.bytes", "5000")
    plant(group, dead_letter(group, 1), dead_letter(group, 2))
    file = exported(call, tmp_path / "dead.jsonl", {1: dense(9_000), 2: b"repaired"})
    done = call("import", file, "--yes")
    assert (done.exit_code, actions(done)) == (3, [("redriven", 1), ("refused", 1)])
    assert [row.value for row in ready(group)] == [b"repaired"]
    assert "too large" in rows(done)[1]["why"].lower()


def exported(call: Call, file: Path, values: Mapping[int, bytes | None]) -> Path:
    """Export all dead letters into a file, with new values for those of these offsets of the main topic."""
    lines = rows(call("export"))
    for line in lines:
        if (offset := int(line["id"].rpartition(":")[2])) in values:
            value = values[offset]
            line["value_base64"] = None if value is None else base64.b64encode(value).decode()
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return file


def test_letters_are_chosen_by_key_and_by_what_their_value_contains(call: Call, group: GroupTopics) -> None:
    """Given four letters, when one key and one text are asked for, then list and redrive take the same ones, once."""
    plant(
        group,
        dead_letter(group, 1, b'{"sku": "A-99", "n": "\xc3\xa9"}', key=b"ann"),
        dead_letter(group, 2, b'{"sku": "A-17"}', key=b"ann"),
        dead_letter(group, 3, b'{"sku": "A-99"}', key=b"\xff"),
        dead_letter(group, 4, None, key=b"bob"),
    )

    def listed(*words: str) -> list[int]:
        return sorted(int(row["id"].rpartition(":")[2]) for row in rows(call("list", *words)))

    assert listed("--key", "ann") == [1, 2]
    assert listed("--key", "ann", "--key", "bob") == [1, 2, 4]
    assert listed("--contains", "A-99") == [1, 3]
    assert listed("--contains", "A-99", "--contains", "é") == [1]
    assert listed("--contains", "A-99", "--key", "ann") == [1]
    assert listed("--contains", "a-99") == []
    assert actions(call("redrive", "--contains", "A-99", "--yes")) == [("redriven", 2)]
    assert actions(call("redrive", "--contains", "A-99", "--key", "ann", "--yes")) == [("redriven before", 1)]
    assert actions(call("redrive", "--key", "ann", "--yes")) == [("redriven", 1), ("redriven before", 1)]
    assert len(ready(group)) == 3
    assert call("list", "--contains", "x" * 2_000).exit_code == 2
    assert call("list", "--key", "").exit_code == 2
