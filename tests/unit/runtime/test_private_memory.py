"""What the process does to keep its memory to itself."""

from __future__ import annotations

import subprocess
import sys

ASKS = """
import ctypes, resource
from reconsume.sidecar.process_memory import keep_memory_private
keep_memory_private()
print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def test_it_leaves_no_core_dump_and_no_other_process_reads_its_memory() -> None:
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("(0, 0) 0", "")
