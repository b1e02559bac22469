"""The examples of docs/spark.md for consumers run as they are printed; names, brokers and folders are the test's."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from reconsume.spark.consumer.streams import with_batch_time
from reconsume.topics.levels import SIX
from tests.support.deadline import until
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import Out, dump, produce

TEXT = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
CONSUMERS = [block for block in BLOCKS if "rules" in block and "spark.testing" not in block]
SECONDS = 120.0


@pytest.mark.parametrize("block", BLOCKS)
def test_each_example_can_be_read_and_what_it_imports_is_there(block: str) -> None:
    imports = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "docs/spark.md", "exec"), {})


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, delays=SIX))


@pytest.fixture
def example(spark: SparkSession, group: GroupTopics, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names of the three examples, of which `runs` are the functions for batches. Of those that the page leaves to
    its reader each refuses what begins with `no`."""

    def stock() -> DataFrame:
        return spark.createDataFrame([(b"yes", 3), (b"no", 0)], "key BINARY, on_hand INT")

    names: dict[str, Any] = {
        "in_stock": lambda record: not record.key.startswith(b"no"),
        "insert": lambda rows: [not value.startswith(b"no") for value in rows["value"]],
        "stock": stock,
        "ship": lambda _record: None,
    }
    for block in CONSUMERS:
        printed = {"localhost:9092": group.bootstrap, "/var/lib/billing/checkpoint": str(tmp_path / "place")}
        printed |= {'"billing"': json.dumps(group.group), '"orders"': json.dumps(group.main)}
        for name, own in printed.items():
            block = block.replace(name, own)
        exec(compile(block, "docs/spark.md", "exec"), names)
        names["runs"] = [*names.get("runs", []), names.get("run")]
    yield names
    for query in spark.streams.active:
        with suppress(StreamingQueryException):
            query.stop()


def copies(group: GroupTopics) -> Counter[tuple[str, bytes | None]]:
    """The level or DLQ of each copy, with its reason."""
    topics = (*group.retries, group.dlq)
    return Counter(
        (topic.removeprefix(group.group), dict(row.headers)["RETRY_REASON"])
        for topic in topics
        for row in dump(group.bootstrap, topic)
    )


@pytest.mark.long
def test_the_examples_run_as_they_are_printed(spark: SparkSession, group: GroupTopics, example: dict[str, Any]) -> None:
    assert len(CONSUMERS) == 3
    produce(group.bootstrap, group.main, [Out(b"yes", b"yes"), Out(b"no", b"no"), Out(None, b"yes")])
    late, dead = ("-RETRY-5m", b"out-of-stock"), ("-DLQ", b"no-value")
    until(lambda: copies(group) == {late: 1, dead: 1}, SECONDS, "the handler's verdicts are carried out")
    for query in spark.streams.active:
        query.stop()
    rows = [(group.main, 0, number, number, name, name, []) for number, name in enumerate((b"yes", b"no", b"nobody"))]
    schema = "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, key BINARY, value BINARY, "
    batch = with_batch_time(spark.createDataFrame(rows, schema + "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"))
    _, by_table, by_frames = example["runs"]
    by_table(batch, 0)
    assert copies(group) == {late: 1, ("-RETRY-10s", b"out-of-stock"): 2, dead: 1}
    by_frames(batch, 0)
    assert copies(group) == {late: 3, ("-RETRY-10s", b"out-of-stock"): 2, dead: 1}
