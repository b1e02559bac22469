"""The line that a start draws on a terminal: it looks like a download only while something is downloaded."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

DRAW = """
import sys, time
from reconsume.sidecar.java.download_bar import progress_bar
with progress_bar() as told:
    time.sleep(0.3)
    for done, total in eval(sys.argv[1]):
        told(done, total)
        time.sleep(0.3)
"""


def drawn(calls: list[tuple[int, int]]) -> str:
    """What a terminal gets for these calls of the callback."""
    own, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", DRAW, repr(calls)], stderr=theirs, env=environ) as process:
        os.close(theirs)
        told = b""
        try:
            while piece := os.read(own, 65_536):
                told += piece
        except OSError:  # the other side is closed
            pass
        finally:
            os.close(own)
    assert process.returncode == 0
    return told.decode()


def test_jars_that_are_there_are_checked_and_no_download_is_drawn() -> None:
    told = drawn([(0, 0)])
    assert told.index("checking Apache Kafka") < told.index("starting Apache Kafka")
    assert ("downloading" in told, "MB" in told, "bytes" in told) == (False, False, False)


def test_a_download_has_its_bytes_until_it_is_over() -> None:
    told = drawn([(15_000_000, 45_000_000), (45_000_000, 45_000_000)])
    assert "downloading Apache Kafka" in told
    assert "15.0/45.0 MB" in told
    assert "MB" not in told.rpartition("starting Apache Kafka")[2]
