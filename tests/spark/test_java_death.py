"""The death of the Java process, in each of the ways in which Py4J tells of it, ends the job with the same sentence."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from reconsume.spark.errors import JobError
from reconsume.spark.job.run import ENDINGS, reason_of

DEATHS = [
    Py4JError("An error occurred while calling o1119.isActive"),
    Py4JNetworkError("Answer from Java side is empty"),
    ConnectionRefusedError(111, "Connection refused"),
    BrokenPipeError(32, "Broken pipe"),
]


@pytest.mark.parametrize("death", DEATHS, ids=repr)
def test_java_is_gone_however_py4j_says_it(death: Exception) -> None:
    assert isinstance(death, ENDINGS)
    assert reason_of(death).startswith("Spark's Java process has ended")


def test_the_death_of_the_query_is_not_that_of_java() -> None:
    assert reason_of(JobError("the query has ended: it broke")) == "the query has ended: it broke"
