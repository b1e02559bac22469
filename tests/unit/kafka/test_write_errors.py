"""What the Kafka client raises, as Kafka's error."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from reconsume.sidecar.kafka.committer.transaction_outcome import error_in


def test_a_fatal_error_is_found_behind_the_systemerror_that_hides_it() -> None:
    hidden = SystemError("<method> returned a result with an exception set")
    hidden.__cause__ = KafkaException(KafkaError(KafkaError._FENCED))
    assert error_in(hidden).code() == KafkaError._FENCED


def test_one_that_was_lost_on_the_way_is_left_to_the_abort() -> None:
    """Given a client that was fenced and says nothing, then the transaction is aborted, which tells the reason."""
    error = error_in(SystemError("flush returned NULL without setting an exception"))
    assert error.txn_requires_abort()
    assert not error.fatal()


def test_a_fault_of_ours_stays_one() -> None:
    with pytest.raises(ZeroDivisionError):
        error_in(ZeroDivisionError())
