"""What Java logs in the job's process, by Spark's own library for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reconsume.spark.java import LOG_FILE, classes, log_options

SPARK = "org.apache.spark"
UTILS, WRITING = f"{SPARK}.util.Utils", f"{SPARK}.sql.execution.datasources.v2.DataWritingSparkTask"
BATCH = f"{SPARK}.sql.execution.streaming.runtime.MicroBatchExecution"


@pytest.fixture(scope="module")
def configuration(spark: SparkSession) -> Any:
    """The file as Java understands it."""
    log4j = classes(spark).org.apache.logging.log4j.core
    source = log4j.config.ConfigurationSource.fromUri(classes(spark).java.net.URI(LOG_FILE.as_uri()))
    made = log4j.config.properties.PropertiesConfigurationFactory().getConfiguration(
        log4j.LoggerContext("tests"), source
    )
    made.initialize()
    return made


def logged(spark: SparkSession, configuration: Any, logger: str, message: str, error: object) -> str:
    """The text of an error, as it comes to stderr."""
    log4j = classes(spark).org.apache.logging.log4j
    event = log4j.core.impl.Log4jLogEvent.newBuilder().setLoggerName(logger).setLevel(log4j.Level.ERROR)
    event = event.setMessage(log4j.message.SimpleMessage(message)).setThrown(error).build()
    appenders = configuration.getLoggerConfig(logger).getAppenders().values()
    return "".join(str(one.getLayout().toSerializable(event)) for one in appenders if not one.isFiltered(event))


@pytest.mark.parametrize("logger", [UTILS, WRITING, BATCH])
def test_a_task_that_was_cut_off_has_one_line_with_the_cause_and_other_errors_are_whole(
    spark: SparkSession, configuration: Any, logger: str
) -> None:
    plain = logged(spark, configuration, logger, "Aborting task", None)
    assert plain.endswith(f"ERROR {logger.rpartition('.')[2]}: Aborting task\n")
    assert plain.count("\n") == 1
    error = classes(spark).java.lang.IllegalStateException("no broker")
    text = logged(spark, configuration, logger, "Aborting task", error)
    assert "java.lang.IllegalStateException: no broker\n" in text
    assert ("\tat " in text) == (logger == BATCH)
    assert (text.count("\n") == 1) == (logger != BATCH)
    other = logged(spark, configuration, logger, "uncaught error in thread spark-listener-group, stopping Spark", error)
    assert "\tat " in other
    assert other.count("ERROR") == 1
    assert configuration.getLoggerConfig(logger).getLevel().toString() == "ERROR"


def test_a_log_that_others_configure_is_left_alone(tmp_path: Path) -> None:
    assert log_options({}) == (f"-Dlog4j.configurationFile={LOG_FILE.as_uri()}",)
    home, folder = tmp_path, tmp_path / "conf"
    folder.mkdir()
    named = ({"SPARK_CONF_DIR": str(folder)}, {"SPARK_HOME": str(home)})
    (folder / "log4j2.properties.template").touch()  # as Spark is unpacked
    assert all(log_options(environ) for environ in named), "a folder with other settings of Spark"
    (folder / "log4j2.xml").touch()
    assert not any(log_options(environ) for environ in named)
    assert not log_options({"LOG4J_CONFIGURATION_FILE": "/etc/log4j2.xml"})


EFFECT = """
import json, os
from reconsume.spark.java import classes, log_options
from reconsume.spark.session import build, java_folder
with java_folder(*log_options()):
    spark = build("options", master="local[1]")
    java = classes(spark)
    log = java.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getConfigurationSource()
    temporary = java.java.lang.System.getProperty("java.io.tmpdir")
    print(json.dumps([log.getLocation(), java.java.lang.System.getProperty("site"), os.listdir(temporary) != []]))
    spark.stop()
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["log4j.configurationFile", "log4j2.configurationFile", None])
def test_options_of_java_that_others_give_are_in_force(tmp_path: Path, name: str | None) -> None:
    """In a temporary folder of any name, beside options that Spark's configuration has for each driver."""
    mine, folder, temporary = tmp_path / "mine.properties", tmp_path / "conf", tmp_path / 'a "b" \\c'
    mine.write_bytes(LOG_FILE.read_bytes())
    folder.mkdir()
    temporary.mkdir()
    (folder / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -Dsite=here\n", "utf-8")
    given = "" if name is None else f"-D{name}={mine.as_uri()}"
    environ = {**os.environ, "SPARK_CONF_DIR": str(folder), "TMPDIR": str(temporary), "SPARK_SUBMIT_OPTS": given}
    done = subprocess.run([sys.executable, "-c", EFFECT], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [str(LOG_FILE if name is None else mine), "here", True]
    assert list(temporary.iterdir()) == []
