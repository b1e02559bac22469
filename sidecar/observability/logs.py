"""What the sidecar writes to stderr: one line per event, as JSON or text, never a record's key, value or headers.

Standard loggers below `reconsume` and those of uvicorn are both rendered here. A line's `event` is the name of its
kind. It is given as `extra={"event": …}`, else it is the logger's last name. `message` is the sentence for people.
In a sidecar of several groups `group` says whose line it is (`hints.PRESENT_GROUP`).
Lines that repeat are counted, and summed up once a minute (`repeats.py`): an outage of Kafka makes thousands. A full
pipe at stderr loses lines but never costs time, because a logging thread only hands its line over.

A line may come amid another one of the same thread: the garbage collector runs wherever memory is taken, and what it
ends may log (asyncio does so of a task whose error nobody has seen). No lock here is taken twice for that, or the
thread, and then each that logs, would stand for ever.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec
import structlog
from structlog.stdlib import ProcessorFormatter

from reconsume.sidecar.hints import PRESENT_GROUP
from reconsume.sidecar.observability.passing import Passing
from reconsume.sidecar.observability.repeats import WINDOW, Repeats
from reconsume.sidecar.printable import printable, printable_json, without_error_objects
from reconsume.topics.masking import text_without_secrets

QUEUE = 2_000
"""Lines that wait for stderr at most. Further ones are lost and counted."""
LONGEST_LINE = 8 * 1024
"""Bytes of a line, with an error's trace."""
SHORTEST_CUT = 64
"""Characters of a value that is not cut any more."""
FLUSH_WITHIN_S = 1.0
LAST_EVENT = "stopped"
"""The event of the last line of a sidecar that stops. All sums are written before it."""

Format = Literal["json", "text"]
_Event = MutableMapping[str, Any]


