"""End a Java program when the process that started it is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

STOP_SECONDS = 20
"""How long a clean stop may take before the node is killed; alone it needs 0.2 s, without a quorum for ever."""


# A shell that reads from a pipe whose other end only our process holds: however we die, it reads the end of file.
# Not PR_SET_PDEATHSIG: that follows the thread that started the broker, and only on Linux.
GUARD = """
trap '' HUP INT TERM
pids=
while read -r line; do pids=$line; done
[ -z "$pids" ] || kill -9 $pids 2>/dev/null
[ -n "$1" ] || exit 0
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" 2>/dev/null && break; sleep 0.2; done
"""


class OrphanGuard:
    """Kills the nodes, and removes `folder` if given, when this process ends without having done so."""

    def __init__(self, folder: Path | None) -> None:
        command = ["/bin/sh", "-c", GUARD, "reconsume-guard", "" if folder is None else str(folder)]
        # A process group of its own, so that Ctrl-C in a terminal does not reach it before us.
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, process_group=0)

    def watch(self, pids: list[int]) -> None:
        """From now on these processes are killed with us."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(" ".join(map(str, pids)) + "\n")
        self._shell.stdin.flush()

    def close(self) -> None:
        """End the guard; it does now what it had to do."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(STOP_SECONDS)
