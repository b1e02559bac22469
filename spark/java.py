"""The Java process behind PySpark: its classes, whose child it is, how it is ended, and what to do after its death."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from spark.errors import GoneError, first_line

END_SECONDS = 20
BROKEN_CALL = "Exception while sending command."
"""What Py4J 0.10.9 tells the root logger, with a traceback, of each call that nobody answers, and then raises."""
DEATHS = "--deaths"


def silence_py4j_errors() -> None:
    """Leave it to us to say that Java is gone, in a sentence; and that it is while it ends is no news at all."""
    logging.getLogger().addFilter(lambda told: told.msg != BROKEN_CALL)


def classes(spark: SparkSession) -> Any:
    """The classes of Spark's Java process, by their full names as attributes."""
    return spark._jvm


def submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spark-submit has started us: then Java is our parent, and says what the master is."""
    return "PYSPARK_GATEWAY_PORT" in environ


def end_java(spark: SparkSession) -> None:
    """Stop Spark, and wait for the end of its Java process; one that does not end is killed."""
    process = java_process()
    try:
        spark.stop()
    except Exception:
        if process is None:
            raise
    if process is not None:
        end(process)


@contextmanager
def raising_gone() -> Iterator[None]:
    """Turn every way in which Py4J says that nobody answers into GoneError; what Java itself raises stays as it is.

    A call that is under way when Java dies ends in a plain Py4JError: Py4J logs the network error and drops it.
    """
    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JError, ConnectionError) as gone:
        raise GoneError(first_line(gone)) from gone


def java_process() -> subprocess.Popen[bytes] | None:
    """The Java process that PySpark has started; None when there is none, or it is our parent."""
    found = getattr(SparkContext._gateway, "proc", None)
    return found if isinstance(found, subprocess.Popen) else None


def end(process: subprocess.Popen[bytes]) -> None:
    """Let the process end: it does when its standard input is closed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_anew(deaths: int) -> NoReturn:
    """Become the same program again, with a Java process of its own; the process id, and so our parent, stay."""
    arguments = list(sys.orig_argv[1:])
    if DEATHS in arguments:
        arguments = arguments[: arguments.index(DEATHS)]
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *arguments, DEATHS, str(deaths)])
