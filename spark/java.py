"""The Java process behind PySpark: access to its classes, its end, and the restart of the job after it has crashed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from reconsume.spark.errors import GoneError, first_line

STOP_SECONDS = 3.0
"""Seconds that Spark may take to stop. It waits for records that a broker does not take, for minutes if it must."""
END_SECONDS = 3.0
"""Seconds that the Java process may take to end before it is killed. Nothing in it is worth more time: positions are in
Kafka, and a checkpoint's files are written whole or not at all."""
BROKEN_CALL = "Exception while sending command."
"""The message that Py4J 0.10.9 logs to the root logger, with a traceback, for each call that gets no answer. Py4J then
also raises."""
CONNECTOR = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
"""The class of the connector that Spark finds as the format `kafka`."""
DEATHS = "--deaths"
"""The option by which the restarted program learns how many times in a row Java has crashed."""


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
    stopping = threading.Thread(target=suppressed, args=(spark.stop,), name="stop-spark", daemon=True)
    stopping.start()
    stopping.join(STOP_SECONDS)
    end(process)
    stopping.join(STOP_SECONDS)


def suppressed(act: Callable[[], None]) -> None:
    """Call `act` and drop its error."""
    with suppress(Exception):
        act()


@contextmanager
def raising_gone() -> Iterator[None]:
    """Raise GoneError for each error by which Py4J reports that Java does not answer, or PySpark that it did not start.

    An error that Java itself raises stays as it is. A call that is running when Java crashes ends in a plain Py4JError:
    Py4J logs the network error and drops it.
    """
    try:
        yield
    except Py4JJavaError:
        raise
    except PySparkRuntimeError as gone:
        if gone.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise GoneError("it ended before it could be reached") from gone
    except (Py4JError, ConnectionError) as gone:
        raise GoneError(first_line(gone)) from gone


def java_process() -> subprocess.Popen[bytes] | None:
    """Return the Java process that PySpark has started; None if there is none, or if Java is the parent process."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def end(process: subprocess.Popen[bytes]) -> None:
    """Close the process's standard input, which makes it end, and wait; kill it after END_SECONDS."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_anew(deaths: int) -> NoReturn:
    """Replace this process by a new run of the same program, which starts its own Java process.

    The process id stays the same, and so the parent process stays too. `deaths` is the number of crashes in a row.
    """
    arguments = list(sys.orig_argv[1:])
    if DEATHS in arguments:
        arguments = arguments[: arguments.index(DEATHS)]
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *arguments, DEATHS, str(deaths)])
