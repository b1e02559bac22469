"""A job that keeps a table of a lakehouse up to date with a group's events, as docs/spark.md prints it.

`python -m tests.flow.view.lake_job JSON` reads all events that are there, tells of each batch, and leaves the table's
rows in a file; `LakeJob` starts it, and kills it with its Java.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, functions

from reconsume.spark import lake, names, schema, view
from reconsume.spark.session import build

REPOSITORY = Path(__file__).parents[3]
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",  # of a log of ten lines, for which 50 tasks take a second
}
ICEBERG = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}


# --- in the job's process --------------------------------------------------------------------------------------------


def settings(using: str, warehouse: Path) -> dict[str, str]:
    """The settings of a session with such tables in this folder."""
    own = DELTA if using == "delta" else ICEBERG | {"spark.sql.catalog.lake.warehouse": str(warehouse)}
    return {**own, "spark.sql.warehouse.dir": str(warehouse), "spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}


def table_of(using: str, warehouse: Path) -> str:
    """The name of the table: of Delta by its path, as the catalog of a session forgets its tables."""
    return f"delta.`{warehouse}/retries`" if using == "delta" else "lake.default.retries"


def telling(write: Callable[[DataFrame, int], None], folder: Path) -> Callable[[DataFrame, int], None]:
    """`write`, with a file for each batch that begins."""

    def told(batch: DataFrame, number: int) -> None:
        (folder / f"batch-{number}").touch()
        write(batch, number)

    return told


def main(given: Mapping[str, Any]) -> None:
    """Read all events, and write what the table has then."""
    folder, using = Path(given["folder"]), given["using"]
    warehouse = folder / "warehouse"
    session = build("lake", jars=list(map(Path, given["jars"])), options=settings(using, warehouse))
    table = table_of(using, warehouse)
    source = {**names.reading(given["bootstrap"]), "subscribe": given["topic"], "maxOffsetsPerTrigger": given["most"]}
    raw = session.readStream.format("kafka").options(**source).load()
    rows = view.view(view.events(raw).good)
    if given["own"]:
        columns = lake.columns_ddl(is_partitioned=True).replace("`timestamp` TIMESTAMP", "`timestamp` BIGINT, more INT")
        session.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING {using}")
    write = telling(lake.merge_into(session, table, using, partition_by="day"), folder)
    query = rows.writeStream.outputMode("append").foreachBatch(write)
    query.option("checkpointLocation", given["checkpoint"]).trigger(availableNow=True).start().awaitTermination()
    if using == "iceberg":  # a batch has a session of its own, and a catalog keeps what it knows of a table for 30 s
        session.sql(f"REFRESH TABLE {table}")
    kept = session.table(table)
    assert kept.where("day <> cast(at as date) or day is null").count() == 0
    times = [name for name in schema.TIMES if kept.schema[name].dataType.typeName() == "timestamp"]
    assert (set(schema.TIMES) - set(times)) == ({"timestamp"} if given["own"] else set())
    plain = {name: functions.unix_millis(name) for name in times} | {"day": functions.col("day").cast("string")}
    rows = [row.asDict(recursive=True) for row in kept.withColumns(plain).collect()]
    (folder / "rows.json").write_text(json.dumps(rows), "utf-8")
    session.stop()


# --- in the test's process -------------------------------------------------------------------------------------------


class LakeJob:
    """The job in a process group of its own. A context manager: leaving it kills what still runs."""

    def __init__(self, bootstrap: str, topic: str, using: str, folder: Path, jars: Sequence[Path], own: bool) -> None:
        """`own`: the table is a user's own, which has a time in epoch ms, and a column more."""
        self._given = {"bootstrap": bootstrap, "topic": topic, "using": using, "folder": str(folder), "own": own}
        self._jars, self.folder, self._process = list(map(str, jars)), folder, None

    _process: subprocess.Popen[bytes] | None

    def start(self, most: int, checkpoint: str = "checkpoint") -> None:
        """Start it with batches of at most `most` records, and with this checkpoint, a name in the folder."""
        where = str(self.folder / checkpoint)
        given = {**self._given, "jars": self._jars, "checkpoint": where, "most": str(most)}
        command = [sys.executable, "-m", "tests.flow.view.lake_job", json.dumps(given)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=REPOSITORY, stderr=log, stdout=log, start_new_session=True)

    def batches(self) -> int:
        """How many batches have begun, in all runs; one that is repeated counts once."""
        self._check()
        return len(list(self.folder.glob("batch-*")))

    def _check(self) -> None:
        assert self._process is not None
        assert self._process.poll() in (None, 0), (self.folder / "log").read_text(errors="replace")[-4000:]

    def has_ended(self) -> bool:
        """Whether it has read all that was there, and has ended well."""
        self._check()
        return self._process is not None and self._process.poll() == 0

    def kill(self) -> None:
        """Kill driver and Java at once."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows as of the last end."""
        return list(json.loads((self.folder / "rows.json").read_text("utf-8")))

    def __enter__(self) -> LakeJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
