"""Pull mode from the first call on: a service that starts with its sidecar calls before the sidecar knows Kafka."""

from __future__ import annotations

from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.ledger import Ledger
from tests.support.service.puller import PULL, Got, Puller


def test_a_receive_that_waits_since_before_the_policy_was_known_has_the_instance_join(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    """It waits for a minute, and the puller for half of one: the next call would come too late."""
    group = create_group(new_group(), 1)
    produce(group.bootstrap, group.main, [Out(b"first")])
    puller = Puller(start_sidecar(group, "", overrides=PULL, wait=False), ledger)

    def call() -> list[Got] | None:
        try:
            return puller.receive(1, "30s", "60s")
        except ConnectionRefusedError:  # as a service does: it calls again until its sidecar listens
            return None

    assert [one.name for one in until(call, 40, "the first call is answered")] == ["first"]
