"""Which members of the consumer groups an instance is."""

from reconsume.sidecar.group_policy.control_log import members_of
from reconsume.sidecar.kafka.admin.descriptions import ConsumerGroup, Member


def member(client: str, partition: int) -> Member:
    return Member(client, "/127.0.0.1", frozenset({("orders", partition)}))


def test_an_instance_whose_name_ends_like_that_of_another_one_shows_its_own_partitions_only() -> None:
    members = member("reconsume-billing-a", 0), member("reconsume-billing-b-a", 1), member("other-a", 2)
    groups = {"billing": ConsumerGroup(True, members, frozenset())}
    assert members_of("a", groups) == [("billing", members[0])]
    assert members_of("b-a", groups) == [("billing", members[1])]
