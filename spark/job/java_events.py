"""How Spark's events come to the job's listener: a progress as the one JSON text that the listener reads.

PySpark asks Java for each value of a progress, and learns the end of each list and map by an error that it compares
with fifteen classes: 50 ms of CPU a batch, a fifth of what a batch of one group costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener


class Progress(NamedTuple):
    """What is read of a progress."""

    json: str


class ProgressEvent(NamedTuple):
    """What is read of the event of a batch."""

    progress: Progress


class JavaEvents(JStreamingQueryListener):
    """Java calls it. The rarer events are translated by PySpark."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 - Spark's name
        """Pass on a batch."""
        self.pylistener.onQueryProgress(ProgressEvent(Progress(str(jevent.progress().json()))))  # type: ignore[arg-type]


def java_listener(listener: Any) -> Any:
    """Return the object that Java calls for a listener."""
    return SparkContext._jvm.PythonStreamingQueryListenerWrapper(JavaEvents(listener))  # type: ignore[union-attr]
