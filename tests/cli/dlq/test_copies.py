"""Dead letters that share an id and an attempt, as where a UI copies one back into the DLQ: one of them counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.names import Kind
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.dlq_calls import Call, actions, now, plant, ready, redriven, rows
from tests.support.sidecar.redrive import SECONDS, DlqProcess, dead_letter, dlq

MINUTE = 60_000


@pytest.fixture
def wide(kafka: Broker) -> GroupTopics:
    """A group whose DLQ has three partitions."""
    return create_group(fresh_group(kafka.bootstrap, delays=(1_000,)), partitions=3, also=(Kind.POLICY,))


@pytest.fixture
def call(wide: GroupTopics, tmp_path: Path) -> Call:
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": wide.group,
        "topics": [wide.main],
        "kafka": {"bootstrap.servers": wide.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": ["1s"], "ladder": ["1s"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return lambda *words, **more: reconsume("dlq", *words, "-c", file, **more)


def letter(group: GroupTopics, number: int, value: bytes, partition: int = 0, **more: object) -> Out:
    """A dead letter that is `at` minutes old."""
    at = more.pop("age", 30)
    assert isinstance(at, int)
    return dead_letter(group, number, value, partition=partition, at=now() - at * MINUTE, **more)


def listed(call: Call, *words: str) -> dict[str, str]:
    """The state of each dead letter, by partition and offset."""
    found = call("list", "--all", *words)
    assert found.exit_code == 0, found.output
    return {row["place"].split(":", 1)[1]: row["state"] for row in rows(found)}


def delivered(group: GroupTopics) -> list[bytes | None]:
    return sorted(row.value for row in ready(group))  # type: ignore[type-var]


EDIT = ((EDITED, b'{"v":1,"who":"ann","at":1,"was":null,"is":null}'),)
COPIED: dict[str, tuple[list[tuple[str, int, int, tuple[tuple[str, bytes], ...]]], bytes, str]] = {
    "unedited": ([("old", 0, 30, ()), ("old", 0, 20, ())], b"old", "0:1"),
    "edited": ([("old", 0, 30, ()), ("new", 0, 20, ())], b"new", "0:1"),
    "twice": ([("old", 0, 30, ()), ("new", 0, 20, ()), ("newer", 0, 10, ())], b"newer", "0:2"),
    "to another partition": ([("old", 2, 30, ()), ("new", 1, 20, ())], b"new", "1:0"),
    "to a partition that is read first": ([("new", 0, 20, ()), ("old", 1, 30, ())], b"new", "0:0"),
    "unedited after an edit that names who made it": ([("new", 0, 30, EDIT), ("old", 0, 20, ())], b"new", "0:0"),
}


@pytest.mark.parametrize("how", COPIED)
def test_of_dead_letters_with_one_id_and_attempt_the_newest_is_redriven_and_the_others_are_copies(
    call: Call, wide: GroupTopics, how: str
) -> None:
    """Whatever asks for them: a filter, the id, or the position of a copy."""
    letters, value, place = COPIED[how]
    for text, partition, age, own in letters:
        plant(wide, letter(wide, 1, text.encode(), partition, age=age, own=own))
    copies = len(letters) - 1
    states = listed(call)
    assert [one for one, state in states.items() if state == "ready"] == [place]
    assert sorted(states.values()) == [*["copy"] * copies, "ready"]
    assert actions(call("redrive", "--dry-run")) == [("redrive", 1), ("copy", copies)]
    for copy in set(states) - {place}:
        by_position = call("redrive", "--id", f"{wide.dlq}:{copy}", "--yes")
        assert actions(by_position) == [("copy", 1)]
        assert "another dead letter" in rows(by_position)[0]["why"]
    assert delivered(wide) == []
    assert actions(call("redrive", "--id", f"{wide.main}:0:1", "--yes")) == [("redriven", 1), ("copy", copies)]
    assert dict(actions(call("redrive", "--yes"))) == {"redriven before": 1, "copy": copies}
    assert delivered(wide) == [value]
    assert sorted(listed(call).values()) == [*["copy"] * copies, "redriven"]


@pytest.mark.parametrize("partition", [0, 1])
def test_what_is_copied_back_after_a_redrive_is_a_copy_and_stays_one(
    call: Call, wide: GroupTopics, partition: int
) -> None:
    """A later redrive passes over the copy, and its range covers it; the copy is not called redriven for that."""
    plant(wide, letter(wide, 1, b"old"))
    assert redriven(call("redrive", "--yes")) == 1
    plant(wide, letter(wide, 1, b"edited", partition, age=5), letter(wide, 2, b"other", partition, age=4))
    copied = f"{partition}:{1 - partition}"
    assert listed(call, "--id", f"{wide.main}:0:1") == {"0:0": "redriven", copied: "copy"}
    assert redriven(call("redrive", "--yes")) == 1
    assert listed(call, "--id", f"{wide.main}:0:1") == {"0:0": "redriven", copied: "copy"}
    assert delivered(wide) == [b"old", b"other"]


def test_a_redrive_that_selects_only_the_copy_loses_nothing(call: Call, wide: GroupTopics) -> None:
    """The filter selects the unedited one, and a letter behind it; the range that it leaves must not cover the copy."""
    plant(
        wide, letter(wide, 1, b"wrong sku"), letter(wide, 1, b"mended", age=20), letter(wide, 2, b"wrong too", age=10)
    )
    first = call("redrive", "--contains", "wrong", "--yes")
    assert actions(first) == [("redriven", 1), ("copy", 1)]
    assert listed(call) == {"0:0": "copy", "0:1": "ready", "0:2": "redriven"}
    assert redriven(call("redrive", "--yes")) == 1
    assert delivered(wide) == [b"mended", b"wrong too"]
    assert listed(call) == {"0:0": "copy", "0:1": "redriven", "0:2": "redriven"}


def test_what_is_copied_back_beside_a_running_redrive_waits_for_the_next_and_is_a_copy_then(
    wide: GroupTopics, tmp_path: Path
) -> None:
    plant(wide, *(letter(wide, number, b"%d" % number) for number in range(60)))
    with DlqProcess(wide, tmp_path, "redrive", "--rate", "20", "--yes") as process:
        until(lambda: len(ready(wide)) >= 10, SECONDS, "the redrive is at work")
        plant(wide, *(letter(wide, number, b"again", 1, age=0) for number in range(60)))
        code, done, told = process.end()
    assert (code, [(row["action"], row["letters"]) for row in done]) == (0, [("redriven", 60)]), told
    code, then, told = dlq(wide, tmp_path, "redrive", "--yes")
    assert {row["action"]: row["letters"] for row in then} == {"copy": 60}, told
    assert (len(delivered(wide)), b"again" in delivered(wide)) == (60, False)


def test_another_attempt_of_the_same_record_is_no_copy(call: Call, wide: GroupTopics) -> None:
    plant(wide, letter(wide, 1, b"first"), letter(wide, 1, b"second", redrives=1, age=5))
    assert sorted(listed(call).values()) == ["ready", "ready"]
    assert redriven(call("redrive", "--yes")) == 2


def test_a_copy_whose_redriven_letter_kafka_has_deleted_is_not_taken_unless_asked(
    call: Call, wide: GroupTopics
) -> None:
    """A range covers the copy, and what counted is gone: nobody knows whether it was redriven."""
    plant(wide, letter(wide, 1, b"old", age=10), letter(wide, 2, b"other", age=9))
    plant(wide, letter(wide, 1, b"edit", 1, age=50, own=EDIT))
    assert actions(call("redrive", "--yes")) == [("redriven", 2), ("copy", 1)]
    assert call("purge", "--until", "40m", "--confirm", wide.group).exit_code == 0
    assert listed(call) == {"0:0": "forgotten", "0:1": "redriven"}
    assert redriven(call("redrive", "--yes")) == 0
    assert redriven(call("redrive", "--forgotten", "--yes")) == 1
    assert listed(call) == {"0:0": "redriven", "0:1": "redriven"}


def test_thousands_of_letters_that_were_copied_back_at_once_come_back_once_each(call: Call, wide: GroupTopics) -> None:
    """The whole DLQ is produced into the DLQ again: a range of copies takes as much room as one of them."""
    originals = [letter(wide, number, b"%d" % number, number % 3) for number in range(3_000)]
    plant(wide, *originals)
    plant(wide, *(letter(wide, number, b"new %d" % number, number % 3, age=5) for number in range(3_000)))
    assert actions(call("redrive", "--dry-run")) == [("redrive", 3_000), ("copy", 3_000)]
    assert actions(call("redrive", "--yes")) == [("redriven", 3_000), ("copy", 3_000)]
    assert delivered(wide) == sorted(b"new %d" % number for number in range(3_000))
    assert redriven(call("redrive", "--yes")) == 0


def test_an_export_marks_copies_and_an_import_into_an_empty_dlq_writes_what_counts(
    call: Call, wide: GroupTopics, tmp_path: Path
) -> None:
    plant(wide, letter(wide, 1, b"old"), letter(wide, 1, b"new", age=5), letter(wide, 2, b"other"))
    lines = call("export").stdout.splitlines()
    assert sorted(marks(lines)) == [False, False, True]
    file = tmp_path / "dead.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert call("purge", "--until", "1m", "--confirm", wide.group).exit_code == 0
    assert call("import", file, "--yes").exit_code == 0
    assert redriven(call("redrive", "--yes")) == 2
    assert delivered(wide) == [b"new", b"other"]


def marks(lines: Sequence[str]) -> list[bool]:
    return [json.loads(line).get("copy", False) for line in lines]


def test_an_edited_line_is_compared_with_the_letter_that_counts(call: Call, wide: GroupTopics, tmp_path: Path) -> None:
    """Given a letter and its edited copy, and a file with the value of the copy: nothing is to be edited."""
    plant(wide, letter(wide, 1, b"old"), letter(wide, 1, b"new", age=5))
    file = tmp_path / "dead.jsonl"
    exported = [one for one in call("export").stdout.splitlines() if not json.loads(one).get("copy", False)]
    file.write_text("\n".join(exported) + "\n", encoding="utf-8")
    same = call("import", file, "--yes")
    assert (actions(same), "there is nothing to import" in same.stderr) == ([("there already", 1)], True)
    line = json.loads(exported[0]) | {"value_base64": "bWVuZGVk"}
    file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert "1 redriven" in call("import", file, "--yes").stderr
    assert delivered(wide) == [b"mended"]


def test_a_copy_is_not_dismissed_on_its_own_and_with_what_counts_it_is(
    call: Call, wide: GroupTopics, tmp_path: Path
) -> None:
    plant(wide, letter(wide, 1, b"new", own=EDIT), letter(wide, 1, b"old", age=5))
    config = tmp_path / "reconsume.yaml"
    refused = reconsume("settle", f"{wide.dlq}:0:1", "--commit", "--why", "a test", "--yes", "-c", config)
    assert refused.exit_code == 1
    assert "is a copy" in refused.stderr
    done = reconsume("settle", f"{wide.main}:0:1", "--commit", "--why", "a test", "--yes", "-c", config)
    assert done.exit_code == 0, done.output
    assert listed(call, "--all") == {"0:0": "dismissed", "0:1": "dismissed"}


def test_find_shows_the_dead_letter_that_counts_and_not_its_copies(
    call: Call, wide: GroupTopics, tmp_path: Path
) -> None:
    plant(wide, letter(wide, 1, b"old"), letter(wide, 1, b"new", 1, age=5), letter(wide, 2, b"other"))
    found = reconsume("find", "--key", "k", "-o", "jsonl", "-c", tmp_path / "reconsume.yaml")
    assert found.exit_code == 0, found.output
    places = sorted(row["position"].split(":", 1)[1] for row in rows(found))
    assert places == ["0:1", "1:0"]
