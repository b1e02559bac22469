"""End a Java program when the process that started it is gone."""

from __future__ import annotations

import subprocess
from pathlib import Path

STOP_SECONDS = 20
"""Seconds that a clean stop may take before the node is killed. One node alone needs 0.2 s; without a quorum it never
stops."""


# A shell that reads from a pipe whose other end only this process holds. However this process ends, the shell reads the
# end of file. PR_SET_PDEATHSIG would follow the thread that started the broker, and exists only on Linux.
GUARD = """
trap '' HUP INT TERM
pids=
while read -r line; do pids=$line; done
[ -z "$pids" ] || kill -s KILL -- $pids 2>/dev/null
[ -n "$1" ] || exit 0
for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" 2>/dev/null && break; sleep 0.2; done
"""


class OrphanGuard:
    """A process that kills the nodes, and removes `folder` if given, when this process ends without doing so.

    Begun before the folder is made, it leaves none: a signal may end this process between any two steps.
    """

    def __init__(self, folder: Path | None) -> None:
        command = ["/bin/sh", "-c", GUARD, "reconsume-guard", "" if folder is None else str(folder)]
        # A process group of its own, so that Ctrl-C in a terminal does not reach it before this process.
        self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, process_group=0)

    def watch(self, pids: list[int]) -> None:
        """Kill these processes, and no others, when this process ends. A negative id is that of a group of them."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(" ".join(map(str, pids)) + "\n")
        self._shell.stdin.flush()

    def close(self) -> None:
        """End the guard. It then kills the processes that it still watches, and removes the folder."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(STOP_SECONDS)
