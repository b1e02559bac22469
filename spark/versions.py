"""Which releases of Spark, of its Kafka connector and of the lakehouse formats work together.

Pure data, without an import of Spark: `merge_into` refuses a pair that is not here, docs/spark.md prints the table, and
tests compare both with it. The connector of each line is locked in `sidecar/java`, the formats of the tests beside them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RELEASES", "Release", "release_of"]


class Release(NamedTuple):
    """One minor release of Spark with what was tried on it. A format is None if it has no release for this Spark."""

    spark: str
    """The minor version, such as `4.2`."""
    pyspark: str
    """The release of PySpark that the tests run on."""
    connector: str
    """The version of `org.apache.spark:spark-sql-kafka-0-10_2.13`."""
    delta: str | None
    """The version of `io.delta:delta-spark_<spark>_2.13`."""
    iceberg: str | None
    """The version of `org.apache.iceberg:iceberg-spark-runtime-<spark>_2.13`."""
    java: str = "17 or later"

    def package_of(self, table_format: str) -> str | None:
        """Return the Maven coordinates of a format, `delta` or `iceberg`; None if it has none for this Spark."""
        match table_format:
            case "delta" if self.delta:
                return f"io.delta:delta-spark_{self.spark}_2.13:{self.delta}"
            case "iceberg" if self.iceberg:
                return f"org.apache.iceberg:iceberg-spark-runtime-{self.spark}_2.13:{self.iceberg}"
            case _:
                return None


RELEASES = (
    Release("4.0", "4.0.5", "4.0.0", "4.4.0", "1.11.0"),
    Release("4.1", "4.1.4", "4.1.1", "4.4.0", "1.12.0"),
    Release("4.2", "4.2.1", "4.2.0", "4.4.0", None),
    Release("4.3", "4.3.0", "4.2.0", None, None),
)
"""Oldest first. The extra `spark` installs 4.2; no connector was published for 4.3, which takes that of 4.2."""


def release_of(pyspark: str) -> Release | None:
    """Return the line for a version of PySpark, such as `4.2.1`; None if it is not one of the table."""
    minor = ".".join(pyspark.split(".")[:2])
    return next((release for release in RELEASES if release.spark == minor), None)
