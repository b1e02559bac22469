"""What a soak of the view plays on: a broker, the job and its supervisor, another job by mistake, and groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random

import pyspark

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from reconsume.topics.names import Kind
from tests.soak_view.groups import KINDS, Group
from tests.soak_view.standalone import Standalone
from tests.support.deadline import until
from tests.support.sidecar.view_process import SELDOM, ViewProcess

STANDALONE = "standalone"
"""The master of a cluster that the soak starts itself: each executor and worker is a process that can be killed."""
WORDS = ("--trigger=500ms", "--metrics-listen=127.0.0.1:0")
LOST = "reconsume_view_events_lost_total"
PROPERTIES = {
    # A minute by default: after SIGKILL a broker would have records again that were deleted, and that the job has read.
    "log.flush.start.offset.checkpoint.interval.ms": 500,
    "broker.session.timeout.ms": 60_000,
}
"""What the soak's broker is started with, beside the usual."""


def spark_home(folder: Path) -> Path:
    """Spark's folder by links: executors of a `local-cluster` keep jars and logs in `work` below their Spark's home."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


class World:
    """The broker, the job, its groups, and what they have lost. A context manager: processes are killed at its end.

    `found` is what a fault itself has seen go wrong.
    """

    def __init__(self, kafka: EmbeddedKafka, folder: Path, seed: int, master: str, say: Callable[[str], None]) -> None:
        self.kafka, self.bootstrap, self.folder, self.say = kafka, kafka.bootstrap, folder, say
        self.found: list[str] = []
        self._prefix, self._random = f"soak-{os.getpid()}-{seed}", Random(seed)
        home = spark_home(folder / "spark")
        self._environ = {"SPARK_HOME": str(home)}
        self.spark = Standalone(home, folder / "standalone") if master == STANDALONE else None
        words = (f"--master={master}",) if self.spark is None else self.spark.words
        self.job = self._job("job", words)
        # Where the job has all cores of the cluster, a second one would wait for ever.
        others = words if self.spark is None else ("--master=local[2]",)
        self.other = self._job("other", others)
        self.groups = [self.group() for _ in range(2)]
        self.lost = self._lost_before = 0
        """Events that were deleted unread, and of these those that an earlier process of the job has counted."""

    def __enter__(self) -> World:
        if self.spark is not None:
            self.spark.start()
        self.job.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.job.__exit__(None, None, None)
        if self.spark is not None:
            self.spark.close()

    def _job(self, name: str, words: tuple[str, ...]) -> ViewProcess:
        all_words = (*WORDS, *words, f"--pattern={self._prefix}-.*")
        return ViewProcess(self.bootstrap, self.folder / name, *all_words, environ=self._environ)

    def group(self, kinds: Collection[Kind] = KINDS) -> Group:
        """A group that the job will serve, with these of its topics."""
        name = f"{self._prefix}-{self._random.randrange(1 << 30):x}"
        return Group(self.bootstrap, name, self._random, kinds)

    def pick(self, pick: int) -> Group:
        """One of the groups that are there."""
        there = [group for group in self.groups if group.there]
        return there[pick % len(there)]

    # --- the job -----------------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Start the job again if it has ended by itself, with 1, as whatever runs it does."""
        if (code := self.job.process.poll()) is not None:
            assert code == 1, f"it ended with {code}"
            self.job.await_gone()
            self.job.start()

    def until(self, predicate: Callable[[], object], seconds: float, what: str, step: float = SELDOM) -> None:
        """As `deadline.until`, under the supervisor."""

        def asked() -> object:
            self.supervise()
            return predicate()

        until(asked, seconds, what, step)

    def stop(self) -> None:
        """End the job in order."""
        self.note_counted()
        assert self.job.stop() == 0

    def note_counted(self) -> None:
        """Keep what the job has counted as lost: its process ends now."""
        self._lost_before += self._counted()

    def miscounted(self) -> list[str]:
        """What is wrong with the number of lost events; nothing if all is well."""
        try:
            told = self._lost_before + self._counted()
        except OSError as away:  # it has just been started anew
            return [f"its metrics cannot be read: {away}"]
        return [] if told == self.lost else [f"{self.lost} events were deleted unread, and {told} are counted"]

    def _counted(self) -> int:
        lines = (line.rpartition(" ") for line in self.job.metrics().splitlines() if line.startswith(LOST))
        return sum(int(float(value)) for _, _, value in lines)
