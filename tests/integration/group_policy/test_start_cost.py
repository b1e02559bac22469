"""What a start reads of a control log in which a hundred instances have written for hours."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from reconsume.sidecar.clock import wall
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings.group_policy import agreed_values
from reconsume.sidecar.settings.policy import heartbeat_of
from reconsume.topics.agreement import SettingsRecord, digest_of, render_settings, settings_key
from reconsume.topics.names import Names
from reconsume.topics.policy_record import (
    LARGEST_HEARTBEAT,
    ObeysTold,
    PaceTold,
    ReleaseTold,
    SubscriptionRecord,
    fitted,
    instance_key,
    render_record,
)
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, produce
from tests.support.sidecar.settings import good

INSTANCES, HOURS = 100, 6
"""Heartbeats of so many instances, one a minute each, none of them compacted: the worst that a start meets."""
SECONDS = 10.0
"""In which a start has read them, on a busy machine. The lanes wait for 30 s at most."""
BYTES = 40 * 1024 * 1024
"""Of all values: a heartbeat with usual contents has about 700 bytes."""

Message = tuple[bytes, bytes]


def heartbeats(fixed: SubscriptionRecord) -> Iterator[Message]:
    """What the instances have written, minute by minute."""
    release = ReleaseTold("0.3.0", "0123456789ab", "3.12.11", "2.11.1")
    for minute in range(HOURS * 60):
        for number in range(INSTANCES):
            beat = SubscriptionRecord(
                fixed.subscription,
                minute * 60_000,
                pace=PaceTold("open", minute, 16, 256),
                well=True,
                release=release,
                obeys=ObeysTold(7, ("0badcafe",), 3, fixed.settings),
                settings=fixed.settings,
                mode="push",
                order="none",
                batch=1,
                started=1,
            )
            yield instance_key(f"billing-{number:02}.shop"), render_record(fitted(beat))


@pytest.mark.long
def test_a_start_reads_six_hours_of_a_hundred_instances_within_seconds(
    kafka: Broker, group: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Given 36 000 heartbeats, then a start knows the settings in force within SECONDS, and keeps a hundred of them."""
    settings = good(tmp_path_factory.mktemp("settings"))
    fixed, values, names = heartbeat_of(settings), agreed_values(settings), Names(group)
    create_topic(kafka.bootstrap, names.policy, 1, {"message.timestamp.type": "LogAppendTime"})
    written = [(settings_key(digest_of(values)), render_settings(SettingsRecord(values, 1))), *heartbeats(fixed)]
    assert max(len(value) for _, value in written) <= LARGEST_HEARTBEAT
    assert sum(len(value) for _, value in written) < BYTES
    produce(kafka.bootstrap, names.policy, [Out(value, key) for key, value in written])
    began = time.monotonic()
    state = ControlLog(Cluster({"bootstrap.servers": kafka.bootstrap}), names).read(within=SECONDS)
    assert time.monotonic() - began < SECONDS
    assert len(state.beats.known()) == INSTANCES
    assert [len(one.instances) for one in state.live_settings(wall())] == [INSTANCES]
