"""A frame of ids and values sends dead letters back, each once, whoever is killed in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

from reconsume.spark.consumer import RedriveError, Redrives, build_rules, redrive_rows, rules_from
from reconsume.topics.dead_letter_headers import EDITED
from reconsume.topics.retry_headers import ORIGIN_MESSAGE_ID
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, fresh_group
from tests.support.kafka.topic_io import Out, Row, dump, produce
from tests.support.sidecar.policy import with_policy
from tests.support.sidecar.redrive import dead_letter, dlq

SECONDS = 90.0
MANY = 10_000
DRIVER = """
import json, sys
from reconsume.sidecar.settings.load import Layers
from reconsume.spark.consumer.redrive import redrive_values

config, values = json.load(sys.stdin)
settings = Layers({**config, "deliver": {"mode": "spark"}}).checked()
redrive_values(settings, {ident: value and value.encode() for ident, value in values.items()}, "mender")
"""
"""A driver of the same group, which a test kills."""


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return with_policy(fresh_group(kafka.bootstrap))


def frame_of(spark: SparkSession, *rows: tuple[str, bytes | None]) -> DataFrame:
    return spark.createDataFrame(rows, "id STRING, value BINARY")


def redriven(spark: SparkSession, group: GroupTopics, *rows: tuple[str, bytes | None], **more: Any) -> Redrives:
    rules = build_rules(group.group, group.mains, name="mender")
    return redrive_rows(frame_of(spark, *rows), rules, {"bootstrap.servers": group.bootstrap}, **more)


def came_back(group: GroupTopics) -> list[Row]:
    return dump(group.bootstrap, group.names.ready)


def header(row: Row | Out, name: str) -> bytes:
    return dict(row.headers)[name] or b""


def test_the_newest_open_letter_of_each_id_comes_back_with_its_new_value_and_the_rest_is_counted(
    spark: SparkSession, group: GroupTopics, tmp_path: Path
) -> None:
    ids = [f"{group.main}:0:{number}" for number in range(6)]
    letters = [
        dead_letter(group, 0, b"mend me"),
        dead_letter(group, 1, b"keep me"),
        dead_letter(group, 2, b"first death"),
        dead_letter(group, 2, b"second death", redrives=1),
        dead_letter(group, 3, b"a copy"),
        dead_letter(group, 3, b"the newest"),
        dead_letter(group, 4, b"redriven before"),
        dead_letter(group, 5, b"not asked for"),
    ]
    for letter in letters:  # one by one: which is newer is known by their times
        produce(group.bootstrap, group.dlq, [letter])
    assert dlq(group, tmp_path, "redrive", "--id", ids[4], "--yes")[0] == 0
    before = len(came_back(group))
    rows = [(ids[0], b"mended"), (ids[1], b"keep me"), (ids[2], None), (ids[3], b"new"), (ids[4], b"x"), ("x:0:9", b"")]
    expected = Redrives(redriven=4, copies=1, not_open=1, unknown=1, refused=0)
    assert redriven(spark, group, *rows, dry_run=True) == expected
    assert len(came_back(group)) == before, "a dry run writes nothing"
    assert redriven(spark, group, *rows) == expected
    back = {header(row, ORIGIN_MESSAGE_ID).decode(): row for row in came_back(group)[before:]}
    assert {ident: row.value for ident, row in back.items()} == {
        ids[0]: b"mended",
        ids[1]: b"keep me",
        ids[2]: b"second death",
        ids[3]: b"new",
    }
    assert [ident for ident, row in back.items() if EDITED in dict(row.headers)] == [ids[0], ids[3]]
    assert json.loads(header(back[ids[0]], EDITED))["who"]
    again = redriven(spark, group, *rows)
    assert (again.redriven, again.unknown) == (1, 1), "the first death of one is open still"
    assert redriven(spark, group, *rows).redriven == 0


@pytest.mark.long
def test_ten_thousand_letters_come_back_once_each_although_the_redrive_is_killed_and_run_again(
    spark: SparkSession, group: GroupTopics
) -> None:
    produce(group.bootstrap, group.dlq, [dead_letter(group, number, b"old") for number in range(MANY)])
    rows = [(f"{group.main}:0:{number}", b"new %d" % number if number % 2 else None) for number in range(MANY)]
    values = {ident: value and value.decode() for ident, value in rows}
    config = {"group": group.group, "topics": [*group.mains], "kafka": {"bootstrap.servers": group.bootstrap}}
    killed = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, text=True)
    assert killed.stdin is not None
    with killed.stdin as task:
        json.dump([config, values], task)
    until(lambda: bool(came_back(group)), SECONDS, "the redrive has begun")
    killed.kill()
    killed.wait(SECONDS)
    first = len(came_back(group))
    assert 0 < first < MANY, "it was killed in the middle"
    counts = redriven(spark, group, *rows)
    assert counts == Redrives(MANY - first, 0, first, 0, 0)
    back = came_back(group)
    found = Counter(header(row, ORIGIN_MESSAGE_ID).decode() for row in back)
    assert found == {ident: 1 for ident, _ in rows}
    wanted = {ident: b"old" if value is None else value for ident, value in rows}
    assert all(row.value == wanted[header(row, ORIGIN_MESSAGE_ID).decode()] for row in back)


def test_the_configuration_that_the_rules_came_from_says_where_the_brokers_are(
    spark: SparkSession, group: GroupTopics, tmp_path: Path
) -> None:
    produce(group.bootstrap, group.dlq, [dead_letter(group, 0)])
    config = {
        "group": group.group,
        "topics": list(group.mains),
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"mode": "spark"},
    }
    file = tmp_path / "reconsume.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    rows = frame_of(spark, (f"{group.main}:0:0", None))
    assert redrive_rows(rows, rules_from(file, name="mender"), dry_run=True).redriven == 1


def test_what_cannot_be_redriven_is_refused_and_nothing_is_written(spark: SparkSession, group: GroupTopics) -> None:
    produce(group.bootstrap, group.dlq, [dead_letter(group, 0)])
    ident = f"{group.main}:0:0"
    rules, kafka = build_rules(group.group, group.mains, name="mender"), {"bootstrap.servers": group.bootstrap}
    with pytest.raises(ValueError, match="columns id STRING and value BINARY"):
        redrive_rows(spark.createDataFrame([(ident,)], "id STRING"), rules, kafka)
    with pytest.raises(ValueError, match="write the brokers"):
        redrive_rows(frame_of(spark, (ident, None)), rules)
    with pytest.raises(ValueError, match="without an id"):
        redriven(spark, group, (ident, b"x"), (None, b"y"))  # type: ignore[arg-type]
    for rows, more, why in (
        ([(ident, b"x"), (ident, b"y")], {}, "twice, with different values"),
        ([(ident, b"x")], {"no.such.property": "x"}, "no.such.property"),
        ([(ident, b"x")], {"bootstrap.servers": "127.0.0.1:9"}, "127.0.0.1:9"),
    ):
        with pytest.raises(RedriveError, match=why):
            redrive_rows(frame_of(spark, *rows), rules, client={**kafka, **more})
    assert came_back(group) == []
