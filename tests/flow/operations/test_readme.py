"""The services of README.md and docs/modes.md, run as they stand there against a real sidecar: the good record is done,
the bad one ends up in the DLQ after its retry."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.flow.operations.readme import Example, examples, service
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import dump
from tests.support.rings import inner
from tests.support.service.service import free_port

GOOD, BAD = b'{"sku": "A-17"}', b"no json"
NEEDS = {"js": ("node",), "sh": ("curl", "jq"), "python": ()}
SOON = 30.0
EXAMPLES = examples()


def test_every_mode_has_its_example() -> None:
    assert set(EXAMPLES) == {"push", "batch", "ordered", "pull", "relay"}


@pytest.mark.parametrize("mode", inner("batch", EXAMPLES))
def test_the_pages_service_does_what_it_says(
    mode: str, new_group: FreshGroup, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    example, group = EXAMPLES[mode], create_group(new_group())
    for tool in NEEDS[example.language]:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    port = free_port()
    sidecar = start_sidecar(group, f"http://127.0.0.1:{port}/events", overrides=overrides(example, port))
    with ExitStack() as stack:
        stack.enter_context(service(example, group, port, sidecar.port, tmp_path))
        produce(group)
        dead = until(lambda: dump(group.bootstrap, group.dlq), SOON, "the bad record is in the DLQ")
        until(lambda: is_done(group), SOON, "both records are done")
    assert [row.value for row in dead] == [BAD]
    assert [row.value for row in dump(group.bootstrap, group.dlq)] == [BAD]


def overrides(example: Example, port: int) -> dict[str, Any]:
    """The example's own settings, at another port, and only one retry."""
    deliver = dict(example.config["deliver"])
    deliver["url"] = f"http://127.0.0.1:{port}/events" if "url" in deliver else None
    retry = {"max_reconsume_times": 1, **example.config.get("retry", {})}
    return {"deliver": deliver, "retry": retry}


def produce(group: GroupTopics) -> None:
    """A good record and a bad one."""
    producer = Producer({"bootstrap.servers": group.bootstrap})
    for value in (GOOD, BAD):
        producer.produce(group.main, value, key=b"customer-7")
    assert producer.flush(10) == 0


def is_done(group: GroupTopics) -> bool:
    """Whether the group's progress has reached the end of the main topic."""
    ends = {row.partition: row.offset + 1 for row in dump(group.bootstrap, group.main)}
    reader = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group, "enable.auto.commit": False})
    try:
        places = reader.committed([TopicPartition(group.main, number) for number in ends], timeout=SOON)
        return all(place.offset >= ends[place.partition] for place in places)
    finally:
        reader.close()
