"""A decision about a record that waits, made over the API once the password of the start is worthless."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from reconsume.topics.acls import GroupShape, User, permissions_of
from reconsume.topics.names import Kind
from tests.flow.lifecycle.test_credentials import SECONDS, scram_secret
from tests.flow.modes.test_ordered_park import PARK, is_parked, put
from tests.support.canary import CANARY, betrays
from tests.support.kafka.certificates import Mounted
from tests.support.kafka.group_topics import create_group, fresh_group
from tests.support.kafka.secured import secured_kafka
from tests.support.proof.ledger import Ledger
from tests.support.service.behaviours import BadFails
from tests.support.service.puller import Puller
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess


@pytest.mark.long
def test_a_parked_record_is_settled_with_the_password_of_now(tmp_path: Path, ledger: Ledger) -> None:
    """Each call makes clients of its own, from what the sidecar logs in with then."""
    with secured_kafka(tmp_path / "brokers") as kafka, ExitStack() as stack:
        kafka.set_password("sidecar", f"first-{CANARY}")
        mounted = Mounted(tmp_path / "user")
        mounted.swap(**scram_secret(f"first-{CANARY}"))
        group = create_group(replace(fresh_group(kafka.bootstrap), delays=(), queued=True), 1, also=(Kind.POLICY,))
        shape = GroupShape(group.names, group.mains, group.delays, ordered=True)
        kafka.guarded.allow("sidecar", permissions_of(User.SIDECAR, shape))
        service = stack.enter_context(Service(tmp_path / "ledger", BadFails()))
        client = {"ssl.ca.location": str(kafka.authority.file), "bootstrap.servers": kafka.address}
        overrides = {**PARK, "kafka": client, "kafka_secret": str(mounted.folder)}
        sidecar = stack.enter_context(SidecarProcess(group, service.url, tmp_path, pod="pod-0", overrides=overrides))
        sidecar.wait_ready(SECONDS)
        head, behind, last = put(group, (b"bad", b"a"), (b"behind", b"a"), (b"last", b"a"))
        sidecar.until(is_parked(group, head), SECONDS, "the head is parked")
        mounted.swap(**scram_secret(f"second-{CANARY}"))
        kafka.set_password("sidecar", f"second-{CANARY}")
        sidecar.wait_log("credentials-reloaded", SECONDS)
        # A client is made for each call, and has no login of before.
        api = Puller(sidecar, ledger)
        answer = api.call("settle", {"id": behind, "how": "dead-letter", "why": "seen"})
        assert (answer.status, answer.json["done"]) == (200, True), answer.body
        answer = api.call("settle", {"id": head, "how": "commit", "why": "seen"})
        assert (answer.status, answer.json["done"]) == (200, True), answer.body
        sidecar.until(lambda: bool(service.ledger.of(last)), SECONDS, "the last of the key goes")
        assert not service.ledger.of(behind)
        assert sidecar.stop().code == 0
        assert not betrays(sidecar.log())
