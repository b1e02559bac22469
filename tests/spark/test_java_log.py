"""What Java logs in the job's process, by Spark's own library for it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.java import classes
from spark.job.java_log import FILE, log_options

SPARK = "org.apache.spark"
UTILS, WRITING = f"{SPARK}.util.Utils", f"{SPARK}.sql.execution.datasources.v2.DataWritingSparkTask"
BATCH = f"{SPARK}.sql.execution.streaming.runtime.MicroBatchExecution"


@pytest.fixture(scope="module")
def configuration(spark: SparkSession) -> Any:
    """The file as Java understands it."""
    log4j = classes(spark).org.apache.logging.log4j.core
    source = log4j.config.ConfigurationSource.fromUri(classes(spark).java.net.URI(FILE.as_uri()))
    made = log4j.config.properties.PropertiesConfigurationFactory().getConfiguration(
        log4j.LoggerContext("tests"), source
    )
    made.initialize()
    return made


def logged(spark: SparkSession, configuration: Any, logger: str, error: object) -> str:
    """The text of an error of a task, as it comes to stderr."""
    log4j = classes(spark).org.apache.logging.log4j
    (appender,) = configuration.getLoggerConfig(logger).getAppenders().values()
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName(logger).setLevel(log4j.Level.ERROR)
    event = event.setMessage(log4j.message.SimpleMessage("Aborting task")).setThrown(error).build()
    return str(appender.getLayout().toSerializable(event))


@pytest.mark.parametrize("logger", [UTILS, WRITING, BATCH])
def test_a_task_that_was_cut_off_has_one_line_with_the_cause_and_other_errors_are_whole(
    spark: SparkSession, configuration: Any, logger: str
) -> None:
    plain = logged(spark, configuration, logger, None)
    assert plain.endswith(f"ERROR {logger.rpartition('.')[2]}: Aborting task\n")
    assert plain.count("\n") == 1
    error = classes(spark).java.lang.IllegalStateException("no broker")
    text = logged(spark, configuration, logger, error)
    assert "java.lang.IllegalStateException: no broker\n" in text
    assert ("\tat " in text) == (logger == BATCH)
    assert (text.count("\n") == 1) == (logger != BATCH)
    assert configuration.getLoggerConfig(logger).getLevel().toString() == "ERROR"


def test_a_log_that_others_configure_is_left_alone() -> None:
    (option,) = log_options({}).values()
    assert option == f"-Dlog4j2.configurationFile={FILE.as_uri()}"
    assert not log_options({"SPARK_CONF_DIR": "/etc/spark"})
    assert not log_options({"PYSPARK_GATEWAY_PORT": "1"})
