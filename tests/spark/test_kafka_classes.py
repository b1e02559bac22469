"""Names of Java's classes, which are dear to look up: pure, without Spark."""

from __future__ import annotations

from typing import Any

from reconsume.spark.job.kafka_classes import KafkaClasses


class JavaNames:
    """The root of Java's packages, or a package or class, which notes each name that is looked up."""

    def __init__(self, asked: list[str], name: str = "") -> None:
        self._asked, self._name = asked, name

    def __getattr__(self, part: str) -> JavaNames:
        name = f"{self._name}.{part}".removeprefix(".")
        self._asked.append(name)
        return JavaNames(self._asked, name)


def test_a_class_is_looked_up_when_it_is_needed_and_never_again() -> None:
    asked: list[str] = []
    names: Any = KafkaClasses(JavaNames(asked))
    assert asked == [], "a connector that is missing is told of by the query"
    for name in sorted(vars(KafkaClasses)):
        if not name.startswith("_"):
            getattr(names, name)
            before = len(asked)
            assert getattr(names, name) is getattr(names, name)
            assert len(asked) == before, name
    assert "org.apache.kafka.clients.consumer.OffsetAndMetadata" in asked
