"""The death of the Java process, in each of the ways in which Py4J tells of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from reconsume.spark.errors import GoneError
from reconsume.spark.java import raising_gone
from reconsume.spark.job.running_query import SparkQuery

DEATHS = [
    Py4JError("An error occurred while calling o1119.isActive"),
    Py4JNetworkError("Answer from Java side is empty"),
    ConnectionRefusedError(111, "Connection refused"),
    BrokenPipeError(32, "Broken pipe"),
    PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}),
]


class Query:
    """A query whose Java process does not answer any more."""

    def __init__(self, death: Exception) -> None:
        self._death = death

    def __getattr__(self, _name: str) -> Any:
        raise self._death


@pytest.mark.parametrize("death", DEATHS, ids=repr)
def test_java_is_gone_however_py4j_says_it(death: Exception) -> None:
    query: Any = Query(death)
    with pytest.raises(GoneError):
        SparkQuery(query).turn()
    with pytest.raises(GoneError):
        SparkQuery(query).stop()


def test_what_java_itself_raises_is_no_death() -> None:
    thrown = SimpleNamespace(_target_id="o1", _gateway_client=SimpleNamespace(address="", port=0))
    error = Py4JJavaError("An error occurred while calling o1.start", thrown)
    with pytest.raises(Py4JJavaError), raising_gone():
        raise error
