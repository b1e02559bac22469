"""Which releases work with which PySpark. The page about Spark prints this table, and a test compares both. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple


class Releases(NamedTuple):
    """What works with a PySpark: the connector's release, the jar of each format (None: there is none), and Java's.

    `pyspark` is the release that the tests run on. The jars are Maven coordinates.
    """

    pyspark: str
    connector: str
    delta: str | None
    iceberg: str | None
    java: str


DELTA, ICEBERG = "io.delta:delta-spark", "org.apache.iceberg:iceberg-spark-runtime"
PAIRS: Mapping[str, Releases] = {
    "4.0": Releases("4.0.5", "4.0.0", f"{DELTA}_4.0_2.13:4.4.0", f"{ICEBERG}-4.0_2.13:1.11.0", "17 or later"),
    "4.2": Releases("4.2.1", "4.2.0", f"{DELTA}_4.2_2.13:4.4.0", None, "17 or later"),
    "4.3": Releases("4.3.0", "4.2.0", None, None, "17 or later"),
}
"""By the first two numbers of PySpark's version. Another PySpark is not tested, and nothing is refused there.

4.1 is left out: with its connector (4.1.0, 4.1.1) a query ends each time that it repeats a batch (SPARK-55271).
"""
FORMATS = ("delta", "iceberg")


def check_pair(spark: str, table_format: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ValueError if no release of a table format exists for a Spark, with the Spark for which one does.

    `spark` is Spark's version. Platforms have releases of their own, so a Spark of theirs is never refused.
    """
    pair = PAIRS.get(".".join(spark.split(".")[:2]))
    is_vendors = re.fullmatch(r"[0-9.]+", spark) is None or "DATABRICKS_RUNTIME_VERSION" in environ
    if pair is None or is_vendors or table_format not in FORMATS or getattr(pair, table_format) is not None:
        return
    others = (f"PySpark {name} with {jar}" for name, each in PAIRS.items() if (jar := getattr(each, table_format)))
    raise ValueError(f"there is no release of {table_format} for Spark {spark}; what works: {', or '.join(others)}")
