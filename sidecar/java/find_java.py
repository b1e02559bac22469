"""Find the Java for Kafka and Spark. If there is none, one sentence says what to do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from reconsume.sidecar.errors import SetupError

LEAST_JAVA = 17
"""The oldest Java version that works: brokers of Apache Kafka 4 and Apache Spark 4 are compiled for Java 17."""
INSTALL = "install it with `apt-get install openjdk-17-jre-headless` or `brew install openjdk@17`, or set JAVA_HOME"


def find_java(environ: Mapping[str, str] = os.environ, what: str = "Kafka") -> Path:
    """Return the `java` of JAVA_HOME, else of PATH. Raises SetupError if there is none, or it is older than 17.

    `what` is the program that needs Java; the error names it.
    """
    home = environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin") if home else environ.get("PATH", os.defpath))
    if program is None:
        where = f"JAVA_HOME ({home})" if home else "PATH"
        raise SetupError(f"{what} needs Java {LEAST_JAVA} or newer, and there is no java on {where}: {INSTALL}")
    version = _version(program)
    if version is None or version < LEAST_JAVA:
        is_it = "of unknown version" if version is None else f"Java {version}"
        raise SetupError(f"{what} needs Java {LEAST_JAVA} or newer, and {program} is {is_it}: {INSTALL}")
    return Path(program)


def _version(java: str) -> int | None:
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"cannot run {java}: {error}") from error
    match = re.search(r'version "(\d+)(?:\.(\d+))?', process.stderr)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major  # Java 8 reports the version 1.8
