"""A Spark streaming job as a consumer of a group, with a sidecar in relay mode that moves due retries to it.

    reconsume run -c reconsume.yaml                     # deliver: {mode: relay}
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/spark_relay.py \\
        --bootstrap localhost:9092 --group billing --topic orders --checkpoint /var/lib/billing/checkpoint
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reconsume.spark.consumer import Counts, Record, Rules, build_rules, dead_letter, for_each_record, read_relay, retry
from reconsume.spark.session import build


def handle(record: Record) -> object:
    """Take an order. What is raised here is retried by the ladder; a verdict says what else shall be done."""
    try:
        order = json.loads(record.value or b"")
    except ValueError:
        return dead_letter("not-json")
    if order.get("stock") == 0:
        return retry(delay="10m", reason="out-of-stock")
    # Your work. It must bear to be done twice: id, cycle, redrives and times together tell one try from another.
    return None


def start(
    session: SparkSession,
    rules: Rules,
    bootstrap: str,
    checkpoint: Path,
    handler: Callable[[Record], object] = handle,
    report: Callable[[Counts], None] | None = None,
) -> StreamingQuery:
    """Start the query; there may be only one on a checkpoint."""
    kafka = {"bootstrap.servers": bootstrap}
    return (
        read_relay(session, rules, kafka)
        .writeStream.foreachBatch(for_each_record(handler, rules, kafka, report=report))
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 second")
        .start()
    )


def main() -> None:
    """Run until the query ends; an error ends the process with 1, and a restart goes on from the checkpoint."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True, action="append")
    parser.add_argument("--checkpoint", required=True, type=Path)
    given = parser.parse_args()
    session = build(f"consumer of {given.group}", master="")
    query = start(session, build_rules(given.group, given.topic, name="ship"), given.bootstrap, given.checkpoint)
    query.awaitTermination()


if __name__ == "__main__":
    main()
