"""A Python session that runs the blocks of a page in order, as a reader's notebook does.

`python -m tests.flow.view.page_session FILE` reads code as lines of JSON, runs each in the same namespace, and adds a
line of JSON to the file: what the code raised (empty: nothing), and the text that it left in `said`. `Session` is the
other end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from tests.flow.view.spark_job import LATE_WORKER
from tests.support.deadline import until

ROOT = Path(__file__).parents[3]
SECONDS = 240.0
HAS_ENDED = "said = str(query.exception() or '')"


class Session:
    """The session as a child process, in `folder`. A context manager: leaving it ends the session and its Java."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._answers = folder, folder / "session.answers"
        self._log, self._asked = folder / "session.log", 0
        self._environment = {**environment, "PYTHONPATH": str(ROOT)}

    def __enter__(self) -> Session:
        command = [sys.executable, "-m", "tests.flow.view.page_session", str(self._answers)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )
        return self

    def run(self, code: str) -> str:
        """Run code, and return the text that it left in `said`; an AssertionError has the traceback if it raised."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        self._asked += 1
        until(lambda: len(self._replies()) == self._asked, SECONDS, f"block {self._asked} has run")
        raised, text = self._replies()[-1]
        assert not raised, raised
        return text

    def until(self, predicate: Callable[[], bool], what: str, again: str) -> None:
        """Wait for what `query` does. On a busy machine a query may end as its Python process came late; then the block
        that started it is run again, as its reader would."""

        def asked() -> bool:
            if ended := self.run(HAS_ENDED):
                assert LATE_WORKER in ended, ended
                self.run(again)
            return predicate()

        until(asked, SECONDS, what, step=0.5)

    def _replies(self) -> list[tuple[str, str]]:
        assert self._process.poll() is None, self.said()[-4000:]
        text = self._answers.read_text("utf-8") if self._answers.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def said(self) -> str:
        """All that the blocks printed, and what Spark logged."""
        return self._log.read_text("utf-8", errors="replace")

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(answers: Path) -> None:
    """Run what comes until there is no more, then end the session of Spark."""
    names: dict[str, object] = {"__name__": "__main__"}
    for line in sys.stdin:
        raised, names["said"] = "", ""
        try:
            exec(compile(json.loads(line), "page", "exec"), names)
        except Exception:  # noqa: BLE001 - whatever a page's code raises is the answer
            raised = traceback.format_exc()
        with answers.open("a", encoding="utf-8") as file:
            file.write(json.dumps((raised, names["said"])) + "\n")
    if "pyspark.sql" in sys.modules and (spark := sys.modules["pyspark.sql"].SparkSession.getActiveSession()):
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
