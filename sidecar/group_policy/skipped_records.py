"""Export the records that a reset has skipped, as JSON lines: `reset --export`.

The notes of the owners name the skipped offsets exactly. One line is one record: `{"v": 1, "topic", "partition",
"offset", "timestamp", "key_base64", "value_base64", "headers": [[name, base64], …]}`; null is not the same as empty.
`headers` is null if the client cannot read them. The file is written under another name next to its own and renamed at
the end. So a file of that name is complete, and an export may be repeated.
"""

from __future__ import annotations

import json
import secrets
import threading
from base64 import b64encode
from pathlib import Path

from reconsume.sidecar.core.offset_ranges import OffsetRanges
from reconsume.sidecar.core.record import Record
from reconsume.sidecar.files import open_private
from reconsume.sidecar.group_policy.position_reset import ResetProgress, TargetState
from reconsume.sidecar.kafka.admin.descriptions import Span
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.scan import Bounds, Fetches, ScanClient, partition_of
from reconsume.sidecar.operation import Report
from reconsume.sidecar.printable import plural, printable_json
from reconsume.sidecar.settings import Settings
from reconsume.topics.partition import Partition

CLIENT = "reconsume-reset"
PATIENCE_S = 30.0
"""Seconds without a record after which a partition does not respond."""


class SkippedRecords:
    """The export of one reset to a file. `sentences`: what became of it. `is_complete`: the file is written."""

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings, self._path = settings, path.resolve()
        self.sentences, self.is_complete = list[str](), False

    def write(self, reached: ResetProgress, report: Report, stop: threading.Event) -> None:
        """Read what was skipped, and write the file. `stop` ends it without one. Raises BrokerError and OSError."""
        topic = reached.request.topic
        skipped = {Partition(topic, number): OffsetRanges(ranges) for number, ranges in reached.skipped.items()}
        spans = {source: Span(one.ranges[0][0], one.end) for source, one in skipped.items() if one.ranges}
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        try:
            with (
                open_private(fresh, "wb") as file,
                ScanClient(self._settings.kafka, self._settings.names.retry_group, CLIENT, Fetches.LITTLE) as client,
            ):
                scan, written = client.scan(spans, Bounds(PATIENCE_S), expected="the skipped records", report=report), 0
                for message in scan:
                    source, offset = Partition(*partition_of(message)), message.offset() or 0
                    if stop.is_set():
                        return
                    if offset in skipped[source]:
                        file.write(line_of(to_record(message, source, 0, None)))
                        written += 1
            fresh.replace(self._path)
        finally:
            fresh.unlink(missing_ok=True)
        self.is_complete = True
        self.sentences.append(f"exported {plural(written, 'skipped record')} to {self._path}")
        if scan.overtaken:
            gone = ", ".join(f"{name}[{number}] before {first}" for (name, number), first in scan.overtaken.items())
            self.sentences.append(f"warning: Kafka has deleted some of them meanwhile: {gone}")
        unknown = [
            number
            for number, state in reached.states.items()
            if state is TargetState.DONE and number not in reached.skipped
        ]
        if unknown:
            self.is_complete = False
            text = f"what was skipped of partition {unknown[0]} is not known any more: it was reset again since"
            self.sentences.append(text)


def line_of(record: Record) -> bytes:
    """Return a record as a line of JSON."""
    headers = None if record.headers is None else [[name, _text(value)] for name, value in record.headers]
    line = {
        "v": 1,
        "topic": record.source.topic,
        "partition": record.source.number,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key_base64": _text(record.key),
        "value_base64": _text(record.value),
        "headers": headers,
    }
    return f"{printable_json(json.dumps(line, ensure_ascii=False))}\n".encode()


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