class LineHandler(logging.Handler):
    """Render lines on the caller's thread, and write them on a thread of its own."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter, window: float) -> None:
        super().__init__()
        self.lost = 0
        """Lines that could not be queued or written."""
        self.setFormatter(formatter)
        self._repeats = Repeats(window)
        self._passing = Passing()
        self._counting = threading.RLock()
        """Held while one of the two is used: a line is counted on its own thread, a sum is made on the writer's."""
        self._is_counting = False
        """Whether the thread that has the lock is amid that."""
        self._stream = stream
        self._lines: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        """Lines, marks that `flush` waits for, and the end. Unlike `queue.Queue` it may be used amid its own `put`."""
        self._writer = threading.Thread(target=self._write_lines, name="log-writer", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        if (group := PRESENT_GROUP.get()) is not None:
            record.group = group
        try:
            now = time.monotonic()
            if self._admits(record, now):
                for line in self._sums(now, early=True) if getattr(record, "event", None) == LAST_EVENT else ():
                    self._hand_over(line)
                self._hand_over(self.format(record))
        except Exception:  # noqa: BLE001 - as logging.Handler does: report a line that cannot be rendered
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all lines so far are written, for a second at most: stderr may be a full pipe."""
        if self._writer.is_alive():
            reached = threading.Event()
            self._lines.put(reached)
            reached.wait(FLUSH_WITHIN_S)

    def close(self) -> None:
        """Write the remaining lines and sums, and end the thread."""
        self.flush()
        for line in self._sums(time.monotonic(), early=True):
            self._hand_over(line)
        self._lines.put(None)
        if self._lines.qsize() < QUEUE:  # else a full pipe blocks the writer, which ends with the process
            self._writer.join(FLUSH_WITHIN_S)
        super().close()

    def _admits(self, record: logging.LogRecord, now: float) -> bool:
        """Count a line; return whether it is written. One amid another of this thread is, and is not counted."""
        with self._counts() as is_free:
            if not is_free:
                return True
            is_shown = not self._passing.passes(record, now) or _as_debug(record)
            return is_shown and self._repeats.admit(record, now)

    @contextmanager
    def _counts(self) -> Iterator[bool]:
        """Have the counts to oneself. Yields False where this thread has them already, amid another line."""
        with self._counting:
            is_free, self._is_counting = not self._is_counting, True
            try:
                yield is_free
            finally:
                self._is_counting = not is_free

    def _hand_over(self, line: str) -> None:
        """Have a line written, or lose it where too many wait."""
        if self._lines.qsize() >= QUEUE:
            self.lost += 1
        else:
            self._lines.put(line)

    def _write_lines(self) -> None:
        """Write lines as they come, and the sums as they are due, until `close`."""
        while True:
            wait = self._until_sums()
            if wait == 0:
                self._put(self._sums(time.monotonic()))
                continue
            try:
                line = self._lines.get(timeout=wait)
            except queue.Empty:
                continue
            if line is None:
                return
            if isinstance(line, threading.Event):
                line.set()
            else:
                self._put([line])

    def _put(self, lines: Iterable[str]) -> None:
        for line in lines:
            try:
                self._stream.write(line + "\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the reader of stderr has gone, or it is closed
                self.lost += 1

    def _until_sums(self) -> float | None:
        with self._counts():
            return self._repeats.next_sum(time.monotonic())

    def _sums(self, now: float, *, early: bool = False) -> list[str]:
        """Return the sums that are due, or all of them if `early`, rendered."""
        with self._counts() as is_free:
            due = list(self._repeats.sums(now, early=early)) if is_free else []
        lines = []
        for record in due:
            try:
                lines.append(self.format(record))
            except Exception:  # noqa: BLE001 - as in `emit`; the writer's thread must not end
                self.handleError(record)
        return lines


def configure(level: str, form: Format, stream: TextIO | None = None, window: float = WINDOW) -> LineHandler:
    """Send all that is logged to `stream` (stderr): our lines from `level` on, those of others from warnings on.

    The handler stays with the root logger; `logging.shutdown` flushes it.
    """
    handler = LineHandler(sys.stderr if stream is None else stream, _formatter(form), window)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("reconsume").setLevel(level.upper())
    logging.captureWarnings(True)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return handler


def _as_debug(record: logging.LogRecord) -> bool:
    """Make a record one at `debug`. Return whether such are written."""
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _formatter(form: Format) -> logging.Formatter:
    return ProcessorFormatter(
        foreign_pre_chain=[_name_kind, structlog.stdlib.ExtraAdder()],  # the extras may hold an `event`
        processors=[
            structlog.processors.format_exc_info,
            _stamp,
            ProcessorFormatter.remove_processors_meta,
            _Bounded(_as_json if form == "json" else _as_text),
        ],
    )


def _name_kind(logger: Any, method: str, event: _Event) -> _Event:
    """Move a standard logger's text to `message`, and set `event` to the name of the kind."""
    record: logging.LogRecord = event["_record"]
    event["message"] = event["event"]
    event["event"] = getattr(record, "event", None) or record.name.rpartition(".")[2]
    return event


def _stamp(logger: Any, method: str, event: _Event) -> _Event:
    record: logging.LogRecord = event["_record"]
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    about = event.pop("about", 0)
    if count := len(about) if isinstance(about, Collection) else about:  # the sentence names them
        event["about"] = count
    for name in ("message", "exception"):
        if isinstance(text := event.get(name), str):
            text = without_error_objects(text) if name == "message" else text
            event[name] = text_without_secrets(text)  # errors of clients and exporters quote the URL that they call
    first = {"timestamp": at, "level": record.levelname.lower(), "logger": record.name, "event": event.pop("event")}
    return {**first, **event}


class _Bounded:
    """Render an event to a line of at most LONGEST_LINE bytes: the longest of its values lose their middle.

    It is the last step of every line, whoever logs it: names that a service or a producer chooses may be many.
    """

    def __init__(self, render: Callable[[Any, str, _Event], str]) -> None:
        self._render = render

    def __call__(self, logger: Any, method: str, event: _Event) -> str:
        line = self._render(logger, method, event)
        while len(line.encode(errors="surrogatepass")) > LONGEST_LINE:
            name = max(event, key=lambda name: len(str(event[name])))
            text = str(event[name])
            if len(text) <= SHORTEST_CUT:  # so many fields that their names fill the line
                event = dict(list(event.items())[: len(event) // 2])
            else:
                kept = len(text) // 3
                event = {**event, name: f"{text[:kept]} … {text[-kept:]}"}
            line = self._render(logger, method, event)
        return line


def _as_json(logger: Any, method: str, event: _Event) -> str:
    """Return one JSON object, in which characters that are not printable are escaped."""
    return printable_json(msgspec.json.encode(event, enc_hook=str).decode())


def _as_text(logger: Any, method: str, event: _Event) -> str:
    """Return `time level event: message key=value`. Characters that would move a terminal's cursor are escaped."""
    shown = dict(event)
    head = f"{shown.pop('timestamp')} {shown.pop('level'):<8}{shown.pop('event')}"
    shown.pop("logger")
    message, trace = shown.pop("message", ""), shown.pop("exception", "")
    line = head + (f": {message}" if message else "") + "".join(f" {key}={value}" for key, value in shown.items())
    return "\n    ".join(map(printable, [line, *str(trace).splitlines()]))
