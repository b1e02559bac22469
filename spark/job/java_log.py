"""What Java logs in the job's own process: a task that was cut off says so in one line, and not in forty."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from spark.java import submitted

FILE = Path(__file__).with_name("log4j2.properties")
CONFIGURED_BY = "SPARK_CONF_DIR"
"""The environment variable of a folder in which Spark finds a configuration of its log."""


def log_options(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the Spark settings by which Java logs as FILE says; none where Spark's log is configured by others.

    Java options of the user come behind these, and override them.
    """
    if submitted(environ) or CONFIGURED_BY in environ or not FILE.is_file():
        return {}
    return {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={FILE.as_uri()}"}
