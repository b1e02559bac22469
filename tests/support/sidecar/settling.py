"""`reconsume settle` as a process of its own, which may be killed after its first line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.deadline import until

SECONDS = 60.0


class Following:
    """`settle … --yes`, whose first line after the plan begins with the id of its decision."""

    def __init__(self, file: Path, *words: str) -> None:
        command = (sys.executable, "-m", "reconsume.sidecar", "settle", *words, "--yes", "-o", "jsonl", "-c", str(file))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **pipes)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def decision(self) -> str:
        """The id of its decision; waits until that is written."""

        def written() -> str:
            return next((line.split()[0] for line in self.lines if " settles " in line), "")

        until(lambda: bool(written()), SECONDS, "the decision is written")
        return written()

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        os.kill(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """Wait for its end, and close what it wrote to."""
        self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Wait for its end: the code, the rows, and what it said."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(SECONDS)
        self.close()
        return code, [json.loads(line) for line in out.splitlines()], "".join(self.lines)
