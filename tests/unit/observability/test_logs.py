"""What is written to stderr: lines that parse, one name a kind, few of a kind, and never a payload."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.observability.logs import LONGEST_LINE, QUEUE, Format, LineHandler, configure
from reconsume.sidecar.observability.repeats import BURST, WINDOW
from tests.support.deadline import until

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
Start = Callable[..., LineHandler]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(stream, form="json", level="info", window=60)`: log to a stream; afterwards all is as before."""
    root, ours = logging.getLogger(), logging.getLogger("reconsume")
    before = root.handlers[:], root.level, ours.level
    started: list[LineHandler] = []

    def begin(stream: TextIO, form: Format = "json", level: str = "info", window: float = WINDOW) -> LineHandler:
        started.append(configure(level, form, stream, window))
        return started[-1]

    yield begin
    logging.captureWarnings(False)
    structlog.reset_defaults()
    for handler in started:
        handler.close()
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def lines(stream: io.StringIO, handler: LineHandler) -> list[dict[str, Any]]:
    handler.flush()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_kind_and_message(start: Start) -> None:
    """Given a message with line ends and quotes, then it is still one line that parses."""
    stream = io.StringIO()
    handler = start(stream)
    logging.getLogger("reconsume.consumer").warning('offset %d is\nnot in the "log" %s', 17, "é\x1b[2J")
    [line] = lines(stream, handler)
    assert RFC_3339.fullmatch(line.pop("timestamp"))
    assert line == {
        "level": "warning",
        "logger": "reconsume.consumer",
        "event": "consumer",
        "message": 'offset 17 is\nnot in the "log" é\x1b[2J',
    }


class LogsItself:
    """What logs once more while its text is made, as a task does that the garbage collector ends at that moment."""

    def __init__(self) -> None:
        self.told = False

    def __str__(self) -> str:
        if not self.told:
            self.told = True
            logging.getLogger("reconsume.consumer").warning("amid another line")
        return "the line"


def test_a_line_that_comes_amid_another_one_of_its_thread_stops_nobody(start: Start) -> None:
    """Each thread that logged stood for ever behind one that waited for itself."""
    stream = io.StringIO()
    handler = start(stream)
    log = logging.getLogger("reconsume.consumer")
    thread = threading.Thread(target=lambda: log.warning("%s", LogsItself()), daemon=True)
    thread.start()
    until(lambda: not thread.is_alive(), 5, "the line is taken")
    assert {line["message"] for line in lines(stream, handler)} == {"amid another line", "the line"}


def test_a_kind_may_have_its_own_name_and_fields(start: Start) -> None:
    stream = io.StringIO()
    handler = start(stream)
    logging.getLogger("reconsume.run").info("stopped", extra={"event": "stopped", "left": 2})
    structlog.get_logger("reconsume.run").info("drained", left=3)
    first, second = lines(stream, handler)
    assert (first["event"], first["message"], first["left"]) == ("stopped", "stopped", 2)
    assert (second["event"], second["logger"], second["level"], second["left"]) == (
        "drained",
        "reconsume.run",
        "info",
        3,
    )
    assert list(first)[:4] == list(second)[:4] == ["timestamp", "level", "logger", "event"]


def test_an_exception_comes_with_its_trace_and_without_local_values(start: Start) -> None:
    """Given a fault while a payload is at hand, then the trace is in the line and the payload is not."""
    stream = io.StringIO()
    handler = start(stream)
    payload = "card-number-4111"
    try:
        raise RuntimeError("broken " + str(len(payload)))
    except RuntimeError:
        logging.getLogger("reconsume.lane").exception("failed")
    [line] = lines(stream, handler)
    assert "RuntimeError: broken 16" in line["exception"]
    assert payload not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_and_no_trace_shows_the_secret_of_a_url(start: Start, form: Format) -> None:
    """Given a library that quotes the URL it calls, then user and query are masked, in message and trace."""
    stream = io.StringIO()
    handler = start(stream, form)
    logger = logging.getLogger("opentelemetry.exporter")
    try:
        raise ConnectionError("pool: with url: /v1/traces?key=s3cret (https://user:s3cret@collector/v1?key=s3cret)")
    except ConnectionError as error:
        logger.exception("cannot export: %s", error)
    handler.flush()
    assert "/v1/traces?" in stream.getvalue()
    assert "s3cret" not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_error_of_the_kafka_client_is_its_sentence_and_not_its_object(start: Start, form: Format) -> None:
    stream = io.StringIO()
    handler = start(stream, form)
    errors = (KafkaError(-185, 'broker "b" is late'), KafkaException(KafkaError(-195, fatal=True)))
    logging.getLogger("reconsume.policy").warning("the policy: %s, %s; %s", *errors, KafkaError(29))
    handler.flush()
    assert not re.search(r"KafkaError|val=|code=", stream.getvalue())
    told = 'broker "b" is late, Local: Broker transport failure; Broker: Topic authorization failed'
    assert f"the policy: {told}" in stream.getvalue().replace("\\", "")


