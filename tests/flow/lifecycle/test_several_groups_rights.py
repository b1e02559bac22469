"""One sidecar of several groups on a broker with ACLs: what one group may not do keeps no other one waiting."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from reconsume.topics.acls import GroupShape, Permission, Resource, User, permissions_of
from reconsume.topics.names import Kind
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.guarded import GuardedKafka
from tests.support.kafka.topic_io import dump, produce
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, OK, by_name
from tests.support.service.service import Service
from tests.support.sidecar.process import OtherGroup, SidecarProcess

SECONDS = 60.0
DELAYS = (1_000, 2_000)
SCRIPT = by_name({"flaky": (FAIL, OK), "poison": (FAIL,)})
JOB = (b"good:1", b"good:2", b"flaky:", b"poison:")
MISSING: dict[str, Collection[Resource] | str] = {
    "any right": tuple(Resource),
    "rights on topics": (Resource.TOPIC,),
    "rights on consumer groups": (Resource.GROUP,),
    "rights on transactions": (Resource.TRANSACTIONAL_ID,),
    "rights on the policy topic": "policy",
}


def rights_of(group: GroupTopics) -> tuple[Permission, ...]:
    """The least rights of a sidecar of the group."""
    return permissions_of(User.SIDECAR, GroupShape(group.names, group.mains, group.delays))


def is_missing(right: Permission, group: GroupTopics, missing: Collection[Resource] | str) -> bool:
    """Whether a right is one of those that the group does not have."""
    return right.name == group.names.policy if missing == "policy" else right.resource in missing


@pytest.mark.parametrize("which", inner("any right", MISSING))
def test_a_group_without_its_rights_keeps_no_other_one_waiting_and_begins_once_it_has_them(
    which: str, guarded: GuardedKafka, tmp_path: Path
) -> None:
    """The process of both goes on, with the same user: no restart is needed."""
    able, unable = (create_group(fresh_group(guarded.bootstrap, 1, DELAYS), 2, also=(Kind.POLICY,)) for _ in range(2))
    withheld = [right for right in rights_of(unable) if is_missing(right, unable, MISSING[which])]
    guarded.allow("sidecar", rights_of(able))
    guarded.allow("sidecar", [right for right in rights_of(unable) if right not in withheld])
    for group in (able, unable):
        produce(guarded.bootstrap, group.main, JOB)
    login = {"kafka": guarded.login("sidecar")}
    with Service(tmp_path / "able", SCRIPT) as first, Service(tmp_path / "unable", SCRIPT) as second:
        others = [OtherGroup(unable, second.url, login)]
        with SidecarProcess(able, first.url, tmp_path, overrides=login, others=others) as sidecar:
            sidecar.until(lambda: len(first.ledger.taken()) == 3, SECONDS, "the other group goes on")
            sidecar.until(lambda: dump(guarded.bootstrap, able.dlq), SECONDS, "its bad record is a dead letter")
            assert [one["group"] for one in sidecar.status()] == [able.group, unable.group]
            if which != "rights on the policy topic":  # without it each instance goes by its configuration
                assert dump(guarded.bootstrap, unable.dlq) == []
            pid = sidecar.process.pid
            guarded.allow("sidecar", withheld)
            sidecar.until(lambda: len(second.ledger.taken()) == 3, SECONDS, "the group begins once it has its rights")
            sidecar.until(lambda: dump(guarded.bootstrap, unable.dlq), SECONDS, "its bad record is a dead letter")
            assert (sidecar.process.pid, sidecar.process.poll()) == (pid, None)
            assert sidecar.stop().code == 0
