"""What a reset has superseded, on a real broker: lists say so, redrives leave it alone, and an audit understands it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec.structs import replace

from reconsume.sidecar.clock import wall
from reconsume.topics.events import State
from reconsume.topics.names import Kind
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from tests.flow.conftest import FreshGroup
from tests.flow.operations.audit_plants import Done, Planter, commit
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.reset_notes import note_resets, topic_id
from tests.support.kafka.topic_io import Row, dump
from tests.support.sidecar.cli import for_group

DELAYS = (1_000, 2_000)


class Superseded(NamedTuple):
    """A group whose first record died and whose second waits, both in cycle 0; a reset has put both into cycle 1.

    The third died in cycle 1, and the fourth is outside the range.
    """

    group: GroupTopics
    died: str
    waits: str
    died_again: str
    beside: str


def dies(by: Planter, row: Row, cycle: int = 0) -> None:
    life = replace(by.life(row, 0), cycle=cycle)
    by.dead(row, life)
    by.event(life, State.DLQ)


@pytest.fixture(scope="module")
def superseded(new_group: FreshGroup) -> Superseded:
    group = create_group(new_group(delays=DELAYS), also=[Kind.POLICY])
    by = Planter(group)
    died, waits, died_again, beside = by.mains(4)
    dies(by, died)
    life = by.life(waits)
    by.copy(waits, life)
    by.waits(life)
    dies(by, died_again)
    dies(by, died_again, cycle=1)
    dies(by, beside)
    by.settle()
    commit(group, group.group, [Done(group.main, 0, 0)])
    moved = ResetRange(0, beside.offset, 1, wall())
    note_resets(group, 0, PartitionResets(topic_id(group), 1, (moved,), ("r1",)))
    ids = [f"{group.main}:0:{row.offset}" for row in (died, waits, died_again, beside)]
    return Superseded(group, *ids)


def rows_of(superseded: Superseded, folder: Path, *words: str) -> list[dict[str, Any]]:
    shown = for_group(folder, superseded.group, *words, "-o", "jsonl")
    assert shown.exit_code in (0, 1), shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_a_list_has_what_is_superseded_only_if_it_is_asked_for(superseded: Superseded, tmp_path: Path) -> None:
    open_ = rows_of(superseded, tmp_path, "dlq", "list")
    assert sorted(row["id"] for row in open_) == sorted([superseded.died_again, superseded.beside])
    all_ = rows_of(superseded, tmp_path, "dlq", "list", "--state", "superseded")
    assert sorted(row["id"] for row in all_) == sorted([superseded.died, superseded.died_again])


def test_a_search_says_how_a_superseded_copy_ends_and_passes_over_its_dead_letters(
    superseded: Superseded, tmp_path: Path
) -> None:
    found = {(row["id"], row["where"]) for row in rows_of(superseded, tmp_path, "find", "--key", "key")}
    assert (superseded.waits, "superseded") in found
    assert (superseded.waits, "undelivered") in found, "the record itself is delivered again"
    assert (superseded.died, "dead letter") not in found
    assert (superseded.died_again, "dead letter") in found


def test_a_dead_letter_that_is_superseded_cannot_be_dismissed(superseded: Superseded, tmp_path: Path) -> None:
    refused = for_group(
        tmp_path, superseded.group, "settle", superseded.died, "--commit", "--why", "an old bug", "--yes"
    )
    assert refused.exit_code == 1
    assert "a reset has had the record delivered again" in " ".join(refused.stderr.split())


def test_a_view_does_not_count_what_is_superseded_among_what_waits(superseded: Superseded, tmp_path: Path) -> None:
    waiting = rows_of(superseded, tmp_path, "retries", "list")
    assert [row["id"] for row in waiting] == []
    rows = {row["id"]: row for row in rows_of(superseded, tmp_path, "retries", "list", "--state", "all")}
    assert {ident: row.get("superseded", False) for ident, row in rows.items()} == {
        superseded.died: True,
        superseded.waits: True,
        superseded.died_again: False,
        superseded.beside: False,
    }


def test_an_audit_calls_nothing_torn_that_a_reset_has_undone(superseded: Superseded, tmp_path: Path) -> None:
    """Given that no record of the main topic is done, only the one outside the range is torn.

    What died in cycle 1 is not done either, but of that a reset says nothing.
    """
    found = {(row["kind"], row["id"]) for row in rows_of(superseded, tmp_path, "audit") if row["found"] == "violation"}
    assert found == {("torn", superseded.beside), ("torn", superseded.died_again)}


def test_a_redrive_leaves_what_is_superseded(superseded: Superseded, tmp_path: Path) -> None:
    group = superseded.group
    done = for_group(tmp_path, group, "dlq", "redrive", "--yes", "-o", "jsonl")
    assert done.exit_code == 0, done.stderr
    counts = {row["action"]: row["letters"] for row in map(json.loads, done.stdout.splitlines())}
    assert counts == {"redriven": 2, "superseded": 2}
    headers = [dict(row.headers) for row in dump(group.bootstrap, group.names.ready)]
    assert sorted((row["ORIGIN_MESSAGE_ID"], row.get("RETRY_CYCLE")) for row in headers) == sorted(
        [(superseded.died_again.encode(), b"1"), (superseded.beside.encode(), None)]
    )


def test_an_audit_says_that_another_tool_has_moved_a_position(superseded: Superseded, tmp_path: Path) -> None:
    """Given `kafka-consumer-groups.sh`, which leaves no progress of ours beside the offset."""
    group = superseded.group
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    consumer.commit(offsets=[TopicPartition(group.main, 0, 2)], asynchronous=False)
    consumer.close()
    unknown = [row for row in rows_of(superseded, tmp_path, "audit") if row["found"] == "unknown"]
    assert [row["records"] for row in unknown if "position-moved" in row["text"]] == [[f"{group.main}:0:2"]]
