"""`dlq` on a real broker: what is shown, what is changed and what is refused. Letters are planted, no sidecar runs."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import Result

from tests.support.broker import Broker
from tests.support.cli import reconsume
from tests.support.kafka import Out, Row, dump, produce
from tests.support.redrive import dead_letter
from tests.support.topics import GroupTopics, create_group, fresh_group, set_config
from topics import headers as wire

DAY = 86_400_000
HOSTILE = "\x1b[31m\x9b2J‮"
Call = Callable[..., Result]


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=1)


@pytest.fixture
def call(group: GroupTopics, tmp_path: Path) -> Call:
    """`call("list")`: `reconsume dlq list` for the group."""
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": group.group,
        "topics": [group.main],
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": ["1s"], "ladder": ["1s"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return lambda *words, **more: reconsume("dlq", *words, "-c", file, **more)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def plant(group: GroupTopics, *letters: Out) -> None:
    produce(group.bootstrap, group.dlq, letters)


def ready(group: GroupTopics) -> list[Row]:
    return dump(group.bootstrap, group.names.ready)


def now() -> int:
    return time.time_ns() // 1_000_000


def actions(result: Result) -> list[tuple[str, int]]:
    return [(row["action"], row["letters"]) for row in rows(result)]


def redriven(result: Result) -> int:
    return sum(count for action, count in actions(result) if action == "redriven")


def test_list_shows_the_newest_first_with_their_state_and_says_what_it_has_not_seen(
    call: Call, group: GroupTopics
) -> None:
    at = now()
    plant(
        group,
        dead_letter(group, 1, at=at - 9_000, reason="timeout"),
        dead_letter(group, 2, at=at - 8_000, redrives=3),
        dead_letter(group, 3, at=at - 30 * DAY),
        Out(b"foreign", b"k", (), 0, at - 5_000),
    )
    shown = call("list")
    assert (shown.stderr.startswith("scanned"), [(row["reason"], row["state"]) for row in rows(shown)]) == (
        True,
        [("", "unfit"), ("http-500", "quarantined"), ("timeout", "ready"), ("http-500", "forgotten")],
    )
    assert "scanned 4 of 4, 4 matched" in shown.stderr
    assert "incomplete" not in shown.stderr
    assert [row["reason"] for row in rows(call("list", "--reason", "timeout"))] == ["timeout"]
    assert len(rows(call("list", "--since", "1h"))) == 3
    assert len(rows(call("list", "--until", "1h"))) == 1
    cut = call("list", "--scan", "2")
    assert "incomplete: older dead letters were not looked at" in cut.stderr
    few = call("list", "--limit", "1", "--state", "ready,unfit")
    assert [row["state"] for row in rows(few)] == ["unfit"]
    assert "incomplete: the newest 1 of 2 are shown" in few.stderr


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "tsv"])
def test_nothing_that_a_record_holds_reaches_the_terminal_raw(call: Call, group: GroupTopics, form: str) -> None:
    bad = HOSTILE.encode()
    own = ((f"name{HOSTILE}", bad), ("binary", b"\xff\x1b[0m"), ("null", None))
    plant(group, dead_letter(group, 1, bad * 3, key=bad, own=own))
    broken = [(wire.REAL_TOPIC, bad), (wire.RETRY_REASON, bad)]
    plant(group, Out(b"\xff" + bad, bad, tuple(broken), 0))
    for words in (("list",), ("show", f"{group.main}:0:1"), ("show", f"{group.dlq}:0:1")):
        shown = call(*words, "-o", form)
        assert shown.exit_code == 0, shown.stderr
        for text in (shown.stdout, shown.stderr):
            assert not {"\x1b", "\x9b", "‮"} & set(text)
    hostile_id = call("show", HOSTILE)
    assert hostile_id.exit_code == 1
    assert "\x1b" not in hostile_id.stderr


def test_show_has_the_headers_the_value_and_the_journey(call: Call, group: GroupTopics) -> None:
    value = b'{"b": 1.10, "a": [1e400]}'
    plant(group, dead_letter(group, 7, value, own=(("a", b"1"), ("a", None))), dead_letter(group, 7, None, redrives=1))
    (newest, first) = rows(call("show", f"{group.main}:0:7"))
    assert (newest["redrives"], newest["value"]["kind"], first["redrives"]) == (1, "null", 0)
    assert first["value"]["shown"] == '{\n  "b": 1.10,\n  "a": [\n    1e400\n  ]\n}'
    assert first["value"]["sha256"] == hashlib.sha256(value).hexdigest()
    assert first["headers"][:2] == [["a", base64.b64encode(b"1").decode()], ["a", None]]
    assert rows(call("redrive", "--id", f"{group.dlq}:0:1", "--yes"))[0]["letters"] == 1
    (only,) = rows(call("show", f"{group.dlq}:0:1"))
    assert [(event["state"], event["redrives"]) for event in only["journey"]] == [("REDRIVEN", 2)]
    assert only["state"] == "redriven"
    table = call("show", f"{group.main}:0:7", "-o", "table").stdout
    assert "header a" in table
    assert "\n    1e400\n" in table


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
    plant(group, dead_letter(group, 1), dead_letter(group, 2, b"x" * 9_000), dead_letter(group, 3))
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
    assert f"topics: {bare.names.ready} must exist before anything is redriven; `reconsume topics" in refused.stderr
    gone = reconsume("dlq", "list", "-c", file, "--set", "group=nobody-has-this")
    assert (gone.exit_code, gone.stdout) == (1, "")
    assert "nobody-has-this-DLQ does not exist; `reconsume topics apply` creates it" in gone.stderr


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


def test_an_edited_letter_comes_back_changed_once_and_says_who_did_it(
    call: Call, group: GroupTopics, tmp_path: Path
) -> None:
    plant(group, dead_letter(group, 1, b'{"sku": "?"}', own=(("a", b"1"),)))
    editor = tmp_path / "editor.py"
    editor.write_text("import sys\nopen(sys.argv[1], 'wb').write(b'mended')\n", encoding="utf-8")
    ident, environ = f"{group.main}:0:1", {"EDITOR": f"{sys.executable} {editor}", "VISUAL": ""}
    same = call("edit", ident, "--yes", EDITOR="true", VISUAL="")
    assert (same.exit_code, "nothing is done" in same.stderr, ready(group)) == (0, True, [])
    failed = call("edit", ident, "--yes", EDITOR="false", VISUAL="")
    assert (failed.exit_code, "ended with 1: nothing is done" in failed.stderr, ready(group)) == (1, True, [])
    assert call("edit", ident, "--dry-run", **environ).exit_code == 0
    assert ready(group) == []
    done = call("edit", ident, "--yes", "--who", "ann", **environ)
    assert done.exit_code == 0, done.stderr
    (row,) = ready(group)
    audit = json.loads(dict(row.headers)["RETRY_EDITED"] or b"")
    assert (row.value, dict(row.headers)["a"], audit["who"]) == (b"mended", b"1", "ann")
    assert audit["was"] == hashlib.sha256(b'{"sku": "?"}').hexdigest()
    assert audit["is"] == hashlib.sha256(b"mended").hexdigest()
    assert dump(group.bootstrap, group.dlq)[0].value == b'{"sku": "?"}'
    twice = call("edit", ident, "--yes", **environ)
    assert (twice.exit_code, "was redriven before, and is not sent twice" in twice.stderr) == (1, True)
    assert actions(call("redrive", "--yes")) == [("redriven before", 1)]
    assert len(ready(group)) == 1


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
    assert (there.exit_code, {row["result"] for row in rows(there)}) == (0, {"there already"})
    admin = AdminClient({"bootstrap.servers": group.bootstrap})
    for future in admin.delete_records([TopicPartition(group.dlq, 0, 2)]).values():
        future.result(20)
    dry = call("import", file, "--dry-run")
    assert [row["result"] for row in rows(dry)] == ["would be imported", "would be imported", "there already"]
    assert len(dump(group.bootstrap, group.dlq)) == 1
    assert [row["result"] for row in rows(call("import", file, "--yes"))][:2] == ["imported"] * 2
    assert {row["result"] for row in rows(call("import", file, "--yes"))} == {"there already"}
    after = dump(group.bootstrap, group.dlq)
    bare = {(row.key, row.value, row.headers) for row in before}
    assert (len(after), {(row.key, row.value, row.headers) for row in after}) == (3, bare)


def test_a_file_with_a_bad_line_is_refused_as_a_whole(call: Call, group: GroupTopics, tmp_path: Path) -> None:
    plant(group, dead_letter(group, 1))
    good = json.loads(call("export").stdout)
    foreign = {**good, "headers": [["REAL_TOPIC", base64.b64encode(b"stolen").decode()]]}
    broken = {**good, "value_base64": "%%%"}
    file = tmp_path / "dead.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in (good, foreign, broken)) + "\n{\n", encoding="utf-8")
    refused = call("import", file, "--yes")
    assert (refused.exit_code, refused.stdout) == (78, "")
    for line, said in ((2, "REAL_TOPIC is b'stolen', not one of"), (3, "not as `dlq export`"), (4, "not as")):
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


def test_a_broker_that_is_away_is_one_sentence(call: Call) -> None:
    for words in (("list",), ("redrive", "--yes"), ("export",), ("purge", "--until", "1d")):
        shown = call(*words, "--set", "kafka.bootstrap.servers=127.0.0.1:1")
        assert (shown.exit_code, shown.stdout) == (1, "")
        assert shown.stderr.startswith("reconsume: Kafka: no broker of 127.0.0.1:1 answered within 8 s")
        break