def test_text_is_one_line_that_cannot_move_the_cursor(start: Start) -> None:
    """Given a broker's message with terminal codes and line ends, then they are shown as escapes."""
    stream = io.StringIO()
    handler = start(stream, "text")
    logging.getLogger("reconsume.consumer").warning("evil \x1b[2J\r\n2026 fake line\u202e", extra={"topic": "or\nders"})
    handler.flush()
    [line] = stream.getvalue().splitlines()
    assert line.isprintable()
    assert RFC_3339.match(line)
    assert "warning consumer: evil \\x1b[2J\\r\\n2026 fake line\\u202e topic=or\\nders" in line


def test_a_trace_in_text_is_indented(start: Start) -> None:
    stream = io.StringIO()
    handler = start(stream, "text")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("reconsume.lane").exception("failed")
    handler.flush()
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("lane: failed")
    assert trace[-1] == "    RuntimeError: broken"


def test_our_level_is_set_and_others_write_from_warnings_on(start: Start) -> None:
    stream = io.StringIO()
    handler = start(stream, level="error")
    logging.getLogger("reconsume.run").warning("not shown")
    logging.getLogger("reconsume.run").error("shown")
    logging.getLogger("uvicorn.error").info("not shown")
    logging.getLogger("uvicorn.error").warning("shown too")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn("and this", stacklevel=1)
    found = lines(stream, handler)
    assert [line["logger"] for line in found] == ["reconsume.run", "uvicorn.error", "py.warnings"]
    logging.getLogger("reconsume").setLevel("DEBUG")
    logging.getLogger("reconsume.run").debug("shown now")
    assert lines(stream, handler)[-1]["level"] == "debug"


def test_an_outage_of_kafka_writes_one_line_of_each_kind_and_a_sum(start: Start) -> None:
    """Given librdkafka's 2 700 lines of two kinds, then one of each is written, and later a sum."""
    stream = io.StringIO()
    handler = start(stream)
    kafka = logging.getLogger("reconsume.kafka")
    for number in range(1_350):
        kafka.log(40, "%s [%s] %s", "FAIL", "rdkafka#consumer-1", f"Connect to 127.0.0.1:{number} failed")
        kafka.log(40, "%s [%s] %s", "ERROR", "rdkafka#consumer-1", f"{number}/3 brokers are down")
    found = lines(stream, handler)
    assert {line["event"] for line in found} == {"kafka"}
    assert [line["message"] for line in found] == [
        "FAIL [rdkafka#consumer-1] Connect to 127.0.0.1:0 failed",
        "ERROR [rdkafka#consumer-1] 0/3 brokers are down",
    ]
    logging.getLogger("reconsume.run").info("another kind is written")
    assert lines(stream, handler)[-1]["event"] == "run"
    handler.close()
    sums = lines(stream, handler)[-2:]
    assert [line["kept_back"] for line in sums] == [1_349, 1_349]
    assert sums[0]["message"].endswith("the last: FAIL [rdkafka#consumer-1] Connect to 127.0.0.1:1349 failed")


def test_a_sum_is_written_when_its_window_is_over_though_no_further_line_comes(start: Start) -> None:
    stream = io.StringIO()
    handler = start(stream, window=0.3)
    logger = logging.getLogger("reconsume.committer")
    for number in range(7):
        where = {"event": "copies-refused", "about": [f"sec-RETRY-10s[{number}]", "sec-DLQ[0]"]}
        logger.warning("Kafka refuses %d records", number, extra=where)
    summed = until(lambda: [line for line in lines(stream, handler) if "kept_back" in line], 5, "the sum")
    assert [(line["kept_back"], line["about"], line["event"]) for line in summed] == [(2, 3, "copies-refused")]
    assert summed[0]["message"].endswith("about 3 partitions or topics; the last: Kafka refuses 6 records")
    assert lines(stream, handler)[0]["about"] == 2


