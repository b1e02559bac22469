"""Credentials renewed under load: every client takes them up, nothing is lost, and nothing is counted twice.

What shows that the new ones are in use is that the old ones have become worthless meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers
from reconsume.sidecar.settings.kafka import Kafka
from reconsume.topics.acls import GroupShape, Permission, User, permissions_of
from reconsume.topics.names import Kind
from tests.support.canary import CANARY, betrays
from tests.support.deadline import until
from tests.support.kafka.certificates import Authority, Mounted, key_store, locked
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.secured import AGAIN_EVERY, SecuredKafka, secured_kafka
from tests.support.kafka.topic_io import dump
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import collect
from tests.support.proof.ledger import Ledger
from tests.support.proof.load import Load, uneven
from tests.support.proof.quiet import await_quiet
from tests.support.service.puller import Puller
from tests.support.service.service import Service
from tests.support.sidecar.config import Config
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.relay import RELAY, post, post_of

pytestmark = pytest.mark.long

RATE = 150
"""Records a second."""
SECONDS = 40.0
QUIET_WITHIN = 30.0


class Stage:
    """A secured group under load, with its service; its sidecar logs in with what is mounted."""

    def __init__(self, kafka: SecuredKafka, folder: Path, stack: ExitStack) -> None:
        self.kafka, self.folder, self.stack = kafka, folder, stack
        self.mounted = Mounted(folder / "user")
        self.group = create_group(fresh_group(kafka.bootstrap), also=(Kind.POLICY,))
        self.service = stack.enter_context(Service(folder / "ledger", uneven))
        self.sidecar = self.pod(self.group, self.service.url)
        self.load = Load(self.group, RATE)

    def pod(self, group: GroupTopics, url: str, overrides: Config | None = None, pod: str = "pod-0") -> SidecarProcess:
        """A sidecar that is not started yet."""
        # Long: on a busy machine nobody is to be taken for dead, whose records would rightly be delivered again.
        kafka: dict[str, object] = {"session.timeout.ms": 30_000, "ssl.ca.location": str(self.kafka.authority.file)}
        kafka["bootstrap.servers"] = self.kafka.address
        mounted = {"kafka": kafka, "kafka_secret": str(self.mounted.folder), **(overrides or {})}
        return SidecarProcess(group, url, self.folder, pod=pod, overrides=mounted)

    def rights(self, group: GroupTopics, mode: str = "push") -> tuple[Permission, ...]:
        """The least rights of a sidecar."""
        return permissions_of(User.SIDECAR, GroupShape(group.names, group.mains, group.delays, mode=mode))  # type: ignore[arg-type]

    def begin(self) -> None:
        """Start the sidecar and the load, and see both at work."""
        self.stack.enter_context(self.sidecar)
        self.sidecar.wait_ready(SECONDS)
        self.stack.enter_context(self.load)
        self.delivers(RATE)

    def delivers(self, more: int, seconds: float = SECONDS) -> None:
        """Wait until so many more records have been delivered."""
        ledger = self.service.ledger
        before = len(ledger.deliveries())
        self.sidecar.until(lambda: len(ledger.deliveries()) >= before + more, seconds, f"{more} more are delivered")

    def verify(self) -> Report:
        """Wait until nothing is left to do, and check all that is left behind."""
        self.load.end()
        await_quiet(self.group, QUIET_WITHIN)
        assert not any(betrays(self.sidecar.request("GET", path).body) for path in ("/status", "/metrics"))
        assert self.sidecar.stop().code == 0
        assert not betrays(self.sidecar.log())
        report = check(collect(self.group, self.service.ledger))
        assert report.waiting == 0
        assert report.committed + report.dead_lettered == self.load.sent
        return report


# --- a password ------------------------------------------------------------------------------------------------------


def scram_secret(password: str) -> dict[str, bytes]:
    """The secret of a KafkaUser with SCRAM."""
    login = f'username="sidecar" password="{password}"'
    jaas = f"org.apache.kafka.common.security.scram.ScramLoginModule required {login};"
    return {"password": password.encode(), "sasl_jaas_config": jaas.encode()}


@pytest.fixture
def scram(tmp_path: Path) -> Iterator[Stage]:
    with secured_kafka(tmp_path / "brokers") as kafka, ExitStack() as stack:
        kafka.set_password("sidecar", f"first-{CANARY}")
        stage = Stage(kafka, tmp_path, stack)
        stage.mounted.swap(**scram_secret(f"first-{CANARY}"))
        kafka.guarded.allow("sidecar", stage.rights(stage.group))
        yield stage


def test_a_password_changed_under_load_loses_nothing_and_repeats_nothing(scram: Stage) -> None:
    """First the file, which Kafka does not take yet, then Kafka: in both orders somebody is ahead for a while."""
    scram.begin()
    scram.mounted.swap(**scram_secret(f"second-{CANARY}"))
    refused = scram.sidecar.wait_log("credentials-refused", SECONDS)
    assert "SASL: the login is refused" in refused
    scram.delivers(RATE)
    scram.kafka.set_password("sidecar", f"second-{CANARY}")
    scram.sidecar.wait_log("credentials-reloaded", SECONDS)
    # Longer than any login holds: whoever still had the old password would be out.
    scram.delivers(RATE * AGAIN_EVERY // 1_000 * 2)
    hold = {"key": "nobody", "for": "1h", "why": "a call has a client of its own"}
    held = Puller(scram.sidecar, scram.service.ledger).call("holds", hold)
    assert held.status == 201, held.body
    assert scram.verify().duplicates == 0


# --- certificates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutual_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with secured_kafka(tmp_path_factory.mktemp("brokers"), mutual=True) as kafka:
        yield kafka


@pytest.fixture
def mutual(mutual_kafka: SecuredKafka, tmp_path: Path) -> Iterator[Stage]:
    kafka = mutual_kafka
    with ExitStack() as stack:
        yield Stage(kafka, tmp_path, stack)


def wear(stage: Stage, authority: Authority, name: str) -> None:
    """Mount a certificate that is made out to a user."""
    certificate, key = authority.issue("sidecar.test", common_name=name)  # Java wants a name of that kind, too
    stage.mounted.swap(user_crt=certificate, user_key=key, ca_crt=authority.pem)


def numbers(ledger: Ledger) -> list[int]:
    """The load's numbers of the records that a service was sent, rising."""
    return sorted(int((delivery.value or b"").rpartition(b" ")[2]) for delivery in ledger.deliveries())


