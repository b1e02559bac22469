"""Run the job: from its start to its end, which is always within END_SECONDS of a request to stop.

The job is one process that may die at any moment, and nothing in it repairs a query that fails: it ends with 1, and
whoever runs it (Kubernetes, systemd) starts it again. Everything runs in one loop on the main thread: it follows the
groups and takes in the query's progress. A hanging broker, or a Java process that does not
answer, cannot hold up the end: a timer then ends Java and this process.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from reconsume.spark.errors import JobError, sentence_of
from reconsume.spark.java import end_java, java_process, kafka_options, versions
from reconsume.spark.job.groups import FollowedGroups
from reconsume.spark.job.kafka import Brokers
from reconsume.spark.job.metrics import JobMetrics
from reconsume.spark.job.query import ViewWork, kept_consumers
from reconsume.spark.options import Run
from reconsume.spark.session import build, java_folder

LOCAL = "local[16]"
"""The master, unless one is given or spark-submit started this process. It has more threads than a machine has cores,
because tasks of many partitions wait for answers of the brokers; a job of few groups uses two (`query.tasks_of`)."""
END_SECONDS = 15.0
"""Seconds from the request to stop, or from the query's death, until this process ends, whatever hangs."""
TURN_SECONDS = 0.2
"""Seconds between two turns of the loop."""
ENDINGS = (JobError, Py4JError, PySparkException, ConnectionError)
"""What ends the job in one sentence. If Java has died, any call of it raises an error of Py4J or of the connection."""


GC_OF_USERS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Variables by which users give options to Java."""
CHECKPOINTS_BY = "spark.sql.streaming.checkpointFileManagerClass"
"""The setting that names the class by which Spark writes the files of checkpoints."""


def plain_files(spark_version: str) -> str:
    """Return the class that uses Hadoop's plainer interface for files.

    Spark prefers another interface because of its rename; on a local disk both rename by rename(2), but the other one
    starts eight more processes for each file, which cost some 150 ms of a batch.
    """
    package = "" if spark_version.startswith("4.0.") else "checkpointing."
    return f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"


def settings(spark_version: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return Spark's settings of the job; the user's override them."""
    # A twentieth less CPU than G1 for each event. Java does not start with two collectors.
    chosen = any("GC" in environ.get(name, "") for name in GC_OF_USERS)
    return {
        # Each task of a batch that is cut off would log two stacks of 40 lines; why a query has ended, the job says.
        "spark.log.level": "FATAL",
        # Java raises its limit of open files to the hard one.
        "spark.kafka.consumer.cache.capacity": str(kept_consumers(resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
        CHECKPOINTS_BY: plain_files(spark_version),
        # With the waits of a stop and a request that may be under way, it is less than END_SECONDS to the end.
        "spark.sql.streaming.stopTimeout": "4s",
        **({} if chosen else {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}),
    }


class StopSignal:
    """The request to stop that SIGTERM and SIGINT set. From then on the process has END_SECONDS to end with 0."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT.

        Call it again after Spark has started, because Spark replaces the handler of SIGINT.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._request())

    def _request(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            end_in_time(0)

    def is_set(self) -> bool:
        """Whether the job must stop."""
        return self._stop.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait for `seconds`. Return True, at once, when the job must stop."""
        return self._stop.wait(seconds)


def end_in_time(code: int) -> None:
    """End Java and this process after END_SECONDS, if it has not ended by then."""

    def end() -> None:
        if (java := java_process()) is not None:
            java.kill()
        say(f"Spark has not stopped in {END_SECONDS:.0f} s, and was ended")
        os._exit(code)

    timer = threading.Timer(END_SECONDS, end)
    timer.daemon = True
    timer.start()


def run(options: Run, master: str, properties: str, stop: StopSignal) -> int:
    """Run the job until a request to stop, or until its query has ended. Return the exit code: 0, or 1.

    `properties` are those of Kafka's Java client, as in their file. Everything that ends the job is one line of the
    log.
    """
    code = 0
    with ExitStack() as stack:
        stack.enter_context(suppress(*ENDINGS))  # what ends badly below says nothing new
        try:
            _run(options, master, properties, stop, stack)
        except ENDINGS as error:
            if not stop.is_set():
                end_in_time(1)
                code = 1
                say(f"ended: {reason_of(error)}")
    if code == 0:
        say("stopped")
    return code


def _run(options: Run, master: str, properties: str, stop: StopSignal, stack: ExitStack) -> None:
    metrics = JobMetrics()
    if options.metrics_listen is not None:
        port, end_server = metrics.serve(*options.metrics_listen)
        stack.callback(end_server)
        say(f"metrics at http://{options.metrics_listen[0]}:{port}/metrics")
    stack.enter_context(java_folder())
    own = settings(pyspark.__version__)
    jars = [Path(jar) for jar in options.jars]
    spark = build("reconsume-view", jars=jars, master=master, options=own | dict(options.conf))
    stack.callback(end_java, spark)
    stop.listen()
    say(f"{versions(spark)}; reading {options.reads()}")
    kafka = kafka_options(spark, properties, options.bootstrap)
    brokers = Brokers(spark, kafka, stopping=stop.is_set, say=say)
    work = ViewWork(spark, options, kafka, brokers, metrics, say)
    groups = FollowedGroups(work, time.monotonic, say)
    stack.callback(groups.stop)
    with brokers.within():  # Java loads its classes for the first question
        groups.begin()
    while not stop.pause(TURN_SECONDS):
        groups.turn()
        work.take_progress()
        metrics.groups(groups.served, len(groups.left_out))
        if not groups.served:
            metrics.well()


def reason_of(error: Exception) -> str:
    """Return why the job ends, as one sentence."""
    if isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError):
        return f"Spark's Java process has ended, or does not answer ({sentence_of(error)})"
    return sentence_of(error)


def say(text: str) -> None:
    """Write one line for the operator to stderr, with the time in UTC."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stderr.write(f"{stamp} view: {text}\n")
    sys.stderr.flush()