def test_the_sums_come_before_the_last_line_of_a_sidecar_that_stops(start: Start) -> None:
    stream = io.StringIO()
    handler = start(stream)
    for _ in range(3):
        logging.getLogger("reconsume.committer").warning("no leader", extra={"about": ["orders[0]"]})
    logging.getLogger("reconsume.sidecar").info("stopped", extra={"event": "stopped"})
    handler.close()
    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("kept_back") for line in written] == [None, 2, None]
    assert written[1]["message"] == "2 more in 0 s, about 1 partition or topic; the last: no leader"


def test_a_full_pipe_at_stderr_costs_lines_and_no_time(start: Start) -> None:
    """Given nobody who reads stderr, then logging goes on at once, what finds no room is counted, the rest comes."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader) as pipe:
        handler = start(stream)
        done = threading.Event()

        def flood() -> None:
            for number in range(QUEUE + 500):
                logger = logging.getLogger(f"reconsume.flood{number // BURST}")  # so that none is kept back
                logger.info("%d %s", number, "x" * 1_000)
            done.set()

        threading.Thread(target=flood, daemon=True).start()
        assert done.wait(60)
        assert handler.lost > 0
        came: list[str] = []
        reading = threading.Thread(target=lambda: came.extend(pipe), daemon=True)
        reading.start()
        until(lambda: len(came) + handler.lost >= QUEUE + 500, 10, "every line was written or counted")
        handler.close()
        stream.close()
        reading.join(5)
    assert len(came) + handler.lost == QUEUE + 500
    assert all(json.loads(line)["event"].startswith("flood") for line in came)


def test_a_closed_stderr_does_not_stop_the_sidecar(start: Start) -> None:
    stream = io.StringIO()
    handler = start(stream)
    stream.close()
    logging.getLogger("reconsume.run").info("to nobody")
    handler.flush()
    assert handler.lost == 1


def test_a_shutdown_writes_what_is_left(start: Start) -> None:
    """Given a line logged just before the end, when logging is shut down, then it is written."""
    stream = io.StringIO()
    handler = start(stream)
    logging.getLogger("reconsume.run").info("the last words")
    handler.close()
    assert json.loads(stream.getvalue())["message"] == "the last words"


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_line_turns_a_terminal_or_the_direction_of_its_text(start: Start, form: Format) -> None:
    """Given marks of direction and C1 controls in a name, then each is an escape, and JSON gives it back."""
    evil = "a\u202eb\u2066c\x9b2Jd\u2028e\u200ff\U000e0001g\x7f"
    stream = io.StringIO()
    handler = start(stream, form)
    logging.getLogger("reconsume.policy").warning("the policy by %s", evil)
    handler.flush()
    written = stream.getvalue().rstrip("\n")
    assert written.isprintable()
    assert "u202e" in written
    if form == "json":
        assert json.loads(written)["message"] == f"the policy by {evil}"


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "logged",
    [
        {"msg": "%s", "args": (", ".join(f"topic-{number}" for number in range(1_000)),)},
        {"msg": "x" * 100_000},
        {"msg": "\u202e" * 20_000},
        {"msg": "é" * 20_000},
        {"msg": "names", "extra": {"topics": [f"topic-{number}" for number in range(1_000)]}},
        {"msg": "names", "extra": {"names": {f"name-{number}": "x" * 100 for number in range(300)}}},
        {"msg": "many", "extra": {f"field_{number}": "x" * 50 for number in range(500)}},
        {"msg": "failed", "exc_info": ValueError("y" * 50_000)},
    ],
)
def test_no_line_is_longer_than_8_kib_whoever_chose_its_words(
    start: Start, form: Format, logged: dict[str, Any]
) -> None:
    """Given a service's thousand topics, then the line still parses, says which kind it is, and loses only a middle."""
    stream = io.StringIO()
    handler = start(stream, form)
    extra = {"event": "long", **logged.get("extra", {})}
    fault = logged.get("exc_info")
    logging.getLogger("reconsume.test").error(logged["msg"], *logged.get("args", ()), extra=extra, exc_info=fault)
    structlog.get_logger("reconsume.test").error("z" * 50_000)
    handler.flush()
    text = stream.getvalue()
    lines = text.splitlines() if form == "json" else [f"{part}" for part in re.split(r"\n(?! )", text.rstrip("\n"))]
    assert len(lines) == 2
    assert all(len(line.encode()) <= LONGEST_LINE for line in lines)
    if form == "json":
        assert json.loads(lines[0])["event"] == "long"
    else:
        assert "long" in lines[0]
