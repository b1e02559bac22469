"""What was done when: a file of JSON lines, written as it happens."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path


class Journal:
    """Appends lines; any thread may."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = time.monotonic()
        self._lock = threading.Lock()
        self._file = path.open("a", buffering=1, encoding="utf-8")

    @property
    def seconds(self) -> float:
        """How long the soak has been going on."""
        return time.monotonic() - self.begun

    def tell(self, what: str, **more: object) -> None:
        """Write one line."""
        line = {"seconds": round(self.seconds, 2), "at": time.time_ns() // 1_000_000, "what": what, **more}
        with self._lock:
            self._file.write(json.dumps(line, default=str) + "\n")

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._file.close()
