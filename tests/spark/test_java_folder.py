"""The temporary folder of the job's Java process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EFFECT = """
import json, os
from reconsume.spark.java import classes
from reconsume.spark.session import build, java_folder
with java_folder():
    spark = build("options", master="local[1]")
    java = classes(spark)
    temporary = java.java.lang.System.getProperty("java.io.tmpdir")
    seen = [java.java.lang.System.getProperty(name) for name in ("site", "given")]
    print(json.dumps([*seen, os.listdir(temporary) != []]))
    spark.stop()
"""


@pytest.mark.long
def test_java_has_a_folder_that_goes_with_it_and_the_options_that_others_give(tmp_path: Path) -> None:
    """In a temporary folder of any name, beside options that Spark's configuration has for each driver."""
    folder, temporary = tmp_path / "conf", tmp_path / 'a "b" \\c'
    folder.mkdir()
    temporary.mkdir()
    (folder / "spark-defaults.conf").write_text("spark.driver.defaultJavaOptions -Dsite=here\n", "utf-8")
    given = {"SPARK_CONF_DIR": str(folder), "TMPDIR": str(temporary), "SPARK_SUBMIT_OPTS": "-Dgiven=too"}
    environ = {**os.environ, **given}
    done = subprocess.run([sys.executable, "-c", EFFECT], env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["here", "too", True]
    assert list(temporary.iterdir()) == []
