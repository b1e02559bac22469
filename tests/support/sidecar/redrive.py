"""`reconsume dlq` as a process of its own, that a test may kill; and dead letters to bring back."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from reconsume.topics import retry_headers as wire
from reconsume.topics.dead_letter_headers import dead_letter_headers
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.service.behaviours import OK, Behaviour, Request, verdict
from tests.support.sidecar.config import config_of
from tests.support.sidecar.forked import Command, Forked

SECONDS = 90.0
REASONS = ("bad-sku", "bad-tax", "bad-day")


def lives_once_redriven(request: Request) -> Behaviour:
    """A service that dead-letters a record at once and takes it when it comes back; `never:` ones die each time."""
    value = (request.value or b"").decode()
    if request.headers["reconsume-redrives"] != "0" and not value.startswith("never"):
        return OK
    return verdict(f"dead-letter; reason={value.rpartition(':')[2]}")


class DlqProcess:
    """One `reconsume dlq …`. A context manager: leaving it kills the process if it still runs."""

    def __init__(self, group: GroupTopics, folder: Path, *words: str, bootstrap: str = "") -> None:
        config = config_of(group, "http://127.0.0.1:1/", 8471, {})
        config["kafka"]["bootstrap.servers"] = bootstrap or group.bootstrap
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "dlq.yaml"
        file.write_text(yaml.safe_dump(config))
        self._words = ["dlq", *words, "-c", str(file), "-o", "jsonl"]
        self._command: Command | None = None
        self._folder = folder

    def __enter__(self) -> DlqProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.process.wait(SECONDS)

    def start(self) -> None:
        """Start it; returns at once."""
        self._command = Command(self._words, self._folder)

    @property
    def process(self) -> Forked:
        """The process that was started."""
        return self._started().process

    def kill(self, _request: object = None) -> None:
        """SIGKILL, unless it has ended; also the action of a proxy's rule."""
        self.process.send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        """Wait for its end: the code, the rows, and what it told."""
        code, out, told = self._started().end(SECONDS)
        return code, [json.loads(line) for line in out.splitlines()], told

    def _started(self) -> Command:
        assert self._command is not None, "it was never started"
        return self._command


def dlq(group: GroupTopics, folder: Path, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run it to its end."""
    with DlqProcess(group, folder, *words) as process:
        return process.end()


def let_die(group: GroupTopics, count: int, name: str, reasons: Iterable[str] = REASONS, kind: str = "") -> None:
    """Produce records that die at once, with the header `kind` (the name by default), until they are in the DLQ."""
    kinds = list(reasons)
    outs = [
        Out(
            f"{name}:{number}:{kinds[number % len(kinds)]}".encode(),
            b"k%d" % (number % 9),
            (("kind", (kind or name).encode()),),
        )
        for number in range(count)
    ]
    produce(group.bootstrap, group.main, outs)
    prefix = f"{name}:".encode()

    def dead() -> int:
        return sum((row.value or b"").startswith(prefix) for row in dump(group.bootstrap, group.dlq))

    until(lambda: dead() >= count, SECONDS, f"{count} records are in the DLQ")


def brought_back(group: GroupTopics) -> Counter[tuple[bytes, int]]:
    """How often each value is on the ready topic, by its number of redrives."""
    return Counter(
        (row.value or b"", int(dict(row.headers)[wire.RETRY_REDRIVES] or b""))
        for row in dump(group.bootstrap, group.names.ready)
    )


def dead_letter(group: GroupTopics, number: int, value: bytes | None = b"v", **more: Any) -> Out:
    """A record as a sidecar writes it to the DLQ; `more`: key, own, reason, redrives, topic, at, partition."""
    topic = more.get("topic", group.main)
    life = RetryState(
        f"{topic}:0:{number}", topic, 2, more.get("redrives", 0), 7, 5, 6, more.get("reason", "http-500: no")
    )
    ours = (*render_retry_headers(life, group.group, group.dlq), *dead_letter_headers(life, group.group, 3))
    return Out(value, more.get("key", b"k"), (*more.get("own", ()), *ours), more.get("partition", 0), more.get("at", 0))
