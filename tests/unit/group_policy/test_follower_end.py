"""When the policy topic counts as read to its end: where it ended as it was first looked at, and not before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from reconsume.sidecar.group_policy.follower import LogReading
from reconsume.sidecar.group_policy.heartbeat import InstanceInfo
from reconsume.topics.policy_record import SubscriptionRecord

END = 8


def message(offset: int) -> Any:
    return SimpleNamespace(
        partition=lambda: 0,
        offset=lambda: offset,
        key=lambda: b"k",
        value=lambda: b"v",
        timestamp=lambda: (1, 1),
    )


@pytest.mark.parametrize(
    ("offset", "code", "caught_up"),
    [
        (END - 1, None, True),
        (END - 2, None, False),
        (END, KafkaError._PARTITION_EOF, True),
        (END + 3, KafkaError._PARTITION_EOF, True),
        (END - 2, KafkaError._PARTITION_EOF, False),  # its leader is behind what was committed
    ],
)
def test_a_topic_is_read_when_it_was_read_up_to_where_it_ended(offset: int, code: int | None, caught_up: bool) -> None:
    log = LogReading(InstanceInfo("pod-1", SubscriptionRecord({}, 1)), 0, END, has_notes=False)
    if code is None:
        log.hear(message(offset))
    else:
        log.hear_end(message(offset))
    assert log.is_complete is caught_up
