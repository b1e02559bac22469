"""One Spark for the whole run, and frames that look as if Kafka's source had read them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest
from pyspark.sql import SparkSession

from reconsume.sidecar.java.jars import fetch
from reconsume.sidecar.java.spark_job import lock_for
from reconsume.spark import session
from reconsume.spark.job.run import CHECKPOINTS_BY, plain_files

SPARK_LOCK = lock_for(version("pyspark"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark 4.0's `collect` leaves its socket to the garbage collector, which says so."""
    mark = pytest.mark.filterwarnings("ignore:.*socket.socket.*:pytest.PytestUnraisableExceptionWarning")
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this process. Of two workers each starts one, so the tests of Spark are in few files."""
    local = tmp_path_factory.mktemp("spark-local")
    options = {
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(local / "warehouse"),
        # Each batch's query plan is a new one: what is compiled for it is thrown away soon.
        CHECKPOINTS_BY: plain_files(version("pyspark")),
        "spark.sql.streaming.stateStore.maintenanceInterval": "600s",
    }
    started = session.build("tests", jars=fetch(SPARK_LOCK), options=options)
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()
