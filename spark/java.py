"""The Java process behind PySpark: access to its classes, and its end."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from reconsume.spark.errors import JobError

STOP_SECONDS = 3.0
"""Seconds that Spark may take to stop. It waits for records that a broker does not take, for minutes if it must."""
END_SECONDS = 3.0
"""Seconds that the Java process may take to end before it is killed. Nothing in it is worth more time."""
BROKEN_CALL = "Exception while sending command."
"""The message that Py4J 0.10.9 logs to the root logger, with a traceback, for each call that gets no answer. Py4J then
also raises."""
CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""The class of the connector that Spark finds as the format `kafka`."""


def silence_py4j_errors() -> None:
    """Drop Py4J's log message about calls that get no answer.

    The job reports a lost Java process itself, in one sentence. While the process is being stopped, such a message
    reports no fault.
    """
    logging.getLogger().addFilter(lambda record: record.msg != BROKEN_CALL)


def classes(spark: SparkSession) -> Any:
    """Return the classes of Spark's Java process; their full names are read as attributes."""
    return spark._jvm


def versions(spark: SparkSession) -> str:
    """Return the versions of Spark, of its connector to Kafka and of Java, for the log."""
    runtime = classes(spark).java.lang.System.getProperty("java.version")
    # Without a connector each query that is started says so, with its reason.
    return f"Spark {spark.version}, its Kafka connector {connector_of(spark) or 'missing'}, Java {runtime}"


def connector_of(spark: SparkSession) -> str | None:
    """Return the version of the session's connector to Kafka; None if it has none."""
    loader = classes(spark).java.lang.Thread.currentThread().getContextClassLoader()
    try:
        return str(loader.loadClass(CONNECTOR).getPackage().getImplementationVersion())
    except (Py4JJavaError, PySparkException):
        return None


def kafka_options(spark: SparkSession, properties: str, bootstrap: str | None) -> dict[str, str]:
    """Return Spark's options for connecting to Kafka.

    `properties` is the text of a file for Kafka's Java client; `bootstrap` replaces its servers. Raises JobError if
    there are none, and Py4JJavaError if Java cannot read the text.
    """
    read = classes(spark).java.util.Properties()
    read.load(classes(spark).java.io.StringReader(properties))
    options = {f"kafka.{name}": str(read.getProperty(name)) for name in read.stringPropertyNames()}
    if bootstrap is not None:
        options["kafka.bootstrap.servers"] = bootstrap
    if not options.get("kafka.bootstrap.servers"):
        raise JobError("bootstrap.servers is needed, by --bootstrap or in the file of --kafka-properties")
    return options


def submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spark-submit started this process.

    Then Java is the parent process, and spark-submit chooses the master.
    """
    return "PYSPARK_GATEWAY_PORT" in environ


def end_java(spark: SparkSession) -> None:
    """Stop Spark and wait until its Java process has ended; kill a process that does not end.

    An error of the stop is raised only if the Java process is not a child of this process.
    """
    process = java_process()
    if process is None:
        spark.stop()
        return
    # It may hang, and nothing but the end of Java stops it then.
    stopping = threading.Thread(target=_stop, args=(spark,), name="stop-spark", daemon=True)
    stopping.start()
    stopping.join(STOP_SECONDS)
    if process.stdin is not None:
        process.stdin.close()  # which makes it end
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop(spark: SparkSession) -> None:
    with suppress(Exception):
        spark.stop()


def java_process() -> subprocess.Popen[bytes] | None:
    """Return the Java process that PySpark has started; None if there is none, or if Java is the parent process."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None
