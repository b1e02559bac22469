"""What instances have said of themselves in the group's policy topic."""

from __future__ import annotations

from reconsume.topics.policy_record import InstanceHeard, SubscriptionRecord, parse_record
from tests.support.kafka.group_topics import GroupTopics
from tests.support.kafka.topic_io import dump


def heartbeats(group: GroupTopics) -> list[SubscriptionRecord]:
    """All heartbeats, in order; without those that say that an instance has gone."""
    heard = [parse_record(row.key, row.value) for row in dump(group.bootstrap, group.names.policy)]
    return [one.record for one in heard if isinstance(one, InstanceHeard) and one.record]
