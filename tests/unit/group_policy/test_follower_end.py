"""When the policy topic counts as read to its end: where it ended as it was first looked at, and not before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from reconsume.sidecar.group_policy.follower import InstanceInfo, PolicyFollower, PolicyUpdate
from reconsume.topics.names import Names
from reconsume.topics.policy_record import SubscriptionRecord

END = 8


def message(offset: int, code: int | None) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(
        error=lambda: error,
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
    updates = list[PolicyUpdate]()
    listener: Any = SimpleNamespace(on_update=updates.append)
    own, told = InstanceInfo("pod-1", SubscriptionRecord({}, 1)), list[bool]()
    source: Any = SimpleNamespace(names=Names("billing"), own=own)
    follower = PolicyFollower({}, {}, source, listener)
    heartbeat: Any = SimpleNamespace(tell=lambda: told.append(True))
    follower._heartbeat = heartbeat
    follower._reading, follower._end = True, END
    unused: Any = None
    follower._take(unused, [message(offset, code)])
    assert [update.caught_up for update in updates] == [caught_up]
    assert told == [True] * caught_up, "it is published then, and not before"