def test_certificates_renewed_under_load_lose_nothing(mutual: Stage) -> None:
    """In three modes at once: delivered by a group, broadcast, and posted by a service to a relay."""
    listening = mutual.stack.enter_context(Service(mutual.folder / "ledger-broadcast"))
    broadcast = mutual.pod(mutual.group, listening.url, {"deliver": {"broadcast": True}}, "broadcast")
    relayed = create_group(fresh_group(mutual.kafka.bootstrap), also=(Kind.POLICY,))
    relay = mutual.pod(relayed, "", RELAY, "relay")
    for user in ("old", "new"):
        mutual.kafka.guarded.allow(user, mutual.rights(mutual.group))
        mutual.kafka.guarded.allow(user, mutual.rights(relayed, "relay"))
    wear(mutual, mutual.kafka.authority, "old")
    for pod in (broadcast, relay):
        mutual.stack.enter_context(pod).wait_ready(SECONDS)
    mutual.begin()
    wear(mutual, mutual.kafka.authority, "new")
    for pod in (mutual.sidecar, broadcast, relay):
        pod.wait_log("credentials-reloaded", SECONDS)
    mutual.kafka.guarded.forbid_all("old")
    mutual.delivers(3 * RATE)
    row = dump(mutual.kafka.bootstrap, mutual.group.main)[0]
    assert post(relay, post_of(relayed.main, row)).status == 201
    report = mutual.verify()
    assert report.duplicates == 0
    until(lambda: numbers(listening.ledger)[-1] == mutual.load.sent - 1, SECONDS, "the broadcast is at the end")
    sent = numbers(listening.ledger)
    assert sent == list(range(mutual.load.sent))
    assert "uthoriz" not in mutual.sidecar.log() + broadcast.log() + relay.log()


@pytest.mark.parametrize("form", ["key with a passphrase", "key store"])
def test_a_certificate_is_understood_in_each_form(mutual_kafka: SecuredKafka, tmp_path: Path, form: str) -> None:
    chain, key = mutual_kafka.authority.issue("me.test", common_name="me")
    if form == "key store":
        (tmp_path / "user.p12").write_bytes(key_store(chain, key, CANARY))
        names = {"ssl_keystore_location": str(tmp_path / "user.p12")}
        secret = "ssl.keystore.password"
    else:
        (tmp_path / "user.crt").write_bytes(chain)
        (tmp_path / "user.key").write_bytes(locked(key, CANARY))
        names = {"ssl_certificate_location": str(tmp_path / "user.crt"), "ssl_key_location": str(tmp_path / "user.key")}
        secret = "ssl.key.password"
    kafka = mutual_kafka.client("SSL", **names)
    (tmp_path / "password").write_text(CANARY)
    assert answers(Kafka({**kafka, f"{secret}.file": str(tmp_path / "password")})) == [mutual_kafka.address]
    refused = answers({**kafka, secret: f"wrong-{CANARY}"})
    assert isinstance(refused, Unreachable)
    assert not betrays(refused.finding + refused.mend)
