"""What Java logs in the job's own process: a task that was cut off says so in one line, and not in forty."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FILE = Path(__file__).with_name("log4j2.properties")
OPTION = "log4j.configurationFile"
"""Log4j's older name of the property. It reads `log4j2.configurationFile` first, so users may give either."""
CONFIGURED_BY = "LOG4J_CONFIGURATION_FILE"
"""The environment variable by which Log4j finds a configuration, unless a property of Java names one."""
KINDS = ("properties", "xml", "yaml", "yml", "json", "jsn")
"""The ends of names of configurations that Log4j finds in Spark's folder for them."""


def log_options(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the option by which Java logs as FILE says; none where Spark's log is configured by others.

    It comes before all Java options of the user and of Spark's configuration, and is overridden by them.
    """
    if CONFIGURED_BY in environ or _has_configuration(environ) or not FILE.is_file():
        return ()
    return (f"-D{OPTION}={FILE.as_uri()}",)


def _has_configuration(environ: Mapping[str, str]) -> bool:
    """Whether Spark's folder of configurations has one of its log."""
    home = environ.get("SPARK_HOME")
    folder = environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    return folder is not None and any((Path(folder) / f"log4j2.{kind}").is_file() for kind in KINDS)
