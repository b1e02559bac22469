"""What the broker reports of the writes of an entry: the error that names the cause, and where its copy lies."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from reconsume.sidecar.kafka.committer.client_reports import EntryReports, Errors, Located

REFUSED, PURGED = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), KafkaError(KafkaError._PURGE_QUEUE)


class Reported:
    """A message as the client reports it."""

    def __init__(self, offset: int | None = None) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "billing-ORDERED-orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int | None:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_763_690_000_000


@pytest.mark.parametrize(
    ("reports", "stands"),
    [([], None), ([REFUSED, PURGED], REFUSED), ([PURGED, REFUSED], REFUSED), ([PURGED, PURGED], PURGED)],
)
def test_the_error_that_says_something_of_the_record_stands(
    reports: list[KafkaError], stands: KafkaError | None
) -> None:
    errors: Errors = {}
    entry = EntryReports(5, errors, {})
    entry.written(None, Reported(7))  # type: ignore[arg-type]
    for error in reports:
        entry.copied(error, Reported())  # type: ignore[arg-type]
    assert errors == ({} if stands is None else {5: (stands, "billing-ORDERED-orders[3]")})


@pytest.mark.parametrize(("offset", "told"), [(7, {5: (7, 1_763_690_000_000)}), (-1001, {}), (None, {})])
def test_a_copy_is_located_by_the_report_of_the_copy_alone(offset: int | None, told: Located) -> None:
    located: Located = {}
    entry = EntryReports(5, {}, located)
    entry.written(None, Reported(offset))  # type: ignore[arg-type]
    assert located == {}
    entry.copied(None, Reported(offset))  # type: ignore[arg-type]
    assert located == told
