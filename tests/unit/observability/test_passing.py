"""A coordinator that is missing for a moment is no warning; one that stays away is."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.observability.logs import configure
from reconsume.sidecar.observability.passing import LASTS, QUIET, Passing

COORDINATOR = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
               KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._WAIT_COORD)  # fmt: skip
OTHERS = (KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT, KafkaError.GROUP_AUTHORIZATION_FAILED)


def own(code: int, event: str = "offset-held-back", level: int = logging.WARNING) -> logging.LogRecord:
    text = "Kafka does not return the committed offsets of %d partitions yet: %s"
    args = (3, KafkaException(KafkaError(code)))
    record = logging.LogRecord("reconsume.assignment", level, __file__, 1, text, args, None)
    record.event = event
    return record


def of_client(code: int, kind: str = "GETPID") -> logging.LogRecord:
    told = f"Failed to acquire transactional PID from broker TxnCoordinator/0: {KafkaError(code).str()}: retrying"
    args = (kind, "reconsume-billing-pod-0#producer-10", f"[thrd:main]: {told}")
    return logging.LogRecord("reconsume.kafka", logging.WARNING, __file__, 1, "%s [%s] %s", args, None)


@pytest.mark.parametrize("line", [own, of_client])
@pytest.mark.parametrize(("code", "passes"), [*((code, True) for code in COORDINATOR), *((c, False) for c in OTHERS)])
def test_only_a_missing_coordinator_passes(line: object, code: int, passes: bool) -> None:
    assert Passing().passes(line(code), 0.0) == passes  # type: ignore[operator]


def late(kind: str = "REQTMOUT") -> logging.LogRecord:
    told = "[thrd:127.0.0.1:19092/0]: Timed out ListOffsetsRequest in flight (after 805ms, timeout #0)"
    args = (kind, "reconsume-billing-pod-0#consumer-3", told)
    return logging.LogRecord("reconsume.kafka", logging.WARNING, __file__, 1, "%s [%s] %s", args, None)


def test_a_late_answer_is_no_warning_until_answers_have_been_late_for_long() -> None:
    passing = Passing()
    assert [passing.passes(late(), now) for now in (0.0, LASTS - 1, LASTS)] == [True, True, False]
    assert not passing.passes(late("FAIL"), 0.0)


def test_errors_and_other_kinds_of_line_are_left_alone() -> None:
    for record in (own(COORDINATOR[0], level=logging.ERROR), own(COORDINATOR[0], event="transaction-aborted")):
        assert not Passing().passes(record, 0.0)


def test_one_that_lasts_is_a_warning_and_a_later_one_passes_again() -> None:
    passing, record = Passing(), of_client(COORDINATOR[0])
    assert [passing.passes(record, now) for now in (0.0, LASTS - 1, LASTS, LASTS + 50)] == [True, True, False, False]
    assert passing.passes(record, LASTS + 50 + QUIET)


def test_each_kind_of_line_has_its_own_time() -> None:
    passing = Passing()
    assert passing.passes(of_client(COORDINATOR[0]), 0.0)
    assert passing.passes(own(COORDINATOR[0]), LASTS)
    assert not passing.passes(of_client(COORDINATOR[0]), LASTS)


@pytest.fixture
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    logging.getLogger("reconsume").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(("level", "written"), [("info", []), ("debug", ["debug"])])
def test_it_is_written_at_debug(level: str, written: list[str]) -> None:
    stream = io.StringIO()
    handler = configure(level, "json", stream)
    logging.getLogger("reconsume.kafka").handle(of_client(COORDINATOR[1]))
    handler.close()
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == written
