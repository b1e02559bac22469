"""Peers in Java: their jars by a lock file, and one class that is compiled when it is needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.peers.job import Command, Job
from benchmarks.peers.python_peers import run
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.java.download_bar import progress_bar
from reconsume.sidecar.java.find_java import find_java
from reconsume.sidecar.java.jars import cache_folder, fetch

SOURCES = Path(__file__).with_name("java")
OPTIONS = (
    "-Xmx256m",  # what a pod of this size would have; without it Java takes a quarter of the machine
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.jboss.logging.provider=slf4j",
)
Properties = Callable[[Job], Mapping[str, object]]
"""The system properties that a program is given."""


def program(name: str, lock: str, properties: Properties) -> Callable[[], Command]:
    """How a peer is prepared that is a class of `java` and needs the jars of a lock file."""
    return lambda: prepared(name, SOURCES / lock, properties)


def prepared(name: str, lock: Path, properties: Properties) -> Command:
    """Fetch the jars, compile the class, and return how it is started."""
    java = find_java(what=name)
    compiler = shutil.which("javac")
    if compiler is None:
        raise SetupError(f"{name} is compiled with javac, and there is none on PATH: apt-get install default-jdk")
    with progress_bar(name) as progress:
        jars = ":".join(map(str, fetch(lock, progress=progress)))
    classes = cache_folder().parent / "peers" / name
    run([compiler, "-cp", jars, "-d", str(classes), str(SOURCES / f"{name}.java")])
    start = [str(java), *OPTIONS, "-cp", f"{classes}:{jars}"]
    return lambda job: [*start, *(f"-D{key}={value}" for key, value in properties(job).items()), name]
