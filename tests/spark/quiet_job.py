"""A gated query over what is in its topic, at most two records a batch; its log is at the level WARN."""

from __future__ import annotations

import sys

from reconsume.sidecar.java.jars import fetch
from reconsume.spark import session
from reconsume.spark.consumer import Record, build_rules, for_each_record, read_gated
from tests.spark.conftest import SPARK_LOCK

BEGIN, END = "--- the first batch is done", "--- batches: "


def handle(record: Record) -> object:
    return None


def main(bootstrap: str, group: str, topic: str, checkpoint: str) -> None:
    spark = session.build("quiet", jars=fetch(SPARK_LOCK))
    spark.sparkContext.setLogLevel("WARN")
    rules, kafka = build_rules(group, [topic], name="ship", ladder=["1s"]), {"bootstrap.servers": bootstrap}
    batches: list[int] = []

    def took(counts: object) -> None:
        if not batches:
            sys.stderr.write(f"{BEGIN}\n")
        batches.append(1)

    writer = read_gated(spark, rules, kafka, most=2).writeStream
    writer = writer.foreachBatch(for_each_record(handle, rules, kafka, report=took))
    query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    sys.stderr.write(f"{END}{len(batches)}\n")
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
