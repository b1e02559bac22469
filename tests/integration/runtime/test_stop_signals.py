"""SIGTERM and SIGINT while a process becomes a new one again and again: none of them is lost, whenever it comes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

SECONDS = 20.0
RESTARTING = """
import os, sys, threading
from reconsume.sidecar.runtime.stop_signals import StopSignals, block_stops
block_stops()
came = threading.Event()
signals = StopSignals(came.set)
signals.start()
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
os.write(1, b".")
if came.wait(0.002) or signals.leave_signals():
    os._exit(7)
os.execv(sys.executable, sys.orig_argv)
"""
"""A program that restarts in place without end, and ends with 7 once it is told to."""


@pytest.mark.parametrize("tries", [30, pytest.param(400, marks=pytest.mark.long)])
def test_a_signal_at_any_moment_of_a_restart_in_place_arrives(tries: int) -> None:
    """Given other threads, then neither the one program ends without its answer nor does the next one miss it."""
    for attempt in range(tries):
        drawn = random.Random(attempt)
        with subprocess.Popen([sys.executable, "-c", RESTARTING], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.read(2) == b"..", "it has restarted once"
            time.sleep(drawn.uniform(0, 0.1))
            process.send_signal(drawn.choice((signal.SIGTERM, signal.SIGINT)))
            try:
                assert process.wait(SECONDS) == 7
            finally:
                process.kill()


def test_a_start_that_fails_leaves_the_signals_as_they_were() -> None:
    """Else whoever has called it, or is its child, could not be stopped any more."""
    program = """
import signal
from reconsume.sidecar.runtime.run import run
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
try:
    run([])
except IndexError:
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=SECONDS)
