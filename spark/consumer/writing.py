"""Write copies and events to Kafka with Spark's own sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.sql import DataFrame

PREFERRED: Mapping[str, str] = {
    # The topic's own limit decides, not the client's default of 1 MiB. 31 MiB fit into the client's buffer of 32 MiB.
    "max.request.size": str(31 * 1024 * 1024),
}
"""Settings of the Kafka producer that the caller's settings override."""
REQUIRED: Mapping[str, str] = {"acks": "all", "enable.idempotence": "true"}
"""Settings that the caller's settings never override: Spark commits a batch after its copies, so the copies must be
stored."""

Write: TypeAlias = Callable[[DataFrame], None]
"""A function that writes a DataFrame with the columns `handling.WRITE`, and returns when all rows are confirmed.

The columns are topic STRING, key BINARY, value BINARY, and headers ARRAY<STRUCT<key: STRING, value: BINARY>>.
"""


def kafka_writer(kafka: Mapping[str, str]) -> Write:
    """Return a function that writes to Kafka with these settings of the Java producer."""
    options = writer_options(kafka)

    def write(frame: DataFrame) -> None:
        frame.write.format("kafka").options(**options).save()

    return write


def writer_options(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka sink for these settings of the Java producer."""
    return {f"kafka.{name}": value for name, value in {**PREFERRED, **kafka, **REQUIRED}.items()}
